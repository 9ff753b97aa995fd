"""Who may see whom: a structured mask, so that an implementation can skip what is empty.

Key j is visible to query i when every rule that is set allows it. With `causal` and `window=(2, 0)`, six tokens in two
segments `a a a b b b` see (row = query, column = key):

    causal          window=(2, 0)     segments          all three
    1 0 0 0 0 0     1 0 0 0 0 0       1 1 1 0 0 0       1 0 0 0 0 0
    1 1 0 0 0 0     1 1 0 0 0 0       1 1 1 0 0 0       1 1 0 0 0 0
    1 1 1 0 0 0     1 1 1 0 0 0       1 1 1 0 0 0       1 1 1 0 0 0
    1 1 1 1 0 0     0 1 1 1 0 0       0 0 0 1 1 1       0 0 0 1 0 0
    1 1 1 1 1 0     0 0 1 1 1 0       0 0 0 1 1 1       0 0 0 1 1 0
    1 1 1 1 1 1     0 0 0 1 1 1       0 0 0 1 1 1       0 0 0 1 1 1

With `causal`, `window=(1, 0)` and `first=2`, six tokens of which the first is padding see

    0 0 0 0 0 0
    0 1 0 0 0 0
    0 1 1 0 0 0
    0 1 1 1 0 0
    0 1 1 1 1 0
    0 1 1 0 1 1

Masks go by index, encodings by position: what is visible does not change when positions are random, shifted or packed.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.checks import INT32
from attnjax.positions.concrete import concrete
from attnjax.typing import Array, ArrayLike, Bool, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """Rules of visibility; unset rules allow everything. `causal` and `window` are static, the rest are arrays.

    Args:
      causal: key index j <= query index i.
      window: `(left, right)`: i - left <= j <= i + right, as `local_window_size` in `jax.nn`; an int w is (w, w).
      first: the first `first` keys of the sequence, those of an index below it, stay visible to the left of the window (the
        attention sinks of LM-Infinite and StreamingLLM). Where `k_index` is not given they are counted from the first valid
        key, so that padding is none of them.
      q_segments, k_segments: [T] or [B, T], [S] or [B, S]; a query sees the keys of its own id. Both or none.
      k_valid: [S] or [B, S] booleans; False hides a key from everyone (padding).
      q_index, k_index: [T] or [B, T], [S] or [B, S] integers, `arange` unless given (from the start, as in `jax.nn`).
        Causal masks and windows compare them, never positions.
      allowed: [T, S] or [B, T, S] booleans, for a mask without structure. It costs T x S memory and skips nothing.

    A query that sees no key gets exactly 0 and passes no gradient. Raises ValueError for a window that is negative, for a
    window or `first` that int32 cannot hold, and for `first` with segments, which do not share a start.
    """

    causal: bool = dataclasses.field(default=False, metadata={"static": True})
    window: int | tuple[int, int] | None = dataclasses.field(default=None, metadata={"static": True})
    q_segments: ArrayLike | None = None
    k_segments: ArrayLike | None = None
    k_valid: ArrayLike | None = None
    q_index: ArrayLike | None = None
    k_index: ArrayLike | None = None
    allowed: ArrayLike | None = None
    first: int = dataclasses.field(default=0, metadata={"static": True})

    def __post_init__(self):
        if not isinstance(self.causal, bool):
            raise ValueError(f"Mask: causal must be True or False, got {self.causal!r}")
        sides = self.window if isinstance(self.window, tuple) else (self.window, self.window)
        whole = all(side is None or (isinstance(side, int) and not isinstance(side, bool)) for side in sides)
        if len(sides) != 2 or not whole or any(side is not None and side < 0 for side in sides):
            raise ValueError(f"Mask: window must be None, an int >= 0 or (left, right) of such, got {self.window!r}")
        if (self.q_segments is None) != (self.k_segments is None):
            raise ValueError("Mask: q_segments and k_segments go together; one of them is missing")
        if isinstance(self.first, bool) or not isinstance(self.first, int) or self.first < 0:
            raise ValueError(f"Mask: first must be an int >= 0, got {self.first!r}")
        if any(n is not None and n > INT32.max for n in (*sides, self.first)):
            raise ValueError(
                f"Mask: window and first must be at most {INT32.max} (int32), got {self.window!r} and {self.first!r}; "
                "None is a window without limit"
            )
        if self.first and self.q_segments is not None:
            raise ValueError("Mask: first counts keys from the start of a sequence, which packed segments do not share")

    @property
    def span(self) -> "Span":
        """The static part: how far a query sees to each side, None for without limit."""
        left, right = self.window if isinstance(self.window, tuple) else (self.window, self.window)
        return Span(left, 0 if self.causal else right, self.first if left is not None else 0)


def check_mask(mask: Any) -> None:
    """Raise ValueError for an array, as `jax.nn.dot_product_attention` and Flax take masks, and for what else is no Mask."""
    if not isinstance(mask, Mask):
        what = f"an array {mask.dtype}{list(mask.shape)}" if hasattr(mask, "dtype") else repr(mask)[:100]
        raise ValueError(f"mask must be a Mask such as Mask(causal=True), or Mask(allowed=array), got {what}")


def check_last_query(mask: Mask, T: int, S: int) -> None:
    """Refuse one query over several keys, which is meant as the last of them, and would be the first by its index."""
    if T == 1 < S and mask.span[:2] != (None, None) and mask.q_index is None and mask.k_index is None:
        raise ValueError(
            f"one query and {S} keys under a causal mask or a window: by its index, 0, the query would see the first key, and "
            f"q_pos does not move the mask. Pass Mask(q_index=) with its place among the keys, such as [{S - 1}], or decode "
            "with KVCache"
        )


def causal(mask: Mask) -> Mask:
    """The mask with `causal=True`, as decoders read it. Raises ValueError for what is no Mask."""
    check_mask(mask)
    return dataclasses.replace(mask, causal=True)


class Span(NamedTuple):
    """A query at index i sees keys i - left .. i + right, None is without limit, and 0 .. first - 1 up to i + right."""

    left: int | None
    right: int | None
    first: int = 0

    @property
    def causal(self) -> bool:
        """No query sees a later key."""
        return self.right == 0


def visible(
    span: Span,
    q_index: Int[Array, " t"],
    k_index: Int[Array, " s"],
    q_segments: Int[Array, " t"] | None,
    k_segments: Int[Array, " s"] | None,
    k_valid: Bool[Array, " s"],
) -> Bool[Array, "t s"]:
    """The mask of one tile of one example."""
    q, k = q_index[:, None], k_index[None, :]
    # Integers are spread, because the compiler of kernels knows no booleans that are.
    seen = k_valid[None, :] & (jnp.zeros_like(q) == jnp.zeros_like(k))
    # Clipped first, because an index at the end of int32 would wrap around, as would the difference of two.
    if span.left is not None:
        lowest = jnp.maximum(q, INT32.min + span.left) - span.left
        near = k >= lowest
        seen &= near | (k < span.first) if span.first else near
    if span.right is not None:
        seen &= k <= jnp.minimum(q, INT32.max - span.right) + span.right
    if q_segments is not None and k_segments is not None:
        seen &= q_segments[:, None] == k_segments[None, :]
    return seen


def visibility(span: Span, queries: Any, keys: Any, allowed: ArrayLike | None) -> Bool[Array, "*B 1 1 t s"]:
    """Which keys each query sees, to broadcast against [B,K,G,t,s]; the axis B is 1 where nothing depends on the example.

    `queries` has index and segments, `keys` these and valid, each [n] or [B, n]; `allowed` is [t, s] or [B, t, s].
    """
    parts = jax.tree.map(jnp.asarray, (queries.index, keys.index, queries.segments, keys.segments, keys.valid))
    axes = tuple(None if part is None or np.ndim(part) < 2 else 0 for part in parts)
    one = lambda *parts: visible(span, *parts)
    seen = jax.vmap(one, in_axes=axes)(*parts) if 0 in axes else one(*parts)[None]
    if allowed is not None:
        seen = seen & (allowed if jnp.ndim(allowed) == 3 else jnp.asarray(allowed)[None])
    return seen[:, None, None]


def from_first_valid(
    q_index: ArrayLike, k_index: ArrayLike, valid: ArrayLike | None, axis_name: str | None = None
) -> tuple[ArrayLike, ArrayLike]:
    """Indices of queries and keys, [n] or [B, n], less that of the first valid key of each example.

    `axis_name`: of the mesh axis over which the keys are spread.

    Example:
        >>> q, k = from_first_valid(np.arange(4), np.arange(4), np.array([[False, False, True, True]]))
        >>> k.tolist()
        [[-2, -1, 0, 1]]
    """
    if axis_name is None and isinstance(k_index, np.ndarray) and (valid is None or np.ndim(valid) < 2):
        known = None if valid is None else concrete(valid)
        if valid is None or known is not None:
            start = k_index[... if known is None else known].min(initial=INT32.max)
            return (q_index, k_index) if start in (0, INT32.max) else (q_index - start, k_index - start)
    index, shown = jnp.broadcast_arrays(jnp.asarray(k_index), True if valid is None else jnp.asarray(valid))
    start = jnp.where(shown, index, INT32.max).min(-1, keepdims=index.ndim > 1)
    start = start if axis_name is None else jax.lax.pmin(start, axis_name)
    # Where no key is valid, nothing is visible whatever the indices are.
    start = jnp.where(start == INT32.max, 0, start)
    less = lambda index: (jnp.atleast_2d(index) if start.ndim else jnp.asarray(index)) - start
    return less(q_index), less(k_index)
