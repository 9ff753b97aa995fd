"""Random bracketed expressions mod 5 and their values, on the device, one token per step of a scan.

The grammar of Deletang et al. 2023: an expression of length 1 is a digit d, of length 2 `-d`, of length 3 `(d)`, of
length 4 `(-d)`, and of length l >= 5 `(` left op right `)`, with the length of `left` uniform in 1 .. l - 4. Brackets
make it context-free, so writing it left to right needs a stack: its items are tokens still to write, or lengths still
to expand. Every node begins at a token of its own, so one draw per token serves all of its choices.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from attnjax.tasks.draws import draw
from attnjax.typing import Array, Bool, Int, Key

MODULUS = 5
PLUS, MINUS, TIMES, OPEN, CLOSE = range(MODULUS, MODULUS + 5)
SYMBOLS = ("+", "-", "*", "(", ")")


class _Pending(NamedTuple):
    """What is still to write: `items[depth - 1]` first. A token is stored as -token, an expression as its length."""

    items: Int[Array, " n"]
    depth: Int[Array, ""]


class _Frames(NamedTuple):
    """One frame per open bracket: the value so far and the operator that waits for its right side."""

    value: Int[Array, " n"]
    operator: Int[Array, " n"]
    depth: Int[Array, ""]
    operand: Bool[Array, ""]
    negative: Bool[Array, ""]


def expression(key: Key[Array, ""], length: Int[Array, ""], size: int, operators: int) -> Int[Array, " size"]:
    """Return a random expression of `length` tokens, padded with 0; `operators` is 2 for + and -, 3 for + - and *."""
    chex.assert_rank((key, length), 0)
    for_digit, for_operator, for_split = jax.random.split(key, 3)
    choices = (
        draw(for_digit, size, MODULUS),
        PLUS + draw(for_operator, size, operators),
        jax.random.bits(for_split, (size,), jnp.uint32),
    )
    start = _Pending(jnp.zeros((size + 4,), jnp.int32).at[0].set(length), jnp.int32(1))
    return jax.lax.scan(_write, start, choices)[1]


def _write(state: _Pending, choice: tuple[Array, Array, Array]) -> tuple[_Pending, Int[Array, ""]]:
    """Take the topmost item; write the first token of it and put back what follows that token."""
    digit, operator, bits = choice
    top = jnp.where(state.depth > 0, state.items[state.depth - 1], 0)
    ways = jnp.maximum(top - 4, 1).astype(jnp.uint32)
    # The remainder of 32 random bits favours small splits by less than `ways` in 2^32.
    left = 1 + (bits % ways).astype(jnp.int32)
    inside = jnp.stack([jnp.int32(-CLOSE), top - 3 - left, -operator, left])
    short = jnp.stack([jnp.int32(-CLOSE), top - 2, jnp.int32(0), jnp.int32(0)])
    single = jnp.array([1, 0, 0, 0], jnp.int32)
    follow = jnp.where(top >= 5, inside, jnp.where(top >= 3, short, single))
    count = jnp.where(top >= 5, 4, jnp.where(top >= 3, 2, jnp.where(top == 2, 1, 0)))
    token = jnp.where(top >= 3, OPEN, jnp.where(top == 2, MINUS, jnp.where(top == 1, digit, -top)))
    items = jax.lax.dynamic_update_slice(state.items, follow, (state.depth - 1,))
    return _Pending(items, jnp.maximum(state.depth - 1, 0) + count), token


def value(tokens: Int[Array, " size"], length: Int[Array, ""]) -> Int[Array, ""]:
    """Return the value mod 5 of the expression in the first `length` tokens."""
    chex.assert_rank((tokens, length), (1, 0))
    size = tokens.shape[0]
    zeros = jnp.zeros((size + 1,), jnp.int32)
    start = _Frames(zeros, zeros + PLUS, jnp.int32(0), jnp.bool_(True), jnp.bool_(False))
    inside = jnp.arange(size, dtype=jnp.int32) < length
    frames, _ = jax.lax.scan(_read, start, (tokens, inside))
    return frames.value[0] % MODULUS


def _read(frames: _Frames, xs: tuple[Array, Array]) -> tuple[_Frames, None]:
    """Brackets open and close frames, a minus is a sign where an operand is due, a finished value joins its frame."""
    token, inside = xs
    digit, opens, closes = token < MODULUS, token == OPEN, token == CLOSE
    sign = (token == MINUS) & frames.operand
    operator = ~(digit | opens | closes | sign)
    number = jnp.where(digit, jnp.where(frames.negative, -token, token), frames.value[frames.depth])
    depth = frames.depth + jnp.where(opens, 1, jnp.where(closes, -1, 0))
    joined = _apply(frames.operator[depth], frames.value[depth], number)
    old = frames.value[depth]
    result = jnp.where(opens, 0, jnp.where(digit | closes, joined, old))
    waiting = jnp.where(opens, PLUS, jnp.where(operator, token, frames.operator[depth]))
    new = _Frames(
        frames.value.at[depth].set(result),
        frames.operator.at[depth].set(waiting),
        depth,
        opens | operator | sign,
        sign,
    )
    return jax.tree.map(lambda new, old: jnp.where(inside, new, old), new, frames), None


def _apply(operator: Int[Array, ""], left: Int[Array, ""], right: Int[Array, ""]) -> Int[Array, ""]:
    results = jnp.where(operator == PLUS, left + right, jnp.where(operator == MINUS, left - right, left * right))
    return results % MODULUS
