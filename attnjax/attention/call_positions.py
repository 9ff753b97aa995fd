"""The positions of a call: given by its caller, held by a cache, or counted by index; an array for each part of an encoding."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.base import PositionEncoding, Sizes
from attnjax.positions.checks import INT32, concrete, is_array, validate_range
from attnjax.positions.compose import each, parts_of
from attnjax.positions.indices import from_segments
from attnjax.typing import ArrayLike, Int


def indices_of_device(axis_name: str | None, n: int) -> Int[ArrayLike, " n"]:
    """Returns the indices of the n tokens of this device, where devices hold n tokens each; NumPy on one device.

    Example:
        >>> indices_of_device(None, 3).tolist()
        [0, 1, 2]
    """
    own = np.arange(n, dtype=np.int32)
    return own if axis_name is None else jax.lax.axis_index(axis_name) * n + jnp.asarray(own)


def of_parts(
    name: str,
    pos: Any,
    held: tuple | None,
    encoding: PositionEncoding,
    index: Int[ArrayLike, "b 1 1 n"],
    segments: Int[ArrayLike, "b 1 1 n"] | None,
    sizes: Sizes,
    B: int,
) -> tuple[ArrayLike, ...]:
    """Returns the positions of every part: those given, those that a cache holds (`held`), or the default, which is the index
    and restarts at each document.
    """
    if pos is None and held is not None:
        return held
    parts = parts_of(encoding)
    given = each(name, encoding, pos) if isinstance(pos, tuple) else (pos,) * len(parts)
    default = index if segments is None else from_segments(segments)
    n = index.shape[-1]
    return tuple(positions(name, at, part, default, sizes, B, n) for part, at in zip(parts, given, strict=True))


def positions(
    name: str, pos: Any, part: PositionEncoding, default: ArrayLike, sizes: Sizes, B: int, n: int
) -> ArrayLike:
    """Returns the positions of one part as [b, k, g, n] or [b, k, g, n, F].

    Taken are [n], [B, n], and [B, N, n] or [B, K, n] with a row per head, each with a last axis of F features where the
    positions of the part have them. `default` is [b, 1, 1, n].

    Raises ValueError for other shapes, integers beyond int32, and 16-bit floats, in which positions collide.
    """
    features = part.features(sizes)
    if pos is None:
        if part.has("context"):
            raise ValueError(f"{part} computes positions from content: pass {name} as context_positions returns them")
        return default[..., None].repeat(features[0], -1) if features else default
    if isinstance(pos, tuple):
        raise ValueError(f"{name}: a tuple of positions is for the parts of a composition, got it for {part}")
    pos = pos if is_array(pos) else np.asarray(pos)
    lead, (N, K) = pos.shape[: pos.ndim - len(features)], sizes[1:3]
    heads = (B, N, n), (B, K, n), (B, 1, n)
    allowed = heads if part.has("context") else ((n,), (B, n), *heads)
    if lead not in allowed or pos.shape[len(lead) :] != features:
        last = f" with a last axis of {features[0]}" if features else ""
        raise ValueError(
            f"{name} of {part} must have a shape among {', '.join(map(str, dict.fromkeys(allowed)))}{last}, got {pos.shape}"
        )
    if features and len(lead) == 2 and n > 1 and pos.shape == (n, n, n):
        raise ValueError(
            f"{name}: positions {pos.shape} of {part} do not tell examples, tokens and coordinates apart. Coordinates are the "
            f"last axis: pass {(B, 1, n, *features)}, from [A, B, T] by jnp.moveaxis(pos, 0, -1)[:, None]"
        )
    pos = _as_number(name, pos, computed=part.has("context"))
    if len(lead) < 3:
        return pos.reshape(-1, 1, 1, n, *features)
    return pos.reshape(B, K, N // K, n, *features) if lead[1] == N else pos.reshape(B, lead[1], 1, n, *features)


def check_positions(part: PositionEncoding, q_pos: ArrayLike, k_pos: ArrayLike) -> None:
    """Raises ValueError for known positions that the part cannot serve, or whose distances int32 does not hold."""
    if type(part).check is PositionEncoding.check and not part.has("bias", "score"):
        return
    q_at, k_at = concrete(q_pos), concrete(k_pos)
    if q_at is None or k_at is None or q_at.ndim != 4 or q_at.shape[1:3] != (1, 1) or k_at.shape[1:3] != (1, 1):
        return
    rows = np.broadcast_shapes(q_at.shape[:1], k_at.shape[:1])
    both = np.concatenate([np.broadcast_to(at[:, 0, 0], (*rows, at.shape[3])) for at in (q_at, k_at)], axis=-1)
    if np.issubdtype(both.dtype, np.integer) and int(both.max()) - int(both.min()) > INT32.max:
        raise ValueError(
            f"distances q_pos - k_pos must fit int32 (|distance| < 2^31) for {part}, got {both.min()}..{both.max()}"
        )
    part.check(both)


def _as_number(name: str, pos: ArrayLike, *, computed: bool) -> ArrayLike:
    if jnp.issubdtype(pos.dtype, jnp.integer):
        validate_range(name, pos)
        return pos.astype(np.int32)
    if pos.dtype in (jnp.bfloat16, jnp.float16) or not jnp.issubdtype(pos.dtype, jnp.floating):
        raise ValueError(f"{name} must be integers or float32 (16-bit floats collide past 256), got {pos.dtype}")
    # Positions computed from content may be NaN, as their tokens are, and are not read back from a device.
    if not (computed and isinstance(pos, jax.Array)):
        validate_range(name, pos)
    widest = np.dtype(jnp.result_type(float))
    if isinstance(pos, jax.Array) or pos.dtype.itemsize <= widest.itemsize:
        return pos
    found = pos.astype(widest)
    if np.any(lost := (found != pos) & (pos == np.floor(pos))):
        raise ValueError(
            f"{name} has whole numbers that {widest} does not hold, such as {pos[lost][0]:.0f}: pass integers"
        )
    return found
