"""The record of one call of attention, which `call.py` makes and every implementation takes.

Arrays lead with [B or 1, K or 1, G or 1]: examples, key heads, and the query heads of a key head. An axis of size 1 serves all
examples or heads; tokens lie on axis 3.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attnjax.attention.masks import Span
from attnjax.positions.base import PositionEncoding
from attnjax.positions.checks import is_array
from attnjax.typing import Array, ArrayLike, Bool, Float, Int, Key


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
    """Drops attention weights with probability `rate`; the dense implementation serves it.

    Raises ValueError unless 0 <= rate < 1 and `key` is a typed PRNG key.

    Example:
        >>> from attnjax import Dropout
        >>> Dropout(jax.random.key(0), rate=0.1).rate
        0.1
    """

    key: Key[Array, ""]
    rate: float = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        if not isinstance(self.rate, int | float) or not 0 <= self.rate < 1:
            raise ValueError(f"Dropout: rate must be in [0, 1), got {self.rate!r}")
        # JAX rebuilds a tree with objects that are no arrays in place of the key.
        if (is_array(self.key) and not jnp.issubdtype(self.key.dtype, jax.dtypes.prng_key)) or isinstance(
            self.key, int
        ):
            raise ValueError(f"Dropout: key must be a typed PRNG key, jax.random.key(seed), got {self.key!r}")


class Rows(NamedTuple):
    """The arrays that run along the queries; `pos` has one entry for each part that acts on logits."""

    q: Float[Array, "B K G T h"]
    pos: tuple[ArrayLike, ...]
    index: Int[ArrayLike, "b 1 1 T"]
    segments: Int[ArrayLike, "b 1 1 T"] | None


class Cols(NamedTuple):
    """The arrays that run along the keys."""

    k: Float[Array, "B K 1 S h"]
    v: Float[Array, "B K 1 S H"]
    pos: tuple[ArrayLike, ...]
    index: Int[ArrayLike, "b 1 1 S"]
    segments: Int[ArrayLike, "b 1 1 S"] | None
    valid: Bool[ArrayLike, "b 1 1 S"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Call:
    """One attention to compute: arrays, and in static fields what is known while tracing.

    `encodings` are the parts that act on logits, and `params` theirs; `dtype` is the type of the caller's queries, and
    `compute_dtype` that of logits, softmax and sums: float32, or float64 where an input is. `overflown`: whether a cache has
    lost tokens, so that the result is NaN. `axis_name`: the mesh axis over which tokens are spread.
    """

    rows: Rows
    cols: Cols
    params: tuple[dict, ...]
    scale: Float[ArrayLike, ""]
    sink: Float[Array, "1 K G 1"] | None
    allowed: Bool[ArrayLike, "b 1 1 T S"] | None
    dropout: Dropout | None
    overflown: Bool[Array, ""] | None
    encodings: tuple[PositionEncoding, ...] = dataclasses.field(metadata={"static": True})
    span: Span = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    compute_dtype: Any = dataclasses.field(metadata={"static": True})
    axis_name: str | None = dataclasses.field(metadata={"static": True})


class Source(NamedTuple):
    """Keys as a caller or a cache hands them over, and where the queries stand among them.

    `pos`, `q_pos`: positions of a cache, one entry per part in the layout of `Call`; None for keys that are not mapped yet.
    """

    k: Float[Array, "B K 1 S h"]
    v: Float[Array, "B K 1 S H"]
    index: Int[ArrayLike, " S"]
    q_index: Int[ArrayLike, " T"]
    valid: Bool[ArrayLike, "*B S"] | None = None
    pos: tuple[ArrayLike, ...] | None = None
    q_pos: tuple[ArrayLike, ...] | None = None
    overflown: Bool[Array, ""] | None = None
