"""T5: a learned bias per bucket of distances.

    score[i, j] = scale * q_i . k_j + table_h[bucket(i - j)]

Acts through `bias`. With B buckets available to one direction, E = B // 2 and D = max_distance, the bucket of m >= 0 is

    m                                                         for m < E
    min(B - 1, E + floor((B - E) * ln(m / E) / ln(D / E)))    otherwise

evaluated here without logarithms: m reaches bucket E + r if and only if m^(B-E) >= E^(B-E-r) * D^r, in whole numbers,
so no backend's rounding can move a boundary. Causal: m = max(i - j, 0) and B = buckets. Bidirectional: m = |i - j| and
B = buckets / 2 per direction, keys in the future (j > i) using the upper half of the table.

T5 itself does not scale its logits (`scale=1`) and shares one table among all layers; here a table belongs to the layer
that holds the parameters.

Learned: table [N, buckets], normal with standard deviation D_model^-0.5.
Reference: Raffel et al. 2020, arXiv:1910.10683, section 2.1; bucket rule as in the authors' code.
"""

import bisect
import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Range
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.checks import Rows, validate_rows
from attnjax.typing import Array, Float


@dataclasses.dataclass(frozen=True)
class T5Bias(PositionEncoding):
    """Bucketed relative bias; beyond `max_distance` all distances of a direction share one bucket.

    Unless `bidirectional`, all later keys have the bucket of the query itself. Fractional distances are rounded down. Memory: a
    vector of `max_distance` + 1 numbers per direction and head.

    Example:
        >>> T5Bias().bias({"table": jnp.arange(32.0)}, jnp.array([-1.0, 3.0, 200.0])).tolist()
        [0.0, 3.0, 31.0]
    """

    # Boundaries are computed in whole numbers with as many digits as there are buckets.
    buckets: Annotated[int, Range(2, 512)] = 32
    max_distance: Rows = 128
    bidirectional: bool = False

    per_head = ("table",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bidirectional and (self.buckets < 4 or self.buckets % 2):
            raise ValueError(f"T5Bias: buckets must be even and at least 4 where bidirectional, got {self.buckets}")
        exact = self.buckets // (4 if self.bidirectional else 2)
        if self.max_distance <= exact:
            raise ValueError(f"T5Bias: max_distance must exceed the {exact} exact buckets, got {self.max_distance}")

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns table ~ Normal(0, 1 / D_model), [N, buckets]."""
        table = jax.random.normal(key, (sizes.heads, self.buckets), jnp.float32)
        return {"table": table * sizes.model**-0.5}

    def bias(self, p: Params, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns table[bucket(n)], read from a vector with one value per distance."""
        table = validate_rows("T5Bias", p["table"], self.buckets)
        lowest = -self.max_distance if self.bidirectional else 0
        distances = np.arange(lowest, self.max_distance + 1)
        per_distance = table[bucket(distances, self.buckets, self.max_distance, self.bidirectional)]
        row = jnp.clip(jnp.floor(n), lowest, self.max_distance).astype(jnp.int32) - lowest
        return per_distance.at[row].get(mode="promise_in_bounds")

    def for_encoder(self) -> "T5Bias":
        """Returns the bidirectional form."""
        return dataclasses.replace(self, bidirectional=True)


def bucket(n: np.ndarray, buckets: int = 32, max_distance: int = 128, bidirectional: bool = False) -> np.ndarray:
    """Returns the bucket of each whole distance n = q_pos - k_pos (positive: the key lies in the past), on the host.

    Example:
        >>> bucket(np.array([0, 15, 16, 19, 500])).tolist()
        [0, 15, 16, 17, 31]
    """
    n = np.asarray(n, np.int64)
    if not bidirectional:
        return np.searchsorted(edges(buckets, max_distance), np.maximum(n, 0), side="right")
    half = buckets // 2
    return np.searchsorted(edges(half, max_distance), np.abs(n), side="right") + half * (n < 0)


def edges(buckets: int, max_distance: int) -> np.ndarray:
    """Returns the first distance of buckets 1, 2, ..., buckets - 1 of one direction.

    Example:
        >>> edges(8, 16).tolist()
        [1, 2, 3, 4, 6, 8, 12]
    """
    exact = buckets // 2
    spans = buckets - exact
    distances = range(max_distance + 1)
    reached = lambda r: bisect.bisect_left(distances, exact ** (spans - r) * max_distance**r, key=lambda m: m**spans)
    return np.array([*range(1, exact + 1), *(reached(r) for r in range(1, spans))], np.int64)
