"""Positions of queries or keys, with the axes that they have: of the batch, of heads, and of coordinates.

What a caller may pass, and how it is kept:

    [n]                       one row for all examples and heads; NumPy arrays stay so, because their values are known
    [B, n]                    a row per example
    [B, N, n] or [B, K, n]    a row per query head, or per key head; kept as [B, K, G, n] or [B, K, n]
    [..., n, A]               the same with A coordinates each, where the encoding has `Trait.AXES`; without the last axis
                              every coordinate is the same, as for the tokens of a text. Where B = n = A, a square may be
                              [B, n] or [n, A], and is refused

A composition takes one array for all of its parts, or a tuple with those of each.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.base import PositionEncoding, Trait
from attnjax.positions.checks import INT32, validate_range
from attnjax.positions.compose import Compose
from attnjax.positions.concrete import concrete
from attnjax.typing import ArrayLike, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Positions:
    """One array of positions; `axes` is 1 where its last axis is that of coordinates, and 0 otherwise."""

    # In trees of axes and of gradients an int or None stands in its place.
    values: Any
    axes: int = dataclasses.field(default=0, metadata={"static": True})

    @property
    def lead(self) -> int:
        """How many of the axes B, K, G come before the tokens."""
        return np.ndim(self.values) - 1 - self.axes

    @property
    def along(self) -> int:
        """The axis of the tokens."""
        return self.lead


def is_positions(node: Any) -> bool:
    """Whether a node of a tree is one array of positions."""
    return isinstance(node, Positions)


def each(f: Callable[[Positions], Any], pos: PyTree) -> PyTree:
    """f of every array of positions."""
    return jax.tree.map(f, pos, is_leaf=is_positions)


def arrays(pos: PyTree) -> PyTree:
    """The positions as hooks take them: an array, or for a composition a tuple."""
    return each(lambda one: one.values, pos)


def mapped_over(pos: PyTree, axis: int) -> PyTree:
    """The `in_axes` of positions in the `jax.vmap` over their axis of this number, inside of those over the axes before.

    The number counts the axes that positions have where this is called: of B, K and G, K is 1 outside of the `jax.vmap` over
    B and 0 inside of it, where the axis B is gone.
    """
    return each(lambda one: 0 if one.lead > axis else None, pos)


def known(pos: PyTree) -> np.ndarray | None:
    """Positions [n] of all heads and examples as NumPy where their values are known; None otherwise."""
    plain = isinstance(pos, Positions) and isinstance(pos.values, np.ndarray)
    return pos.values if plain and pos.values.ndim == 1 else None


def as_positions(
    name: str, pos: Any, encoding: PositionEncoding, default: Any, batch: int, length: int, heads: int, kv_heads: int
) -> PyTree:
    """Checked positions of queries (`name` is "q_pos") or keys ("k_pos"), or a tuple of them for a composition.

    Raises ValueError for a wrong shape, for integers beyond int32, for 16-bit floats, in which positions collide, and for
    positions that are not those of `context_positions` where the encoding computes them from content.
    """
    sizes = (batch, length, heads, kv_heads)
    if isinstance(pos, tuple | list):
        if not isinstance(encoding, Compose) or len(pos) != len(encoding.parts):
            raise ValueError(f"{name}: a tuple of positions is for the parts of a composition, got it for {encoding}")
        parts = zip(encoding.parts, pos, strict=True)
        return tuple(as_positions(name, at, part, default, *sizes) for part, at in parts)
    if isinstance(encoding, Compose) and Trait.CONTEXT in encoding.traits:
        raise ValueError(f"{name}: a part of {encoding} computes positions: pass those of context_positions")
    if isinstance(encoding, Compose) and Trait.AXES in encoding.traits:
        return as_positions(name, (pos,) * len(encoding.parts), encoding, default, *sizes)
    return _one(name, default if pos is None else pos, encoding, *sizes)


def _one(name: str, pos: Any, encoding: PositionEncoding, B: int, n: int, N: int, K: int) -> Positions:
    pos = pos.values if isinstance(pos, Positions) else pos
    pos = pos if isinstance(pos, jax.Array) else np.asarray(pos)
    traits = encoding.traits
    axes = 1 if Trait.AXES in traits else 0
    if axes and Trait.CONTEXT not in traits:
        pos = _on_every_axis(name, pos, encoding, B, n)
    shape = pos.shape[: pos.ndim - axes]
    queries = name == "q_pos"
    rows, per_head = ((n,), (B, n)), [(B, N, n)] if queries else [(B, K, n)]
    if not queries and Trait.MAP_K not in traits:
        per_head.append((B, N, n))
    if queries and Trait.CONTEXT in traits and Trait.MAP_K in traits:
        per_head.append((B, K, n))
    if Trait.CONTEXT in traits and shape in rows:
        raise ValueError(f"{encoding} computes positions from content: pass {name} as context_positions returns them")
    if shape not in (*rows, *per_head) or pos.ndim <= axes:
        last = " with a last axis of coordinates" if axes else ""
        raise ValueError(
            f"{name} must have shape ({n},) or ({B}, {n}){last}, got {pos.shape}; with a row per head it has {per_head[-1]}"
        )
    pos = _as_number(name, pos, computed=Trait.CONTEXT in traits)
    if len(shape) == 3 and shape[1] == N and N > K:
        pos = pos.reshape(B, K, N // K, *pos.shape[2:])
    return Positions(pos, axes)


def _on_every_axis(name: str, pos: ArrayLike, encoding: Any, B: int, n: int) -> ArrayLike:
    """Positions with coordinates; those without become the same on every axis."""
    A = getattr(encoding, "axes", None)
    if A is None:
        raise ValueError(f"{encoding} has Trait.AXES, and needs an attribute `axes` with the number of its coordinates")
    if pos.shape == (B, n) == (n, A) and n > 1:
        raise ValueError(
            f"{name}: positions {pos.shape} may be rows of {B} examples or one row with {A} coordinates for {encoding}: "
            f"pass them as [B, T, A], {(B, n, A)}"
        )
    if pos.shape in ((n,), (B, n)) and pos.shape != (n, A):
        xp = jnp if isinstance(pos, jax.Array) else np
        return xp.broadcast_to(pos[..., None], (*pos.shape, A))
    if not pos.ndim or pos.shape[-1] != A:
        raise ValueError(f"{name}: {encoding} takes positions with a last axis of {A} coordinates, got {pos.shape}")
    return pos


def _as_number(name: str, pos: ArrayLike, *, computed: bool) -> ArrayLike:
    if jnp.issubdtype(pos.dtype, jnp.integer):
        return as_int32(name, pos)
    if pos.dtype in (jnp.bfloat16, jnp.float16) or not jnp.issubdtype(pos.dtype, jnp.floating):
        raise ValueError(f"{name} must be integers or float32 (16-bit floats collide past 256), got {pos.dtype}")
    # Positions computed from content may be NaN, as their tokens are, and are not read back from a device.
    if not (computed and isinstance(pos, jax.Array)):
        validate_range(name, pos)
    return _as_float(name, pos) if isinstance(pos, np.ndarray) else pos


def _as_float(name: str, pos: np.ndarray) -> np.ndarray:
    """Positions of NumPy as the type of JAX's floats: float32 unless 64 bits are enabled. Raises ValueError for whole numbers
    that this does not hold: neighbours would have one position.
    """
    widest = np.dtype(jnp.result_type(float))
    if pos.dtype.itemsize <= widest.itemsize:
        return pos
    found = pos.astype(widest)
    if np.any(lost := (found != pos) & (pos == np.floor(pos))):
        raise ValueError(
            f"{name} has whole numbers that {widest} does not hold, such as {pos[lost][0]:.0f}: pass them as integers"
        )
    return found


def as_int32(name: str, array: ArrayLike) -> ArrayLike:
    """Integers as int32. Raises ValueError for other types, and for values known to be out of range."""
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"{name} must be integers, got {array.dtype}")
    validate_range(name, array)
    return array.astype(np.int32)


def check_distances(encoding: PositionEncoding, q_pos: PyTree, k_pos: PyTree, valid: ArrayLike | None) -> None:
    """Raises ValueError where the encoding cannot serve the distance of a query and a valid key, or int32 cannot hold it, where
    their positions are known and the same for all heads.
    """
    if isinstance(encoding, Compose) and any(isinstance(pos, tuple) for pos in (q_pos, k_pos)):
        rows = (pos if isinstance(pos, tuple) else (pos,) * len(encoding.parts) for pos in (q_pos, k_pos))
        for part, ours, theirs in zip(encoding.parts, *rows, strict=True):
            check_distances(part, ours, theirs, valid)
        return
    if not Trait.ON_SCORES & encoding.traits or any(pos.axes or pos.lead > 1 for pos in (q_pos, k_pos)):
        return
    queries, keys = concrete(q_pos.values), concrete(k_pos.values)
    shown = np.array(True) if valid is None else concrete(valid)
    if queries is None or keys is None or shown is None:
        return
    queries, keys, shown = np.atleast_2d(queries), np.atleast_2d(keys), np.atleast_2d(shown)
    double = keys.astype(np.float64)
    first, last = np.where(shown, double, np.inf).min(-1), np.where(shown, double, -np.inf).max(-1)
    farthest, nearest = (queries.max(-1) - first).max(), (queries.min(-1) - last).min()
    whole = all(np.issubdtype(pos.dtype, np.integer) for pos in (queries, keys))
    if whole and np.isfinite(farthest) and not INT32.min <= nearest <= farthest <= INT32.max:
        raise ValueError(
            f"distances q_pos - k_pos must fit int32 (|distance| < 2^31) for {encoding}, got {nearest:.0f}..{farthest:.0f}"
        )
    encoding.check_distance(farthest)
