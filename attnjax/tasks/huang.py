"""The eight tasks of Huang et al. 2025, with the distributions of their published generators.

    task                   input of `length` tokens                        answer
    binary_majority        bits, not as many 0s as 1s                      the more frequent bit
    majority               26 letters with one most frequent               that letter
    interleaved_majority   3 binary majorities, interleaved                the 3 answers, in order
    parity                 bits, the number of 1s uniform in 0 .. length   even or odd
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
import string
from typing import Any

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.checks import check_choice, check_count
from attnjax.tasks.digits import digit_count, joined, numeral, settle, turned
from attnjax.tasks.draws import between, distinct, draw, padded, pick, shuffled_ones, within
from attnjax.tasks.strings import StringTask
from attnjax.typing import Array, Int, Key

LETTERS = tuple(string.ascii_lowercase)
EVEN, ODD = 2, 3


def uneven_bits(key: Key[Array, ""], length: Int[Array, ""], size: int) -> tuple[Int[Array, " size"], Int[Array, ""]]:
    """Return shuffled bits and the more frequent one; the number of 0s is uniform in 0 .. length without length / 2."""
    chex.assert_rank((key, length), 0)
    bits = jax.random.bits(key, (size + 1,), jnp.uint32)
    even = (length + 1) % 2
    zeros = between(bits[0], 0, length - even)
    zeros = jnp.where((even == 1) & (2 * zeros >= length), zeros + 1, zeros)
    return shuffled_ones(bits[1:], length - zeros, length), (2 * zeros < length).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class BinaryMajority(Task):
    """The more frequent bit: 10110 -> 1. The number of 0s is uniform in 0 .. length, never a tie.

    Example:
      >>> BinaryMajority().answers(4)
      2
    """

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(2), numbered(2))

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return bits without a tie, and the more frequent one."""
        bits, answer = uneven_bits(key, length, max_length)
        return padded(bits, length, answer.reshape(1), 1)


