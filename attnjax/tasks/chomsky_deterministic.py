"""The four deterministic context-free tasks of Deletang et al. 2023 and Ruoss et al. 2023: a stack solves them.

    task                          input                                    answer
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
from attnjax.tasks.expressions import CLOSE, MODULUS, OPEN, SYMBOLS, count_expressions
from attnjax.tasks.strings import StringTask
from attnjax.typing import Array, Int, Key

POP, PUSH_0 = 2, 3


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

    def space(self, length: int) -> int:
        return sum(2**bits * 3 ** (length - bits) for bits in range(1, max(length, 2)))

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
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
        return turned(x, length)


@dataclasses.dataclass(frozen=True)
class ModularArithmeticBrackets(Task):
    """Value mod 5 of a bracketed expression of + - *, grown as `expressions` says: ((-2)*(3+4)) -> 1.

    Tokens 0-4 are digits, 5-9 are + - * ( ). Token 10, x, is part of the published vocabulary and never occurs.

    Example:
      >>> ModularArithmeticBrackets().space(5)
      75
    """

    def alphabet(self) -> Alphabet:
        return Alphabet((*numbered(MODULUS), *SYMBOLS, "x"), numbered(MODULUS))

    def space(self, length: int) -> int:
        return count_expressions(length, operators=3)[0]

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        tokens = expressions.expression(key, length, max_length, operators=3)
        return padded(tokens, length, expressions.value(tokens, length).reshape(1), 1)


@dataclasses.dataclass(frozen=True)
class SolveEquation(Task):
    """The digit behind x in `expression = value`, mod 5: (x-3)=4 -> 2.

    The expression has length - 2 tokens and only + and -, so that the solution is unique. x replaces the first digit
    at or after a uniform place, going round. Tokens 0-4 are digits, 5-10 are + - ( ) x =. Below length 3 all tokens
    and the answer are 0.

    Example:
      >>> SolveEquation().space(7)
      100
    """

    def alphabet(self) -> Alphabet:
        return Alphabet((*numbered(MODULUS), "+", "-", "(", ")", "x", "="), numbered(MODULUS))

    def space(self, length: int) -> int:
        return 1 if length < 3 else count_expressions(length - 2, operators=2)[1]

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
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
