"""The regular and the deterministic context-free tasks of Deletang et al. 2023 and Ruoss et al. 2023.

Regular: a finite automaton solves them.

    task                          input tokens                             answer
    even_pairs                    0 1                                      parity of the number of unequal neighbours
    modular_arithmetic            digits 0-4 and + - * in turn             value mod 5, with the usual precedence
    parity_check                  0 1                                      parity of the number of 1s
    cycle_navigation              moves -1 0 +1                            sum of the moves mod 5

Deterministic context-free: a stack solves them.

    stack_manipulation            a stack, then POP and PUSH actions       the final stack, top first
    reverse_string                0 1                                      the string reversed
    modular_arithmetic_brackets   bracketed expression of + - *            value mod 5
    solve_equation                bracketed equation of + - with one x     the digit x

`length` is the number of input tokens. References: arXiv:2207.02098; arXiv:2305.16843.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks import expressions
from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.digits import turned
from attnjax.tasks.draws import draw, ended, padded, pick, take, within
from attnjax.tasks.expressions import CLOSE, MODULUS, OPEN, SYMBOLS
from attnjax.tasks.strings import ClassTask, StringTask
from attnjax.typing import Array, Int, Key

POP, PUSH_0 = 2, 3


@dataclasses.dataclass(frozen=True)
class EvenPairs(ClassTask):
    """Whether the number of pairs 01 and 10 is odd: 0011 -> 1, 0110 -> 0. Equals first token xor last token.

    Example:
      >>> EvenPairs().label(jnp.array([0, 0, 1, 1]), 4).item()
      1
    """

    symbols: int = dataclasses.field(default=2, init=False)

    def label(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, ""]:
        """Return the parity of the number of unequal neighbours."""
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
        """Return the parity of the number of 1s."""
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
        """Return the sum of the moves mod 5."""
        return jnp.sum(jnp.where(within(length, x.shape[0]), x - 1, 0), dtype=jnp.int32) % MODULUS


@dataclasses.dataclass(frozen=True)
class ModularArithmetic(Task):
    """Value mod 5 of `digit op digit ... digit` with usual precedence: 1 + 2 * 3 -> 2.

    Tokens 0-4 are digits, 5 6 7 are + - *, uniform and independent. An even length is shortened by 1. Token 8, a
    blank, is part of the published vocabulary and never occurs.

    Example:
      >>> ModularArithmetic().chance(5).token
      0.2
    """

    def alphabet(self) -> Alphabet:
        return Alphabet((*numbered(MODULUS), "+", "-", "*", "blank"), numbered(MODULUS))

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return digits and operators in turn, and their value mod 5."""
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


