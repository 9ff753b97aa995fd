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

Learned: head = {"table": [N, buckets]}, normal with standard deviation D_model^-0.5.
Reference: Raffel et al. 2020, arXiv:1910.10683, section 2.1; bucket rule as in the authors' code.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.checks import MOST, validate_integer
from attnjax.typing import Array, Float, Num, compute_dtype

MOST_BUCKETS = 512
"""Where buckets end is computed in whole numbers with as many digits as there are buckets."""


@dataclasses.dataclass(frozen=True)
class T5Bias(PositionEncoding):
    """Bucketed relative bias; beyond `max_distance` all distances of a direction share one bucket.

    Unless `bidirectional`, all later keys have the bucket of the query itself. Encoders need `bidirectional=True`, which
    training and `attnjax.models.with_fields` set for them. Fractional distances are rounded down. Memory: a vector of
    `max_distance` + 1 numbers per direction and head.

    Example:
        >>> p = EncodingParams(head={"table": jnp.arange(32.0)})
        >>> T5Bias().bias(p, jnp.array([-1, 3, 200])).tolist()
        [0.0, 3.0, 31.0]
    """

    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.bidirectional, bool):
            raise ValueError(f"T5Bias: bidirectional must be True or False, got {self.bidirectional!r}")
        least = 4 if self.bidirectional else 2
        validate_integer("T5Bias", minimum=least, most=MOST_BUCKETS, buckets=self.buckets)
        validate_integer("T5Bias", most=MOST, max_distance=self.max_distance)
        if self.bidirectional and self.buckets % 2:
            raise ValueError(f"T5Bias: buckets must be even where bidirectional, got {self.buckets}")
        exact = self.buckets // (4 if self.bidirectional else 2)
        if self.max_distance <= exact:
            raise ValueError(f"T5Bias: max_distance must exceed the {exact} exact buckets, got {self.max_distance}")

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """table ~ Normal(0, 1 / D_model), [N, buckets]."""
        table = jax.random.normal(key, (sizes.heads, self.buckets), jnp.float32)
        return EncodingParams(head={"table": table * sizes.model**-0.5})

    def bias(self, p: EncodingParams, n: Num[Array, "..."]) -> Float[Array, "..."]:
        """table[bucket(n)], read from the vector of one value per distance."""
        table = p.head["table"].astype(compute_dtype(p.head["table"]))
        lowest = -self.max_distance if self.bidirectional else 0
        distances = np.arange(lowest, self.max_distance + 1)
        per_distance = table[bucket(distances, self.buckets, self.max_distance, self.bidirectional)]
        row = jnp.clip(jnp.floor(n), lowest, self.max_distance).astype(jnp.int32) - lowest
        return per_distance.at[row].get(mode="promise_in_bounds")


def bucket(n: np.ndarray, buckets: int = 32, max_distance: int = 128, bidirectional: bool = False) -> np.ndarray:
    """Bucket of each whole distance n = q_pos - k_pos (positive: the key lies in the past), on the host.

    Example:
        >>> bucket(np.array([0, 15, 16, 19, 500])).tolist()
        [0, 15, 16, 17, 31]
    """
    n = np.asarray(n, np.int64)
    if not bidirectional:
        return np.searchsorted(edges(buckets, max_distance), np.maximum(n, 0), side="right")
    half = buckets // 2
    side = np.searchsorted(edges(half, max_distance), np.abs(n), side="right")
    return side + half * (n < 0)


def edges(buckets: int, max_distance: int) -> np.ndarray:
    """The first distance of buckets 1, 2, ..., buckets - 1 of one direction.

    Example:
        >>> edges(8, 16).tolist()
        [1, 2, 3, 4, 6, 8, 12]
    """
    exact = buckets // 2
    spans = buckets - exact
    targets = (exact ** (spans - r) * max_distance**r for r in range(1, spans))
    return np.array([*range(1, exact + 1), *(_root(target, spans, max_distance) for target in targets)], np.int64)


def _root(target: int, power: int, upper: int) -> int:
    """The smallest whole m with m^power >= target, known to be at most `upper`."""
    lower = 0
    while upper - lower > 1:
        middle = (lower + upper) // 2
        lower, upper = (lower, middle) if middle**power >= target else (middle, upper)
    return upper
