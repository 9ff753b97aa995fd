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

from attnjax.positions.checks import INT32, described
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


class Span(NamedTuple):
    """A query at index i sees keys i - left .. i + right, None is without limit, and 0 .. first - 1 up to i + right."""

    left: int | None
    right: int | None
    first: int = 0

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        return self.right == 0

    @property
    def unlimited(self) -> bool:
        """Whether indices hide nothing."""
        return self.left is None and self.right is None


def check_mask(mask: Any) -> None:
    """Raises ValueError for an array, as `jax.nn` and Flax take masks, and for every other object that is no Mask."""
    if not isinstance(mask, Mask):
        what = f"an array {described(mask)}" if hasattr(mask, "dtype") else repr(mask)[:100]
        raise ValueError(f"mask must be a Mask such as Mask(causal=True), or Mask(allowed=array), got {what}")


def causal(mask: Mask) -> Mask:
    """Returns the mask with `causal=True`, as decoders read it. Raises ValueError for what is no Mask."""
    check_mask(mask)
    return dataclasses.replace(mask, causal=True)


def visibility(
    span: Span,
    q_index: Int[ArrayLike, "b 1 1 t"],
    k_index: Int[ArrayLike, "b 1 1 s"],
    q_segments: Int[ArrayLike, "b 1 1 t"] | None,
    k_segments: Int[ArrayLike, "b 1 1 s"] | None,
    valid: Bool[ArrayLike, "b 1 1 s"],
    allowed: Bool[ArrayLike, "b 1 1 t s"] | None,
) -> Bool[Array, "b 1 1 t s"]:
    """Returns which keys each query sees; the first axis is 1 where no rule depends on the example.

    Example:
        >>> index = np.arange(3).reshape(1, 1, 1, 3)
        >>> visibility(Span(1, 0), index, index, None, None, np.ones((1, 1, 1, 3), bool), None)[0, 0, 0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    queries = lambda x: jnp.asarray(x)[..., :, None]
    keys = lambda x: jnp.asarray(x)[..., None, :]
    q, k = queries(q_index), keys(k_index)
    seen = keys(valid) & jnp.ones_like(q, bool)
    # Clipped first, because an index at the end of int32 would wrap around, as would the difference of two.
    if span.left is not None:
        near = k >= jnp.maximum(q, INT32.min + span.left) - span.left
        seen &= near | (k < span.first) if span.first else near
    if span.right is not None:
        seen &= k <= jnp.minimum(q, INT32.max - span.right) + span.right
    if q_segments is not None and k_segments is not None:
        seen &= queries(q_segments) == keys(k_segments)
    return seen if allowed is None else seen & allowed


def all_true(valid: ArrayLike) -> bool:
    """Returns whether every key is known to be valid."""
    return isinstance(valid, np.ndarray) and bool(valid.all())


def from_first_valid(
    k_index: Int[ArrayLike, "b 1 1 S"], valid: Bool[ArrayLike, "b 1 1 S"], axis_name: str | None
) -> Any:
    """Returns the index of the first valid key of each example, [b, 1, 1, 1]; `axis_name`: a mesh axis that spreads the keys.

    Example:
        >>> valid = np.array([False, False, True, True]).reshape(1, 1, 1, 4)
        >>> from_first_valid(np.arange(4).reshape(1, 1, 1, 4), valid, None).tolist()
        [[[[2]]]]
    """
    start = jnp.where(valid, k_index, INT32.max).min(-1, keepdims=True)
    start = start if axis_name is None else jax.lax.pmin(start, axis_name)
    # Where no key is valid, nothing is visible whatever the indices are.
    return jnp.where(start == INT32.max, 0, start)
