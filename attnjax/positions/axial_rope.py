"""Rotary positions with several axes, such as the column and row of a patch of an image.

    AxialRoPE    score(i, j) = scale * q_i . R(p_j - p_i) k_j,    pair (a, m) turned by p_a * f_m
                 f_m = theta^(-2Am/H),    m = 0 .. H/(2A) - 1
    MixedRoPE    pair c turned by sum_a p_a * f_ac,    f learned for every axis and pair

Acts on queries and keys (`map_q`, `map_k`): q[T,H], pos[T,A] -> [T,H]. With A axes, `AxialRoPE` gives each axis a contiguous
block of H/(2A) pairs, which turn at the same frequencies. Nothing of it is learned.

`MixedRoPE` (RoPE-Mixed) lets every pair turn with all axes, in a direction of its own. Learned:
kv_head = {"frequencies": [K,A,H/2]} per key head, which the queries of its group share. At first the magnitudes are f_m, and
the A blocks of pairs of a head point along the columns of a random rotation matrix.

A token that has no place on the grid, such as a class token, is not turned at the position 0 on every axis. Angles of
`AxialRoPE` are exact at any integer position; those of `MixedRoPE` are float32 products, off by |p f| 2^-24.

Reference: Heo, Park, Han, Yun 2024 (arXiv:2403.13298), section 3.2, with theta = 100 for axial and 10 for mixed frequencies,
as in the authors' code.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from attnjax.positions.angles import angles, exact, geometric
from attnjax.positions.base import EncodingParams, Sizes, Trait
from attnjax.positions.checks import validate, validate_integer
from attnjax.positions.population import numeric
from attnjax.positions.rotary import Layout, Rotation, check_layout, rotate
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class _RotationOverAxes(Rotation):
    """What both share: hyper-parameters, and the head dimensions that they serve."""

    axes: int
    theta: float
    layout: Layout

    def __post_init__(self) -> None:
        validate_integer(type(self).__name__, axes=self.axes)
        validate(type(self).__name__, theta=self.theta)
        check_layout(self.layout)

    @property
    def traits(self) -> Trait:
        """The maps, at positions with coordinates."""
        return super().traits | Trait.AXES

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses a head dimension whose pairs cannot be shared by the axes."""
        del causal, pos
        if sizes is not None:
            _pairs_per_axis(type(self).__name__, self.axes, sizes.head_dim)


@dataclasses.dataclass(frozen=True)
class AxialRoPE(_RotationOverAxes):
    """RoPE on `axes` coordinates, each with its own share of the pairs and the same frequencies.

    Raises ValueError for hyper-parameters out of range, and for a head dimension that is not a multiple of 2 * `axes`.

    Example:
        >>> import jax.numpy as jnp
        >>> from attnjax import attend
        >>> x = jnp.ones((1, 6, 2, 8))
        >>> row_and_column = jnp.stack(jnp.divmod(jnp.arange(6), 3), -1)
        >>> attend(x, x, x, encoding=AxialRoPE(), q_pos=row_and_column, k_pos=row_and_column).shape
        (1, 6, 2, 8)
    """

    axes: int = 2
    theta: float = numeric(100.0)
    layout: Layout = "interleaved"

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """shared={"frequencies": those of the pairs of one axis}."""
        del length
        pairs = _pairs_per_axis("AxialRoPE", self.axes, sizes.head_dim)
        return EncodingParams(shared={"frequencies": exact(geometric(pairs, self.theta))})

    def turn(self, p: EncodingParams, x: Float[Array, "T H"], pos: Num[ArrayLike, "T A"]) -> Float[Array, "T H"]:
        """R(pos) x."""
        chex.assert_shape(pos, (x.shape[0], self.axes))
        each = [angles(pos[:, axis], p.shared["frequencies"], compute_dtype(x)) for axis in range(self.axes)]
        return rotate(x, jnp.concatenate(each, axis=-1), self.layout)


@dataclasses.dataclass(frozen=True)
class MixedRoPE(_RotationOverAxes):
    """RoPE on `axes` coordinates with learned frequencies for every axis and pair; `theta` is where they start.

    Raises ValueError for hyper-parameters out of range, and for a head dimension that is not a multiple of 2 * `axes`.

    Example:
        >>> params = MixedRoPE().init(jax.random.key(0), Sizes(model=32, heads=4, kv_heads=2, head_dim=8))
        >>> params.kv_head["frequencies"].shape
        (2, 2, 4)
    """

    axes: int = 2
    theta: float = 10.0
    layout: Layout = "interleaved"

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """kv_head={"frequencies": [K,A,H/2]} along random orthogonal directions."""
        directions = jax.random.orthogonal(key, self.axes, (sizes.kv_heads,), jnp.float32)
        # The sign and not the determinant, which is 1 but for the rounding of the matrix.
        handedness = jnp.sign(jnp.linalg.det(directions))[:, None, None]
        handed = jnp.concatenate([directions[..., :-1], directions[..., -1:] * handedness], -1)
        # Sizes that do not fit are refused by `check`, before these parameters meet an array.
        pairs = sizes.head_dim // (2 * self.axes)
        return EncodingParams(kv_head={"frequencies": mixed_frequencies(handed, pairs, self.theta)})

    def turn(self, p: EncodingParams, x: Float[Array, "T H"], pos: Num[ArrayLike, "T A"]) -> Float[Array, "T H"]:
        """R(pos) x."""
        frequencies, dtype = p.kv_head["frequencies"], compute_dtype(x)
        chex.assert_shape(pos, (x.shape[0], self.axes))
        chex.assert_shape(frequencies, (self.axes, x.shape[1] // 2))
        # A sum of products and no matrix product, whose inputs a GPU rounds to 11 bits.
        each = jnp.asarray(pos).astype(dtype)[:, :, None] * frequencies.astype(dtype)[None]
        return rotate(x, each.sum(1), self.layout)


def mixed_frequencies(directions: Float[Array, "K A A"], pairs: int, theta: float) -> Float[Array, "K A C"]:
    """theta^(-m/pairs) times column b of `directions`, for pair m = 0 .. pairs - 1 of block b; C = A * pairs.

    Example:
        >>> mixed_frequencies(jnp.eye(2)[None], 2, 100.0)[0].tolist()
        [[1.0, 0.10000000149011612, 0.0, 0.0], [0.0, 0.0, 1.0, 0.10000000149011612]]
    """
    chex.assert_rank(directions, 3)
    magnitudes = jnp.asarray(geometric(pairs, theta), directions.dtype)
    blocks = directions[..., None] * magnitudes[None, None, None]
    return blocks.reshape(*directions.shape[:2], -1)


def _pairs_per_axis(owner: str, axes: int, head_dim: int) -> int:
    if head_dim % (2 * axes):
        raise ValueError(
            f"{owner} shares the pairs of a head among {axes} axes: the head dimension must be a multiple of {2 * axes}, "
            f"got {head_dim}"
        )
    return head_dim // (2 * axes)
