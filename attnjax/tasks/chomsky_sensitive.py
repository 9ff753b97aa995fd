"""The context-sensitive tasks of Deletang et al. 2023 and Ruoss et al. 2023: a bounded tape solves them.

    task                       input                             answer
    duplicate_string           0 1                               the string twice
    missing_duplicate_string   a string twice, with one hole     the token that belongs into the hole
    odds_first                 0 1                               tokens 1, 3, 5, ..., then tokens 0, 2, 4, ... (from 0)
    bucket_sort                0 1 2 3 4                         the tokens in ascending order
    binary_addition            n + m, lowest bit first           n + m, lowest bit first
    binary_multiplication      n * m, lowest bit first           n m, lowest bit first
    compute_sqrt               n, highest bit first              floor of the square root, highest bit first

`length` is the number of input tokens; numbers may have hundreds of bits. References: arXiv:2207.02098; arXiv:2305.16843.
"""

import dataclasses
import math
from typing import Any

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.digits import digit_count, joined, multiply, positive_bits, settle, square_root
from attnjax.tasks.draws import between, draw, ended, padded, pick, take, within
from attnjax.tasks.strings import StringTask
from attnjax.typing import Array, Int, Key

HOLE, PAD = 2, 3
SEPARATOR = 2


@dataclasses.dataclass(frozen=True)
class DuplicateString(StringTask):
    """The string twice: 101 -> 101101.

    Example:
      >>> DuplicateString().solve(jnp.array([1, 0, 1]), 3).tolist()
      [1, 0, 1, 1, 0, 1]
    """

    def answer_length(self, length: Any) -> Any:
        return 2 * length

    def solve(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, " O"]:
        """Return the string twice."""
        return take(x, jnp.arange(2 * x.shape[0], dtype=jnp.int32) % length)


@dataclasses.dataclass(frozen=True)
class MissingDuplicateString(Task):
    """The bit at the hole of a string written twice: 0110 0 hole 10 -> 1.

    A string of length // 2 uniform bits, twice; one uniform place of the two copies is a hole (2). An odd length ends
    in a pad (3). Length 1 is the constant 1 with the answer 1.

    Example:
      >>> MissingDuplicateString().alphabet().inputs
      ('0', '1', 'hole', 'pad')
    """

    def alphabet(self) -> Alphabet:
        return Alphabet(("0", "1", "hole", "pad"), numbered(2))

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return a string twice with one hole, and the bit that belongs there."""
        for_bits, for_hole = jax.random.split(key)
        half = jnp.maximum(length // 2, 1)
        place = jnp.arange(max_length, dtype=jnp.int32)
        twice = take(draw(for_bits, (max_length + 1) // 2, 2), place % half)
        hole = pick(for_hole, 0, 2 * half - 1)
        tokens = jnp.where(place == hole, HOLE, jnp.where(place < 2 * half, twice, PAD))
        tokens = jnp.where(length == 1, 1, tokens)
        return padded(tokens, length, jnp.where(length == 1, 1, twice[hole % half]).reshape(1), 1)


@dataclasses.dataclass(frozen=True)
class OddsFirst(StringTask):
    """Tokens at odd places, counted from 0, then those at even places: 00110101 -> 01110100.

    The published code does this; its docstring names the two halves the other way round.

    Example:
      >>> OddsFirst().solve(jnp.array([0, 0, 1, 1, 0, 1]), 6).tolist()
      [0, 1, 1, 0, 1, 0]
    """

    def solve(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, " O"]:
        """Return the tokens at odd places, then those at even places."""
        place = jnp.arange(x.shape[0], dtype=jnp.int32)
        odds = length // 2
        return take(x, jnp.where(place < odds, 2 * place + 1, 2 * (place - odds)))


@dataclasses.dataclass(frozen=True)
class BucketSort(StringTask):
    """The tokens in ascending order: 10204112 -> 00111224.

    Example:
      >>> BucketSort().solve(jnp.array([1, 0, 2, 0, 4]), 5).tolist()
      [0, 0, 1, 2, 4]
    """

    symbols: int = 5

    def answers(self, length: int) -> int:
        return math.comb(length + self.symbols - 1, length)

    def solve(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, " O"]:
        """Return the tokens in ascending order."""
        return jnp.sort(jnp.where(within(length, x.shape[0]), x, self.symbols))


@dataclasses.dataclass(frozen=True)
class BinaryAddition(Task):
    """n + m with the lowest bit first: 001 + 01101 -> 01011, then `end`, then zeros up to length + 1, which do not
    count.

    The bits of n number uniform 1 .. length - 2, those of m fill the rest; n and m are uniform among the positive
    numbers of so many bits, high zeros kept; the sum has none. Below length 3 the input is one number, uniform in 0
    .. 2^length - 2, and so is the answer. Chance is published as 1/2 per token.

    Example:
      >>> BinaryAddition().answers(4), BinaryAddition().output_size(4)
      (3, 5)
    """

    def alphabet(self) -> Alphabet:
        return Alphabet(("0", "1", "+"), ("0", "1", "end"))

    def output_size(self, max_length: int) -> int:
        return max_length + 1

    @property
    def token_chance(self) -> float:
        return 0.5

    def answers(self, length: int) -> int:
        return 2**length - 1 if length < 3 else 2 ** (length - 2) - 1

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return two numbers with the lowest bit first, and the bits of their sum."""
        tokens, n, m = operands(key, length, max_length)
        total = settle(jnp.pad(n + m, (0, 1)), base=2)
        return ended(tokens, length, total, digit_count(total), length + 1)