@dataclasses.dataclass(frozen=True)
class StackManipulation(Task):
    """The stack after all actions, top to bottom, then `end`, then zeros up to length + 1; these do not count.

    The input is a stack, bottom to top, of 1 .. length - 1 uniform bits (uniform), then uniform actions POP, PUSH 0,
    PUSH 1; a POP of the empty stack does nothing. Length 1 is a single bit. 0 1 1 0 PUSH-1 POP POP -> 1 1 0 end.
    Chance is published as 1/2 per token. `answers` counts the full stacks alone: shorter ones also occur.

    Example:
      >>> StackManipulation().chance(3)
      Chance(token=0.5, exact=0.125)
    """

    def alphabet(self) -> Alphabet:
        return Alphabet(("0", "1", "POP", "PUSH-0", "PUSH-1"), ("0", "1", "end"))

    def output_size(self, max_length: int) -> int:
        return max_length + 1

    @property
    def token_chance(self) -> float:
        return 0.5

    def answers(self, length: int) -> int:
        return 2**length

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return a stack with actions behind it, and the stack after them."""
        for_height, for_bits, for_actions = jax.random.split(key, 3)
        height = pick(for_height, 1, jnp.maximum(length - 1, 1))
        actions = POP + draw(for_actions, max_length, 3)
        tokens = jnp.where(within(height, max_length), draw(for_bits, max_length, 2), actions)
        stack, depth = run_stack(tokens, length)
        return ended(tokens, length, turned(stack, depth), depth, length + 1)


def run_stack(tokens: Int[Array, " n"], length: Int[Array, ""]) -> tuple[Int[Array, " m"], Int[Array, ""]]:
    """Return the stack [n + 1], bottom first, and its height, after the first `length` of n tokens."""
    chex.assert_rank((tokens, length), (1, 0))

    def step(state: tuple[Array, Array], xs: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        stack, depth = state
        token, active = xs
        pops = token == POP
        bit = jnp.where(token >= PUSH_0, token - PUSH_0, token)
        pushed = stack.at[depth].set(jnp.where(pops, stack[depth], bit))
        new = (pushed, jnp.where(pops, jnp.maximum(depth - 1, 0), depth + 1))
        return jax.tree.map(lambda new, old: jnp.where(active, new, old), new, state), None

    size = tokens.shape[0]
    start = (jnp.zeros((size + 1,), jnp.int32), jnp.int32(0))
    return jax.lax.scan(step, start, (tokens, within(length, size)))[0]


@dataclasses.dataclass(frozen=True)
class ReverseString(StringTask):
    """The string from its last to its first token: 011010 -> 010110.

    Example:
      >>> ReverseString().solve(jnp.array([0, 1, 1]), 3).tolist()
      [1, 1, 0]
    """

    def solve(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, " O"]:
        """Return the string from its last to its first token."""
        return turned(x, length)


@dataclasses.dataclass(frozen=True)
class ModularArithmeticBrackets(Task):
    """Value mod 5 of a bracketed expression of + - *, grown as `expressions` says: ((-2)*(3+4)) -> 1.

    Tokens 0-4 are digits, 5-9 are + - * ( ). Token 10, x, is part of the published vocabulary and never occurs.

    Example:
      >>> ModularArithmeticBrackets().chance(5).token
      0.2
    """

    def alphabet(self) -> Alphabet:
        return Alphabet((*numbered(MODULUS), *SYMBOLS, "x"), numbered(MODULUS))

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return an expression of exactly `length` tokens, and its value mod 5."""
        tokens = expressions.expression(key, length, max_length, operators=3)
        return padded(tokens, length, expressions.value(tokens, length).reshape(1), 1)


@dataclasses.dataclass(frozen=True)
class SolveEquation(Task):
    """The digit behind x in `expression = value`, mod 5: (x-3)=4 -> 2.

    The expression has length - 2 tokens and only + and -, so that the solution is unique. x replaces the first digit
    at or after a uniform place, going round. Tokens 0-4 are digits, 5-10 are + - ( ) x =. Below length 3 all tokens
    and the answer are 0.

    Example:
      >>> SolveEquation().chance(7).token
      0.2
    """

    def alphabet(self) -> Alphabet:
        return Alphabet((*numbered(MODULUS), "+", "-", "(", ")", "x", "="), numbered(MODULUS))

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return an equation with one x, and the digit that x stands for."""
        for_expression, for_place = jax.random.split(key)
        body = jnp.maximum(length - 2, 1)
        tokens = expressions.expression(for_expression, body, max_length, operators=2)
        result = expressions.value(tokens, body)
        start = pick(for_place, 0, body - 1)
        place = jnp.arange(max_length, dtype=jnp.int32)
        far = jnp.where((tokens < MODULUS) & (place < body), (place - start) % body, max_length)
        hidden = jnp.argmin(far).astype(jnp.int32)
        written = jnp.where((tokens == OPEN) | (tokens == CLOSE), tokens - 1, tokens)
        written = jnp.where(place == hidden, MODULUS + 4, written)
        written = jnp.where(place == body, MODULUS + 5, jnp.where(place == body + 1, result, written))
        known = length >= 3
        answer = jnp.where(known, take(tokens, hidden), 0).reshape(1)
        return padded(jnp.where(known, written, 0), length, answer, 1)
