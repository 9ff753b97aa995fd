"""The four regular tasks of Deletang et al. 2023 and Ruoss et al. 2023: a finite automaton solves them.

    task                 input tokens                     answer
    even_pairs           0 1                              parity of the number of unequal neighbours
    modular_arithmetic   digits 0-4 and + - * in turn     value mod 5, with the usual precedence
    parity_check         0 1                              parity of the number of 1s
    cycle_navigation     moves -1 0 +1                    sum of the moves mod 5

`length` is the number of input tokens. References: arXiv:2207.02098; arXiv:2305.16843.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.draws import draw, padded, within
from attnjax.tasks.strings import ClassTask
from attnjax.typing import Array, Int, Key

MODULUS = 5


@dataclasses.dataclass(frozen=True)
class EvenPairs(ClassTask):
    """Whether the number of pairs 01 and 10 is odd: 0011 -> 1, 0110 -> 0. Equals first token xor last token.

    Example:
      >>> EvenPairs().label(jnp.array([0, 0, 1, 1]), 4).item()
      1
    """

    symbols: int = dataclasses.field(default=2, init=False)

    def label(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, ""]:
        unequal = (x[1:] != x[:-1]) & within(length - 1, x.shape[0] - 1)
        return jnp.sum(unequal, dtype=jnp.int32) % 2


@dataclasses.dataclass(frozen=True)
class ParityCheck(ClassTask):
    """Whether the number of 1s is odd, over independent uniform bits: 0111 -> 1.

    Example:
      >>> ParityCheck().label(jnp.array([0, 1, 1, 1]), 4).item()
      1
    """

    symbols: int = dataclasses.field(default=2, init=False)

    def label(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, ""]:
        return jnp.sum(jnp.where(within(length, x.shape[0]), x, 0), dtype=jnp.int32) % 2


@dataclasses.dataclass(frozen=True)
class CycleNavigation(ClassTask):
    """Where a walk on a circle of 5 ends that starts at 0; tokens 0, 1, 2 move by -1, 0, +1: 2221 -> 3.

    Example:
      >>> CycleNavigation().label(jnp.array([2, 2, 2, 1]), 4).item()
      3
    """

    symbols: int = dataclasses.field(default=3, init=False)

    def alphabet(self) -> Alphabet:
        return Alphabet(("-1", "0", "+1"), numbered(MODULUS))

    def label(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, ""]:
        return jnp.sum(jnp.where(within(length, x.shape[0]), x - 1, 0), dtype=jnp.int32) % MODULUS


@dataclasses.dataclass(frozen=True)
class ModularArithmetic(Task):
    """Value mod 5 of `digit op digit ... digit` with usual precedence: 1 + 2 * 3 -> 2.

    Tokens 0-4 are digits, 5 6 7 are + - *, uniform and independent. An even length is shortened by 1. Token 8, a
    blank, is part of the published vocabulary and never occurs.

    Example:
      >>> ModularArithmetic().space(5), ModularArithmetic().chance(5).token
      (1125, 0.2)
    """

    def alphabet(self) -> Alphabet:
        return Alphabet((*numbered(MODULUS), "+", "-", "*", "blank"), numbered(MODULUS))

    def space(self, length: int) -> int:
        operators = (length - 1) // 2
        return MODULUS ** (operators + 1) * 3**operators

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        for_digits, for_operators = jax.random.split(key)
        digits = draw(for_digits, (max_length + 1) // 2, MODULUS)
        operators = draw(for_operators, (max_length + 1) // 2, 3)
        tokens = jnp.stack([digits, MODULUS + operators], axis=1).reshape(-1)[:max_length]
        value = flat_value(digits, operators, count=(length - 1) // 2)
        return padded(tokens, length - (length + 1) % 2, value.reshape(1), 1)


def flat_value(digits: Int[Array, " n"], operators: Int[Array, " n"], count: Int[Array, ""]) -> Int[Array, ""]:
    """Return the value mod 5 of d0 o0 d1 o1 ... with the first `count` operators: 0 1 2 are + - *, and * binds tighter."""
    chex.assert_equal_shape((digits, operators))
    chex.assert_rank((digits, count), (1, 0))

    def step(state: tuple[Array, Array], xs: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        total, term = state
        digit, operator, active = xs
        times = operator == 2
        signed = jnp.where(operator == 1, -digit, digit)
        new = (jnp.where(times, total, total + term) % MODULUS, jnp.where(times, term * digit, signed) % MODULUS)
        return jax.tree.map(lambda new, old: jnp.where(active, new, old), new, state), None

    xs = (digits[1:], operators[:-1], within(count, digits.shape[0] - 1))
    (total, term), _ = jax.lax.scan(step, (jnp.int32(0), digits[0]), xs)
    return (total + term) % MODULUS