@dataclasses.dataclass(frozen=True)
class BinaryMultiplication(BinaryAddition):
    """n m with the lowest bit first: 001 * 01101 -> 0001101, then `end`, then zeros up to length, which do not count.

    Operands as in binary_addition. Below length 3 the answer is length - 1 zeros. `answers` counts the products by 1
    alone: others also occur.

    Example:
      >>> BinaryMultiplication().alphabet().outputs
      ('0', '1', 'end')
    """

    def alphabet(self) -> Alphabet:
        return Alphabet(("0", "1", "*"), ("0", "1", "end"))

    def output_size(self, max_length: int) -> int:
        return max_length

    def answers(self, length: int) -> int:
        return 1 if length < 3 else 2 ** (length - 2) - 1

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return two numbers with the lowest bit first, and the bits of their product."""
        tokens, n, m = operands(key, length, max_length)
        product = multiply(n, m)
        return ended(tokens, length, product, jnp.minimum(digit_count(product), length - 1), length)


@dataclasses.dataclass(frozen=True)
class ComputeSqrt(Task):
    """Floor of the square root of a number uniform in 1 .. 2^length - 1, highest bit first: 100101 -> 110 (37 -> 6).

    The answer has ceil(length / 2) bits, high zeros kept.

    Example:
      >>> ComputeSqrt().answers(6), ComputeSqrt().output_size(6)
      (7, 3)
    """

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(2), numbered(2))

    def output_size(self, max_length: int) -> int:
        return (max_length + 1) // 2

    def answers(self, length: int) -> int:
        return math.isqrt(2**length - 1)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return the bits of a number, and those of the floor of its square root."""
        bits = positive_bits(key, length, max_length)
        return padded(bits, length, square_root(bits, length), (length + 1) // 2)


def operands(key: Key[Array, ""], length: Int[Array, ""], size: int) -> tuple[Array, Array, Array]:
    """Return the tokens `n separator m`, the bits of n and the bits of m; below length 3 the bits of n alone, and m = 0."""
    chex.assert_rank((key, length), 0)
    for_split, for_n, for_m = jax.random.split(key, 3)
    bits = jax.random.bits(for_split, (), jnp.uint32)
    split = between(bits, 1, jnp.maximum(length - 2, 1))
    n, m = positive_bits(for_n, split, size), positive_bits(for_m, jnp.maximum(length - 1 - split, 1), size)
    tokens, _ = joined((n, split), (jnp.full((1,), SEPARATOR, jnp.int32), 1), (m, length - 1 - split), size=size)
    number = between(bits, 0, jnp.where(length == 1, 0, 2))
    place = jnp.arange(size, dtype=jnp.int32)
    alone = jnp.where(place < 2, (number >> jnp.minimum(place, 1)) & 1, 0)
    short = length < 3
    return jnp.where(short, alone, tokens), jnp.where(short, alone, n), jnp.where(short, 0, m)
