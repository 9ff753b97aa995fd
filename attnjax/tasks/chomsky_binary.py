"""The three tasks on binary numbers of Deletang et al. 2023 and Ruoss et al. 2023, which are context-sensitive.

    task                       input                             answer
    binary_addition            n + m, lowest bit first           n + m, lowest bit first
    binary_multiplication      n * m, lowest bit first           n m, lowest bit first
    compute_sqrt               n, highest bit first              floor of the square root, highest bit first

`length` is the number of input tokens; numbers may have hundreds of bits. References: arXiv:2207.02098; arXiv:2305.16843.
"""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.base import Alphabet, Example, Task, numbered
from attnjax.tasks.digits import digit_count, joined, multiply, positive_bits, settle, square_root
from attnjax.tasks.draws import between, ended, padded
from attnjax.typing import Array, Int, Key

SEPARATOR = 2


@dataclasses.dataclass(frozen=True)
class BinaryAddition(Task):
    """n + m with the lowest bit first: 001 + 01101 -> 01011, then `end`, then zeros up to length + 1, which do not
    count.

    The bits of n number uniform 1 .. length - 2, those of m fill the rest; n and m are uniform among the positive
    numbers of so many bits, high zeros kept; the sum has none. Below length 3 the input is one number, uniform in 0
    .. 2^length - 2, and so is the answer. Chance is published as 1/2 per token.

    Example:
      >>> BinaryAddition().space(4), BinaryAddition().output_size(4)
      (6, 5)
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

    def space(self, length: int) -> int:
        if length < 3:
            return 2**length - 1
        return sum((2**n - 1) * (2 ** (length - 1 - n) - 1) for n in range(1, length - 1))

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
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

    def space(self, length: int) -> int:
        return 2**length - 1

    def example(self, key: Key[Array, ""], length: Int[Array, ""], max_length: int) -> Example:
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
