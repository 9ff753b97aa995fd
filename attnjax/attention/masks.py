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

Masks go by index, encodings by position: what is visible does not change when positions are random, shifted or packed.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import Array, ArrayLike, Bool, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """Rules of visibility; unset rules allow everything. `causal` and `window` are static, the rest are arrays.

    Args:
      causal: key index j <= query index i.
      window: `(left, right)`: i - left <= j <= i + right, as `local_window_size` in `jax.nn`; an int w is (w, w).
      q_segments, k_segments: [T] or [B, T], [S] or [B, S]; a query sees the keys of its own id. Both or none.
      k_valid: [S] or [B, S] booleans; False hides a key from everyone (padding).
      q_index, k_index: [T] or [B, T], [S] or [B, S] integers, `arange` unless given (from the start, as in `jax.nn`).
      allowed: [T, S] or [B, T, S] booleans, for a mask without structure. It costs T x S memory and skips nothing.

    A query that sees no key gets exactly 0 and passes no gradient. Raises ValueError for a window that is negative.
    """

    causal: bool = dataclasses.field(default=False, metadata={"static": True})
    window: int | tuple[int, int] | None = dataclasses.field(default=None, metadata={"static": True})
    q_segments: ArrayLike | None = None
    k_segments: ArrayLike | None = None
    k_valid: ArrayLike | None = None
    q_index: ArrayLike | None = None
    k_index: ArrayLike | None = None
    allowed: ArrayLike | None = None

    def __post_init__(self):
        if not isinstance(self.causal, bool):
            raise ValueError(f"Mask: causal must be True or False, got {self.causal!r}")
        sides = self.window if isinstance(self.window, tuple) else (self.window, self.window)
        whole = all(side is None or (isinstance(side, int) and not isinstance(side, bool)) for side in sides)
        if len(sides) != 2 or not whole or any(side is not None and side < 0 for side in sides):
            raise ValueError(f"Mask: window must be None, an int >= 0 or (left, right) of such, got {self.window!r}")
        if (self.q_segments is None) != (self.k_segments is None):
            raise ValueError("Mask: q_segments and k_segments go together; one of them is missing")

    @property
    def span(self) -> "Span":
        """The static part: how far a query sees to each side, None for without limit."""
        left, right = self.window if isinstance(self.window, tuple) else (self.window, self.window)
        return Span(left, 0 if self.causal else right)


class Span(NamedTuple):
    """A query at index i sees keys i - left .. i + right; None is without limit."""

    left: int | None
    right: int | None

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
    ahead = k_index[None, :] - q_index[:, None]
    seen = k_valid[None, :] & (ahead == ahead)
    if span.left is not None:
        seen &= ahead >= -span.left
    if span.right is not None:
        seen &= ahead <= span.right
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
