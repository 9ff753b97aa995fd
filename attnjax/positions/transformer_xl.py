"""Transformer-XL: relative positions with content and position terms.

    score[i, j] = scale * [ (q_i + u_h) . k_j + (q_i + v_h) . (W_h R_(i-j)) ]
    R_n = [ sin(n w) | cos(n w) ],    w_c = theta^(-2c / D)  for c = 0..D/2-1,    of the model's width D

Acts through `score`, since the position term depends on the query. Distances are neither shifted nor clamped: R is
taken at n = i - j itself, which may be negative. R is never gathered per pair: with a = W_h^T (q_i + v_h) =
[a_sin | a_cos],

    a . R_(i-j) = [ a_sin sin(i w) + a_cos cos(i w) | a_cos sin(i w) - a_sin cos(i w) ] . [ cos(j w) | sin(j w) ]

so a tile of t queries and s keys holds only [t, D] and [s, D] besides its scores.

`table="clamped"` is the randomized relative encoding as Ruoss et al. 2023 released it (arXiv:2305.16843): their table has
`length` rows, R of 0 .. length - 1, is read at row length - n, and a read behind its end gives the last row. So

    R_n  becomes  R_(length - max(n, 1)):    keys in the past keep their distance, the key itself and all keys in the future
                                             look like the one before

It needs n < length.

Learned: u [N, H], v [N, H] and w_r [N, D, H] (W); per layer, not shared among layers.
Initial values: u, v ~ Normal(0, 0.02^2), w_r ~ Normal(0, 1/D).
Reference: Dai et al. 2019, arXiv:1901.02860, section 3.3 (terms a to d of A^rel).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Count, Positive
from attnjax.positions.angles import angles, exact, geometric, sine_cosine
from attnjax.positions.base import Params, PositionEncoding, Sizes, Tile
from attnjax.positions.projection import HIGHEST
from attnjax.typing import Array, Float, Num


@dataclasses.dataclass(frozen=True)
class TransformerXL(PositionEncoding):
    """Content and position biases u and v, and a projection of sinusoids of the distance with base `theta`.

    `table="clamped"` needs the `length` of the table, and takes distances up to length - 1. Known positions of one row that are
    further apart are refused with a ValueError, behind a window too, and so are those of two queries or two keys. Positions
    that are traced, or in a cache, are not seen.

    Example:
        >>> p = TransformerXL().init(jax.random.key(0), Sizes(model=16, heads=2, kv_heads=2, head_dim=8))
        >>> p["u"].shape, p["w_r"].shape
        ((2, 8), (2, 16, 8))
    """

    theta: Positive = 10_000.0
    table: Literal["two_sided", "clamped"] = "two_sided"
    length: Count | None = None

    per_head = ("u", "v", "w_r")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.length is None) != (self.table == "two_sided"):
            given = f"table={self.table!r}, length={self.length!r}"
            raise ValueError(f"TransformerXL: a length belongs to table='clamped', got {given}")

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns u, v [N, H] with standard deviation 0.02 and w_r [N, D, H] with D^-0.5. Raises ValueError for an odd D."""
        if sizes.model % 2:
            raise ValueError(f"TransformerXL: the model dimension must be even, got {sizes.model}")
        keys = jax.random.split(key, 3)
        u, v = (0.02 * jax.random.normal(key, (sizes.heads, sizes.head_dim), jnp.float32) for key in keys[:2])
        w_r = jax.random.normal(keys[2], (sizes.heads, sizes.model, sizes.head_dim), jnp.float32)
        return {"u": u, "v": v, "w_r": w_r * sizes.model**-0.5}

    def check(self, pos: np.ndarray) -> None:
        """Raises ValueError for positions of one row that are further apart than a clamped table is long."""
        if self.length is not None and pos.size and np.ptp(pos.astype(np.float64), axis=-1).max() >= self.length:
            raise ValueError(
                f"TransformerXL: a table of length {self.length} holds distances up to {self.length - 1}, got positions "
                f"{pos.min()}..{pos.max()}"
            )

    def score(self, p: Params, tile: Tile) -> Float[Array, "t s"]:
        """Returns logits + scale * (u . k + (q + v) . (W R_n))."""
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        product = lambda a, b: jnp.matmul(a, b, precision=HIGHEST)
        a_sin, a_cos = jnp.split(product(tile.q + p["v"][None], p["w_r"].T), 2, axis=-1)
        # The width D of the model is that of w_r: attention does not know it otherwise.
        frequencies = exact(geometric(a_sin.shape[1], self.theta))
        frequencies = frequencies._replace(radians=frequencies.radians.astype(a_sin.dtype))

        def position(q_pos: Num[Array, " t"], k_pos: Num[Array, " s"]) -> Float[Array, "t s"]:
            """(q + v) . (W R_(i-j))."""
            (sin, cos), waves = (sine_cosine(angles(pos, frequencies)) for pos in (q_pos, k_pos))
            queries = jnp.concatenate([a_sin * sin + a_cos * cos, a_cos * sin - a_sin * cos], axis=-1)
            return product(queries, jnp.concatenate(waves[::-1], axis=-1).T)

        q_pos, k_pos = tile.q_pos, tile.k_pos
        if self.length is None:
            found = position(q_pos, k_pos)
        else:
            last = position(jnp.zeros_like(q_pos), jnp.full((1,), 1 - self.length, k_pos.dtype))
            found = jnp.where(tile.distance > 1, position(self.length - q_pos, -k_pos), last)
        return tile.logits + tile.scale * (product(tile.k, p["u"])[None] + found)
