"""Four context-sensitive tasks of Deletang et al. 2023 and Ruoss et al. 2023: a bounded tape solves them.

    task                       input                             answer
    duplicate_string           0 1                               the string twice
    missing_duplicate_string   a string twice, with one hole     the token that belongs into the hole
    odds_first                 0 1                               tokens 1, 3, 5, ..., then tokens 0, 2, 4, ... (from 0)
    bucket_sort                0 1 2 3 4                         the tokens in ascending order

`length` is the number of input tokens. References: arXiv:2207.02098; arXiv:2305.16843.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.draws import draw, padded, pick, take, within
from attnjax.tasks.strings import StringTask
from attnjax.typing import Array, Int, Key

HOLE, PAD = 2, 3


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
        return take(x, jnp.arange(2 * x.shape[0], dtype=jnp.int32) % length)


@dataclasses.dataclass(frozen=True)
class MissingDuplicateString(Task):
    """The bit at the hole of a string written twice: 0110 0 hole 10 -> 1.

    A string of length // 2 uniform bits, twice; one uniform place of the two copies is a hole (2). An odd length ends
    in a pad (3). Length 1 is the constant 1 with the answer 1.

    Example:
      >>> MissingDuplicateString().space(4)
      16
    """

    def alphabet(self) -> Alphabet:
        return Alphabet(("0", "1", "hole", "pad"), numbered(2))

    def space(self, length: int) -> int:
        half = length // 2
        return 2 * half * 2**half if half else 1

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
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
        return jnp.sort(jnp.where(within(length, x.shape[0]), x, self.symbols))