@dataclasses.dataclass(frozen=True)
class Majority(Task):
    """The one most frequent of 26 letters: abcb -> b. Strings are uniform, drawn again while two letters tie.

    Example:
      >>> Majority().answers(2)
      26
    """

    def alphabet(self) -> Alphabet:
        return Alphabet(LETTERS, LETTERS)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return letters of which one is the most frequent, and that letter."""
        letters = jnp.arange(len(LETTERS), dtype=jnp.int32)
        real = within(length, max_length)

        def tied(state: tuple[Array, Array, Array]) -> Array:
            counts = state[2]
            return jnp.sum(counts == jnp.max(counts)) > 1

        def attempt(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            x = draw(jax.random.fold_in(key, state[0]), max_length, len(LETTERS))
            hits = (x[:, None] == letters[None, :]) & real[:, None]
            return state[0] + 1, x, jnp.sum(hits, axis=0, dtype=jnp.int32)

        start = (jnp.int32(0), jnp.zeros((max_length,), jnp.int32), jnp.zeros_like(letters))
        _, x, counts = jax.lax.while_loop(tied, attempt, start)
        return padded(x, length, jnp.argmax(counts).astype(jnp.int32).reshape(1), 1)


@dataclasses.dataclass(frozen=True)
class InterleavedMajority(Task):
    """`period` independent strings of binary_majority, written in turn, and their `period` answers.

    Every string has length // period bits, so the input has the largest multiple of `period` up to `length`. With `ranges`
    it has the nearest multiple that lies in the same range of lengths: 1 .. ranges, ranges + 1 .. 2 ranges, and so on. The
    published generator does so with ranges=50: a length of 101 gives 102 tokens, and 50 gives 48.

    Example:
      >>> InterleavedMajority(period=3).chance(9)
      Chance(token=0.5, exact=0.125)
      >>> [InterleavedMajority(ranges=50).bits(length) for length in (50, 100, 101)]
      [16, 33, 34]
    """

    period: int = 3
    ranges: int = 0

    def __post_init__(self) -> None:
        check_count("InterleavedMajority", period=self.period)
        check_count("InterleavedMajority", minimum=0, ranges=self.ranges)
        if 0 < self.ranges < self.period:
            raise ValueError(
                f"InterleavedMajority: ranges must be 0 or at least period={self.period}, got {self.ranges}"
            )

    def bits(self, length: Any) -> Any:
        """Return how many bits each string has; `length` may be traced."""
        if not self.ranges:
            return length // self.period
        nearest = (2 * length + self.period) // (2 * self.period)
        first = (length - 1) // self.ranges * self.ranges + 1
        # Multiples of the first and of the last length of the range.
        least, most = -(-first // self.period), (first + self.ranges - 1) // self.period
        return jnp.clip(nearest, least, most) if isinstance(length, jax.Array) else min(max(nearest, least), most)

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(2), numbered(2))

    def input_size(self, max_length: int) -> int:
        if not self.ranges:
            return max_length
        return self.period * max(map(self.bits, range(max(1, max_length - self.period), max_length + 1)))

    def output_size(self, max_length: int) -> int:
        return self.period

    @property
    def minimum_length(self) -> int:
        return self.period

    def answers(self, length: int) -> int:
        return 2**self.period

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return `period` strings of bits in turn, and the more frequent bit of each."""
        each, size = self.bits(length), self.input_size(max_length)
        keys = jax.random.split(key, self.period)
        bits, answers = jax.vmap(lambda key: uneven_bits(key, each, size // self.period))(keys)
        tokens = jnp.pad(bits.T.reshape(-1), (0, size % self.period))
        return padded(tokens, self.period * each, answers, self.period)


@dataclasses.dataclass(frozen=True)
class Parity(Task):
    """Whether the number of 1s is even or odd: 0111 -> odd.

    `ones="uniform"` draws the number of 1s uniformly in 0 .. length, then shuffles, as published; `"iid"` draws
    independent uniform bits, which is harder: strings with few 0s or few 1s become rare.

    Example:
      >>> Parity(ones="iid").chance(8)
      Chance(token=0.5, exact=0.5)
    """

    ones: str = "uniform"

    def __post_init__(self) -> None:
        check_choice("Parity", "ones", self.ones, ("uniform", "iid"))

    def alphabet(self) -> Alphabet:
        return Alphabet(numbered(2), ("0", "1", "even", "odd"))

    @property
    def token_chance(self) -> float:
        return 0.5

    def answers(self, length: int) -> int:
        return 2

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return bits, and whether the number of 1s is even or odd."""
        if self.ones == "uniform":
            bits = jax.random.bits(key, (max_length + 1,), jnp.uint32)
            count = between(bits[0], 0, length)
            x = shuffled_ones(bits[1:], count, length)
        else:
            x = draw(key, max_length, 2)
            count = jnp.sum(jnp.where(within(length, max_length), x, 0), dtype=jnp.int32)
        return padded(x, length, (EVEN + count % 2).reshape(1), 1)


@dataclasses.dataclass(frozen=True)
class UniqueCopy(Task):
    """The input again: 7 0 4 -> 7 0 4, for different tokens of 0 .. symbols - 1. No length beyond `symbols` exists.

    Example:
      >>> UniqueCopy(symbols=4).answers(2), UniqueCopy(symbols=4).maximum_length
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

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return different tokens, and the same tokens."""
        x = distinct(key, self.symbols)[:max_length]
        return padded(x, length, x, length)


@dataclasses.dataclass(frozen=True)
class Sort(UniqueCopy):
    """The input in ascending order: 7 0 4 -> 0 4 7, for different tokens of 0 .. symbols - 1.

    Example:
      >>> Sort(symbols=4).answers(2)
      6
    """

    def answers(self, length: int) -> int:
        return math.comb(self.symbols, length)

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return different tokens, and the same in ascending order."""
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
        """Return the string itself."""
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

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
        """Return two numbers in binary, and their sum."""
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
