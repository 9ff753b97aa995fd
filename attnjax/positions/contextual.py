"""Positions computed from content: the `context` hook of one head, mapped over batches and heads.

    x[B,T,D], pos[T] or [B,T]  ->  [B,N,T] or [B,N,T,F]     per query head
                                   [B,K,T] or [B,K,T,F]     per key head, where the encoding has `map_k`

The hook sees x[T,D] of one example, pos[T], and `before`, the position [] or [F] of the token before the first, so that a
decoder goes on where it was. In a composition each part has positions of its own.

Reference for such positions: Lin et al. 2025 (FoX, arXiv:2503.02130); Golovneva et al. 2024 (CoPE, arXiv:2405.18719).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Trait, learns, resolve
from attnjax.positions.checks import validate_tokens
from attnjax.positions.compose import BY_HEAD, Compose, repeated
from attnjax.typing import Array, ArrayLike, Bool, Float, Num, PyTree, compute_dtype


def context_positions(
    encoding: PositionEncoding,
    params: EncodingParams | None,
    x: Float[Array, "B T D"],
    pos: Num[ArrayLike, "*B T"],
    sizes: Sizes,
    before: PyTree = None,
    *,
    valid: Bool[ArrayLike, "*B T"] | None = None,
    axis_name: str | None = None,
) -> PyTree:
    """Positions to pass to attention: those that `context` computes, and `pos` where an encoding has no such hook.

    Args:
        encoding: one encoding, or a composition, whose result is a tuple with the positions of each part.
        params: learned parameters, as `init` made them.
        x: what attention reads.
        pos: positions of the tokens, [T] or [B, T].
        sizes: N and K heads.
        before: positions of the tokens before the first, [B, N] or [B, K] (and F), in a composition a tuple; zeros if None.
        valid: booleans, [T] or [B, T]; False marks padding, which counts as zeros, so that a convolution mixes none of it into
            the tokens beside it.
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
    if Trait.CONTEXT not in encoding.traits:
        return pos
    if valid is not None:
        x = jnp.where(jnp.broadcast_to(valid, x.shape[:2])[..., None], x, jnp.zeros((), x.dtype))
    if isinstance(encoding, Compose):
        parts = encoding.each(params or EncodingParams())
        starts = (None,) * len(parts) if before is None else before
        return tuple(
            context_positions(part, own, x, pos, sizes, start, axis_name=axis_name)
            for (part, own), start in zip(parts, starts, strict=True)
        )
    if learns(encoding) and not jax.tree.leaves(params):
        raise ValueError(f"{encoding} learns parameters: pass params=encoding.init(key, sizes), got params={params}")
    run = functools.partial(_over_heads, encoding, resolve(encoding, params, sizes), x, pos, sizes)
    return run(before) if axis_name is None else _over_devices(run, before, axis_name)


def _over_devices(run: Callable[[Any], Array], before: Any, axis_name: str) -> Num[Array, "B N T *F"]:
    """`run` on every device, from the last position of the device before. After round r the first r + 1 devices are right.

    Where a device begins is all that is kept of a round.
    """
    devices = jax.lax.axis_size(axis_name)
    if devices == 1:
        return run(before)
    found = jax.eval_shape(run, before)
    shape = (*found.shape[:2], *found.shape[3:])
    first = jnp.zeros(shape, found.dtype) if before is None else jnp.broadcast_to(before, shape).astype(found.dtype)
    first = jnp.where(jax.lax.axis_index(axis_name) == 0, first, 0)
    pairs = [(d, d + 1) for d in range(devices - 1)]

    @jax.checkpoint
    def one_round(start: Array) -> Array:
        # A device that nobody sends to, the first, receives zeros.
        return first + jax.lax.ppermute(run(start)[:, :, -1], axis_name, pairs)

    # Once before the loop, so that what it begins with varies over the axes of the mesh as what it ends with does.
    return run(jax.lax.scan(lambda start, _: (one_round(start), None), one_round(first), length=devices - 2)[0])


def _over_heads(
    encoding: PositionEncoding, p: EncodingParams, x: Array, pos: ArrayLike, sizes: Sizes, before: Any
) -> Num[Array, "B N T *F"]:
    heads = sizes.heads
    if Trait.MAP_K in encoding.traits:
        p, heads = p._replace(head=()), sizes.kv_heads
    else:
        # Every query head of a group reads the parameters of the key head that the group shares.
        p = p._replace(kv_head=repeated(p.kv_head, heads))
    if before is None:
        features = _features(encoding, p, x, pos)
        before = jnp.zeros((x.shape[0], heads, *features), compute_dtype(x))

    def one(p: EncodingParams, x: Array, pos: ArrayLike, before: Array) -> Array:
        found = encoding.context(p, x, pos, before)
        _check_shape(encoding, found, x.shape[0])
        return found

    over_heads = jax.vmap(one, in_axes=(BY_HEAD, None, None, 0), axis_size=heads)
    return jax.vmap(over_heads, in_axes=(None, 0, 0 if pos.ndim == 2 else None, 0))(p, x, pos, before)


def _features(encoding: PositionEncoding, p: EncodingParams, x: Array, pos: ArrayLike) -> tuple[int, ...]:
    """() or (F,), from a trace of the hook that computes nothing."""
    first = p._replace(**{side: jax.tree.map(lambda leaf: leaf[0], getattr(p, side)) for side in ("head", "kv_head")})
    zero = jnp.zeros((1,) if Trait.AXES in encoding.traits else (), compute_dtype(x))
    found = jax.eval_shape(lambda x, pos: encoding.context(first, x, pos, zero), x[0], pos if pos.ndim == 1 else pos[0])
    _check_shape(encoding, found, x.shape[1])
    return found.shape[1:]


def _check_shape(encoding: PositionEncoding, found: Any, T: int) -> None:
    axes = Trait.AXES in encoding.traits
    came = jnp.shape(found)
    if len(came) != 1 + axes or came[0] != T:
        allowed = (
            f"[T, F] = ({T}, F), because it has Trait.AXES" if axes else f"[T] = ({T},), or [T, F] with Trait.AXES"
        )
        raise ValueError(f"{encoding}: the hook context must return positions of shape {allowed}; got {came}")
