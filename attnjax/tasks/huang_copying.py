"""The four tasks of Huang et al. 2025 with long answers, with the distributions of their published generators.

    task                   input of `length` tokens                        answer
    sort                   different tokens                                in ascending order
    unique_copy            different tokens                                the same tokens
    repeated_copy          two tokens, independent and uniform             the same tokens
    big_endian_addition    n + m in binary, highest bit first              n + m in binary, highest bit first

Reference: Huang et al. 2025, arXiv:2410.02140, and its repository lacoco-lab/length_generalization. There
a sequence is begin, input, separator, answer, stop, and lengths are uniform in the range of a split: up to 50 in
training, 51-100 and 101-150 in testing.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_count
from attnjax.tasks.digits import digit_count, joined, numeral, settle, turned
from attnjax.tasks.draws import distinct, padded, pick, within
from attnjax.tasks.strings import StringTask
from attnjax.typing import Array, Int, Key


@dataclasses.dataclass(frozen=True)
class UniqueCopy(Task):
    """The input again: 7 0 4 -> 7 0 4, for different tokens of 0 .. symbols - 1. No length beyond `symbols` exists.

    Example:
      >>> UniqueCopy(symbols=4).space(2), UniqueCopy(symbols=4).maximum_length
      (12, 4)
    """

    symbols: int = 150

    def __post_init__(self) -> None:
        check_count(type(self).__name__, symbols=self.symbols)

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(self.symbols), numbered(self.symbols))

    def output_size(self, max_length: int) -> int:
        return max_length

    @property
    def maximum_length(self) -> int:
        return self.symbols

    def answers(self, length: int) -> int:
        return math.perm(self.symbols, length)

    def space(self, length: int) -> int:
        return math.perm(self.symbols, length)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        x = distinct(key, self.symbols)[:max_length]
        return padded(x, length, x, length)


@dataclasses.dataclass(frozen=True)
class Sort(UniqueCopy):
    """The input in ascending order: 7 0 4 -> 0 4 7, for different tokens of 0 .. symbols - 1.

    Example:
      >>> Sort(symbols=4).space(2), Sort(symbols=4).answers(2)
      (12, 6)
    """

    def answers(self, length: int) -> int:
        return math.comb(self.symbols, length)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        x = distinct(key, self.symbols)[:max_length]
        return padded(x, length, jnp.sort(jnp.where(within(length, max_length), x, self.symbols)), length)


@dataclasses.dataclass(frozen=True)
class RepeatedCopy(StringTask):
    """The input again: abba -> abba, for independent uniform tokens.

    Example:
      >>> RepeatedCopy().solve(jnp.array([0, 1, 1, 0]), 4).tolist()
      [0, 1, 1, 0]
    """

    def solve(self, x: Int[Array, " I"], length: Int[Array, ""]) -> Int[Array, " O"]:
        return x


@dataclasses.dataclass(frozen=True)
class BigEndianAddition(Task):
    """n + m in binary, highest bit first, without leading zeros: 101 + 11 -> 1000.

    As published, `length` counts n, +, m and =, so the bits of n number uniform 1 .. length - 3 and those of m fill the
    rest. The = is the separator of the decoder form, not part of the input, which has length - 1 tokens.

    Example:
      >>> BigEndianAddition().minimum_length, BigEndianAddition().answers(4)
      (4, 3)
    """

    def alphabet(self) -> Alphabet:
        return Alphabet(("0", "1", "+"), numbered(2))

    def input_size(self, max_length: int) -> int:
        return max_length - 1

    def output_size(self, max_length: int) -> int:
        return max_length - 2

    @property
    def minimum_length(self) -> int:
        return 4

    def answers(self, length: int) -> int:
        """The sums of two numbers of so many bits fill a range; ranges of different splits overlap or leave gaps."""
        least = lambda bits: 0 if bits == 1 else 2 ** (bits - 1)
        splits = [(n, length - 2 - n) for n in range(1, length - 2)]
        ranges = sorted({(least(n) + least(m), 2**n + 2**m - 2) for n, m in splits})
        total, seen = 0, -1
        for low, high in ranges:
            total += max(0, high - max(low, seen + 1) + 1)
            seen = max(seen, high)
        return total

    def space(self, length: int) -> int:
        numbers = lambda bits: 2 if bits == 1 else 2 ** (bits - 1)
        return sum(numbers(n) * numbers(length - 2 - n) for n in range(1, length - 2))

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        for_split, for_n, for_m = jax.random.split(key, 3)
        first = pick(for_split, 1, length - 3)
        second = length - 2 - first
        size = max_length - 2
        n, m = numeral(for_n, first, size, base=2), numeral(for_m, second, size, base=2)
        plus = jnp.full((1,), 2, jnp.int32)
        tokens, _ = joined((turned(n, first), first), (plus, 1), (turned(m, second), second), size=max_length - 1)
        total = settle(n + m, base=2)
        count = digit_count(total)
        return padded(tokens, length - 1, turned(total, count), count)
