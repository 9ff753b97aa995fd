"""Integers of any size on the device: arrays of digits, one per entry, least significant first.

A carry needs no loop over the digits. In a column of sum s, of two digits of base b, a carry leaves where s >= b
whatever comes in, none leaves where s < b - 1, and where s = b - 1 the incoming one is passed on. So the carry out of
a place is decided by the last place up to it with s != b - 1, which a running maximum finds.
"""

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.draws import between, draw, take, within
from attnjax.typing import Array, Bool, Int, Key


def carry_out(columns: Int[Array, " n"], base: int) -> Bool[Array, " n"]:
    """Return whether each column, of value 0 .. 2 base - 2, carries into the next."""
    chex.assert_rank(columns, 1)
    place = jnp.arange(columns.shape[0], dtype=jnp.int32)
    decided = jax.lax.cummax(jnp.where(columns != base - 1, place, -1))
    return (decided >= 0) & (take(columns, decided) >= base)


def settle(columns: Int[Array, " n"], base: int) -> Int[Array, " n"]:
    """Return the digits of a number given by columns of value 0 .. 2 base - 2; a carry out of the last one is lost.

    Example:
      >>> settle(jnp.array([9, 18, 0]), base=10).tolist()
      [9, 8, 1]
    """
    return (columns + shifted(carry_out(columns, base).astype(jnp.int32))) % base


def shifted(x: Int[Array, " n"], places: int = 1) -> Int[Array, " n"]:
    """Return x * base**places, truncated to the same number of digits."""
    return jnp.concatenate([jnp.zeros((places,), x.dtype), x])[: x.shape[0]]


def multiply(a: Int[Array, " n"], b: Int[Array, " n"]) -> Int[Array, " n"]:
    """Return the product of two binary numbers, truncated to their number of digits n."""
    chex.assert_equal_shape((a, b))
    chex.assert_rank(a, 1)

    def add_row(state: tuple[Array, Array], bit: Int[Array, ""]) -> tuple[tuple[Array, Array], None]:
        row, total = state
        return (shifted(row), total + bit * row), None

    (_, columns), _ = jax.lax.scan(add_row, (b, jnp.zeros_like(b)), a)
    most = a.shape[0]
    while most > 2:
        columns, most = columns % 2 + shifted(columns // 2), 1 + most // 2
    return settle(columns, base=2)


def square_root(bits: Int[Array, " n"], length: Int[Array, ""]) -> Int[Array, " m"]:
    """Return the floor of the square root of the first `length` bits, m = ceil(n / 2); here the highest bit comes first.

    By hand: take two bits at a time; the next bit of the root is 1 where 4 root + 1 still fits into the remainder.
    """
    chex.assert_rank((bits, length), (1, 0))
    pairs = (bits.shape[0] + 1) // 2
    index = 2 * jnp.arange(pairs, dtype=jnp.int32) - length % 2
    high = jnp.where(index < 0, 0, take(bits, index))

    def next_bit(state: tuple[Array, Array], pair: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        """Return root and rest after the next pair of bits, and the next bit of the root."""
        root, rest = state
        rest = shifted(rest, 2).at[:2].set(jnp.stack(pair))
        trial = shifted(root, 2).at[0].set(1)
        # rest - trial = rest + not(trial) + 1, and the carry out of the top says that nothing was borrowed.
        columns = jnp.concatenate([jnp.full((1,), 2, rest.dtype), rest + 1 - trial])
        fits = carry_out(columns, base=2)[-1]
        rest = jnp.where(fits, settle(columns, base=2)[1:], rest)
        bit = fits.astype(jnp.int32)
        return (shifted(root).at[0].set(bit), rest), bit

    zero = jnp.zeros((pairs + 2,), jnp.int32)
    _, root = jax.lax.scan(next_bit, (zero, zero), (take(bits, index + 1), high))
    return root


def digit_count(digits: Int[Array, " n"]) -> Int[Array, ""]:
    """Return how many digits a number has without leading zeros; 1 for the number 0."""
    chex.assert_rank(digits, 1)
    place = jnp.arange(digits.shape[0], dtype=jnp.int32)
    return jnp.max(jnp.where(digits > 0, place, 0)) + 1


def turned(x: Int[Array, " n"], length: Int[Array, ""]) -> Int[Array, " n"]:
    """Return the first `length` entries from the last to the first; entries behind them are undefined."""
    chex.assert_rank(x, 1)
    return take(x, length - 1 - jnp.arange(x.shape[0], dtype=jnp.int32))


def numeral(key: Key[Array, ""], length: Int[Array, ""], size: int, base: int) -> Int[Array, " size"]:
    """Return a uniform number of exactly `length` digits: its highest digit is 0 only where it is the only one."""
    chex.assert_rank((key, length), 0)
    place = jnp.arange(size, dtype=jnp.int32)
    bits = jax.random.bits(key, (size + 1,), jnp.uint32)
    highest = between(bits[0], jnp.where(length > 1, 1, 0), base - 1)
    digits = (bits[1:] % jnp.uint32(base)).astype(jnp.int32)
    return jnp.where(place == length - 1, highest, jnp.where(place < length, digits, 0))


def positive_bits(key: Key[Array, ""], length: Int[Array, ""], size: int) -> Int[Array, " size"]:
    """Return `length` bits, uniform among those that are not all 0."""
    chex.assert_rank((key, length), 0)

    def attempt(state: tuple[Array, Array]) -> tuple[Array, Array]:
        bits = draw(jax.random.fold_in(key, state[0]), size, 2)
        return state[0] + 1, jnp.where(within(length, size), bits, 0)

    start = (jnp.int32(0), jnp.zeros((size,), jnp.int32))
    return jax.lax.while_loop(lambda state: ~jnp.any(state[1] > 0), attempt, start)[1]


def joined(
    *parts: tuple[Int[Array, " _"], Int[Array, ""] | int], size: int
) -> tuple[Int[Array, " size"], Int[Array, ""]]:
    """Return the first `length` entries of each (tokens, length), concatenated and padded to `size`, and their number."""
    chex.assert_rank([tokens for tokens, _ in parts], 1)
    place = jnp.arange(size, dtype=jnp.int32)
    out, start = jnp.zeros((size,), jnp.int32), jnp.int32(0)
    for tokens, length in parts:
        inside = (place >= start) & (place < start + length)
        out = jnp.where(inside, take(tokens, place - start), out)
        start = start + jnp.int32(length) if isinstance(length, int) else start + length
    return out, start
