"""Positions computed from content: the `context` hook of one head, mapped over examples and heads.

    x[B,T,D], pos[T] or [B,T]  ->  [B,N,T] or [B,N,T,F]     per query head, where `per_head` names parameters
                                   [B,K,T] or [B,K,T,F]     per key head otherwise

The hook sees x[T,D] of one example, pos[T], and `past`, by which it sums over earlier tokens: a decoder goes on from the
position of the last token, and a document that is packed into a row starts anew. In a composition each part has positions of
its own.

Reference for such positions: Lin et al. 2025 (FoX, arXiv:2503.02130).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.base import PositionEncoding, Sizes, resolve
from attnjax.positions.checks import validate_tokens
from attnjax.positions.compose import Compose, each, parts_of
from attnjax.positions.indices import from_segments
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, Num, PyTree, compute_dtype


class Past(NamedTuple):
    """What came before the tokens of x, for one head.

    Attributes:
      state: the position of the token before the first, [] or [F]; zeros at the start of a sequence.
      place: [T], how many of the tokens of x before each one belong to its document.

    Example:
        >>> past = Past(jnp.array(10.0), jnp.array([0, 1, 0, 1]))  # the second document starts at the third token
        >>> past.sums(jnp.ones(4), past.state).tolist()
        [11.0, 12.0, 1.0, 2.0]
    """

    state: Float[Array, "*F"]
    place: Int[Array, " T"]

    def sums(self, x: Float[Array, "T *F"], start: Float[Array, "*F"]) -> Float[Array, "T *F"]:
        """Returns sum_{u <= t} x_u over the tokens of the document, plus `start` in the document that goes on from the past.

        The order of the additions depends on the place in the document alone: packing changes no bit.
        """
        chex.assert_shape(start, x.shape[1:])
        over = lambda condition: condition.reshape(-1, *(1,) * (x.ndim - 1))
        zero, step = jnp.zeros((), x.dtype), 1
        while step < x.shape[0]:
            earlier = jnp.pad(x[:-step], [(step, 0)] + [(0, 0)] * (x.ndim - 1))
            x = x + jnp.where(over(self.place >= step), earlier, zero)
            step *= 2
        return x + jnp.where(over(self._goes_on()), start[None].astype(x.dtype), zero)

    def windows(self, x: Float[Array, "T F"], before: Float[Array, "w F"]) -> Float[Array, "w+1 T F"]:
        """Returns x_(t-w), ..., x_t of every token t, for a convolution: zeros before its document, and `before` before x."""
        width, T = before.shape[0], x.shape[0]
        rows = jnp.concatenate([before.astype(x.dtype), x])
        inside = [(self._goes_on() | (self.place >= back))[:, None] for back in range(width, -1, -1)]
        return jnp.stack([jnp.where(seen, rows[i : i + T], jnp.zeros((), x.dtype)) for i, seen in enumerate(inside)])

    def _goes_on(self) -> Bool[Array, " T"]:
        """Whether a token belongs to the document of the first one, which may go on from the past."""
        return self.place == jnp.arange(self.place.shape[0], dtype=self.place.dtype)


def context_positions(
    encoding: PositionEncoding,
    params: PyTree,
    x: Float[Array, "B T D"],
    pos: Num[ArrayLike, "*B T"],
    sizes: Sizes,
    before: PyTree = None,
    *,
    valid: Bool[ArrayLike, "*B T"] | None = None,
    segments: Int[ArrayLike, "*B T"] | None = None,
    axis_name: str | None = None,
) -> PyTree:
    """Returns positions to pass to attention: those that `context` computes, and `pos` where an encoding has no such hook.

    Args:
        encoding: one encoding, or a composition, whose result is a tuple with the positions of each part.
        params: learned parameters, as `init` made them.
        x: the features that attention reads, [B, T, D].
        pos: positions of the tokens, [T] or [B, T].
        sizes: N and K heads.
        before: positions of the tokens before the first, [B, N] or [B, K] (and F), in a composition a tuple; zeros if None.
        valid: booleans, [T] or [B, T]; False marks padding, which counts as zeros, so that a convolution mixes none of it into
            the tokens beside it.
        segments: ids of the documents that are packed into a row, [T] or [B, T]; sums and convolutions start anew in each.
        axis_name: inside `jax.shard_map`, the mesh axis over which the tokens are spread, in their order. Each device goes on
            from the position of the last token of the device before, which takes as many rounds as there are devices.

    Raises ValueError for other shapes, for parameters that are missing, and where `context` returns another shape.

    Example:
        >>> from attnjax import RoPE, Sizes
        >>> sizes = Sizes(model=8, heads=2, kv_heads=2, head_dim=4)
        >>> context_positions(RoPE(), None, jnp.zeros((1, 3, 8)), jnp.arange(3), sizes).tolist()
        [0, 1, 2]
    """
    validate_tokens("context_positions", x, pos)
    if not encoding.has("context"):
        return pos
    if segments is not None and axis_name is not None:
        raise ValueError("context_positions: documents are packed into rows of one device, got segments and axis_name")
    B, T, _ = x.shape
    if valid is not None:
        x = jnp.where(jnp.broadcast_to(jnp.asarray(valid), (B, T))[..., None], x, jnp.zeros((), x.dtype))
    place = np.arange(T, dtype=np.int32) if segments is None else from_segments(segments)
    found = []
    parts = zip(parts_of(encoding), each("params", encoding, params), each("before", encoding, before), strict=True)
    for part, own, start in parts:
        if not part.has("context"):
            found.append(pos)
            continue
        run = functools.partial(_over_heads, part, resolve(part, own, sizes), x, pos, place, sizes)
        found.append(run(start) if axis_name is None else _over_devices(run, start, axis_name))
    return tuple(found) if isinstance(encoding, Compose) else found[0]


def _over_heads(
    part: PositionEncoding, p: dict, x: Array, pos: ArrayLike, place: ArrayLike, sizes: Sizes, before: Any
) -> Num[Array, "B N T *F"]:
    dtype, per_query_head = compute_dtype(x), bool(part.per_head)
    rows = sizes.heads if per_query_head else sizes.kv_heads
    wide = lambda leaf: jnp.asarray(leaf, dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    p = {name: jax.tree.map(wide, value) for name, value in p.items()}
    if per_query_head:
        # Every query head of a group reads the parameters of the key head that the group shares.
        p |= {name: jnp.repeat(p[name], rows // sizes.kv_heads, axis=0) for name in part.per_kv_head}
    by_head = {name: 0 if name in part.per_head + part.per_kv_head else None for name in p}

    def one(p: dict, x: Array, pos: ArrayLike, place: ArrayLike, state: Array) -> Array:
        found = part.context(p, x, pos, Past(state, jnp.asarray(place)))
        if found.shape != (x.shape[0], *state.shape):
            raise ValueError(
                f"{part}: the hook context must return positions {(x.shape[0], *state.shape)}; got {found.shape}"
            )
        return found.astype(dtype)

    state = (x.shape[0], rows, *part.features(sizes))
    before = jnp.zeros(state, dtype) if before is None else jnp.broadcast_to(before, state).astype(dtype)
    over_heads = jax.vmap(one, in_axes=(by_head, None, None, None, 0), axis_size=rows)
    of_row = lambda array: 0 if np.ndim(array) == 2 else None
    return jax.vmap(over_heads, in_axes=(None, 0, of_row(pos), of_row(place), 0))(p, x, pos, place, before)


def _over_devices(run: Callable[[Any], Array], before: Any, axis_name: str) -> Num[Array, "B N T *F"]:
    """`run` on every device, from the last position of the device before. After round r the first r + 1 devices are right.

    Only the first position of each device is kept of a round.
    """
    devices = jax.lax.axis_size(axis_name)
    if devices == 1:
        return run(before)
    found = jax.eval_shape(run, before)
    shape = (*found.shape[:2], *found.shape[3:])
    first = jnp.zeros(shape, found.dtype) if before is None else jnp.broadcast_to(before, shape).astype(found.dtype)
    first = jnp.where(jax.lax.axis_index(axis_name) == 0, first, jnp.zeros((), first.dtype))
    pairs = [(d, d + 1) for d in range(devices - 1)]

    @jax.checkpoint
    def one_round(start: Array) -> Array:
        # The first device receives zeros, because no device sends to it.
        return first + jax.lax.ppermute(run(start)[:, :, -1], axis_name, pairs)

    # Once before the loop, so that its first state varies over the axes of the mesh as its last one does.
    return run(jax.lax.scan(lambda start, _: (one_round(start), None), one_round(first), length=devices - 2)[0])
