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

Learned: head = {"u": [N, H], "v": [N, H], "w_r": [N, D, H]}; per layer, not shared among layers.
Initial values: u, v ~ Normal(0, 0.02^2), w_r ~ Normal(0, 1/D).
Reference: Dai et al. 2019, arXiv:1901.02860, section 3.3 (terms a to d of A^rel).
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.angles import Frequencies, angles, exact, geometric
from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Tile
from attnjax.positions.checks import validate, validate_integer
from attnjax.positions.concrete import concrete
from attnjax.positions.sincos import sine_cosine
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree

HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class TransformerXL(PositionEncoding):
    """Content and position biases u and v, and a projection of sinusoids of the distance with base `theta`.

    `table="clamped"` needs the `length` of the table, and takes distances up to length - 1. A query and a valid key at known
    positions that are further apart are refused with a ValueError, behind a window too, and so are two queries or two keys.
    Positions that are traced, or in a cache, are not seen.

    Example:
        >>> params = TransformerXL().init(jax.random.key(0), Sizes(model=16, heads=2, kv_heads=2, head_dim=8))
        >>> params.head["u"].shape, params.head["w_r"].shape
        ((2, 8), (2, 16, 8))
    """

    theta: float = 10_000.0
    table: Literal["two_sided", "clamped"] = "two_sided"
    length: int | None = None

    def __post_init__(self) -> None:
        validate("TransformerXL", theta=self.theta)
        if self.table not in ("two_sided", "clamped"):
            raise ValueError(f"TransformerXL: table must be 'two_sided' or 'clamped', got {self.table!r}")
        if (self.length is None) != (self.table == "two_sided"):
            raise ValueError(
                f"TransformerXL: a length belongs to table='clamped', got table={self.table!r}, length={self.length!r}"
            )
        if self.length is not None:
            validate_integer("TransformerXL", most=2**31 - 1, length=self.length)

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """u, v [N, H] with standard deviation 0.02 and w_r [N, D, H] with D^-0.5."""
        _check_width(sizes.model)
        keys = jax.random.split(key, 3)
        u, v = (0.02 * jax.random.normal(key, (sizes.heads, sizes.head_dim), jnp.float32) for key in keys[:2])
        w_r = jax.random.normal(keys[2], (sizes.heads, sizes.model, sizes.head_dim), jnp.float32)
        return EncodingParams(head={"u": u, "v": v, "w_r": w_r * sizes.model**-0.5})

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses known positions of one row that are further apart than a clamped table is long."""
        super().check(sizes=sizes, causal=causal, pos=pos)
        length, values = self.length, None if pos is None else concrete(pos)
        if length is None or values is None or not values.size:
            return
        if np.ptp(values.astype(np.float64), axis=-1).max() >= length:
            raise ValueError(
                f"TransformerXL: a table of length {length} holds distances up to {length - 1}, got positions "
                f"{values.min()}..{values.max()}"
            )

    def check_distance(self, farthest: float) -> None:
        """Refuses distances that a clamped table does not hold."""
        if self.length is not None and farthest >= self.length:
            raise ValueError(
                f"TransformerXL: a table of length {self.length} holds distances up to {self.length - 1}, got a query and a "
                f"key at distance {farthest:.0f}"
            )

    def score(self, p: EncodingParams, tile: Tile) -> Float[Array, "t s"]:
        """logits + scale * (u . k + (q + v) . (W R_n))."""
        head, frequencies = jax.tree.map(lambda leaf: leaf.astype(tile.logits.dtype), p.head), self._frequencies(p)
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        content = jnp.matmul(tile.k, head["u"], precision=HIGHEST)
        if self.length is None:
            keys = _cosines_and_sines(frequencies, tile.k_pos, tile.logits.dtype)
            position = jnp.matmul(_features(head, frequencies, tile.q, tile.q_pos), keys.T, precision=HIGHEST)
        else:
            position = _clamped(head, frequencies, tile, self.length)
        return tile.logits + tile.scale * (content[None, :] + position)

    def _frequencies(self, p: EncodingParams) -> Frequencies:
        """theta^(-2c / D): the width D of the model is that of `w_r`."""
        width = p.head["w_r"].shape[-2]
        _check_width(width)
        return exact(geometric(width // 2, self.theta))


def _clamped(head: PyTree, frequencies: Frequencies, tile: Tile, length: int) -> Float[Array, "t s"]:
    """(q + v) . (W R_(length - max(n, 1))): a product over keys for n > 1, and the last row of the table otherwise."""
    last = jnp.full((1,), 1 - length, jnp.asarray(tile.q_pos).dtype)
    far = _features(head, frequencies, tile.q, length - jnp.asarray(tile.q_pos))
    near = _features(head, frequencies, tile.q, jnp.zeros_like(jnp.asarray(tile.q_pos)))
    far = jnp.matmul(far, _cosines_and_sines(frequencies, -jnp.asarray(tile.k_pos), far.dtype).T, precision=HIGHEST)
    near = jnp.matmul(near, _cosines_and_sines(frequencies, last, near.dtype).T, precision=HIGHEST)
    return jnp.where(tile.distance > 1, far, near)


def _features(
    head: PyTree, frequencies: Frequencies, q: Float[Array, "t h"], pos: Num[ArrayLike, " t"]
) -> Float[Array, "t D"]:
    """What multiplies [cos(j w) | sin(j w)] in (q + v) . (W R_(i-j))."""
    a = jnp.matmul(q + head["v"][None, :], head["w_r"].T, precision=HIGHEST)
    a_sin, a_cos = jnp.split(a, 2, axis=-1)
    cos, sin = jnp.split(_cosines_and_sines(frequencies, pos, a.dtype), 2, axis=-1)
    return jnp.concatenate([a_sin * sin + a_cos * cos, a_cos * sin - a_sin * cos], axis=-1)


def _cosines_and_sines(frequencies: Frequencies, pos: Num[ArrayLike, " s"], dtype: jnp.dtype) -> Float[Array, "s D"]:
    """[cos(j w) | sin(j w)]."""
    sin, cos = sine_cosine(angles(pos, frequencies, dtype))
    return jnp.concatenate([cos, sin], axis=-1)


def _check_width(model: int) -> None:
    if model % 2:
        raise ValueError(f"TransformerXL: the model dimension must be even, got {model}")
