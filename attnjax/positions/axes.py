"""Rotary positions with several axes, such as the column and row of a patch of an image.

    score(i, j) = scale * q_i . R(p_j - p_i) k_j

    AxialRoPE    pair (a, m) turned by p_a * f_m,    f_m = theta^(-2Am/H),    m = 0 .. H/(2A) - 1
    MixedRoPE    pair c turned by sum_a p_a * f_ac,    f learned for every axis and pair
    MRoPE        pair c turned by p_a(c) * theta^(-2c/d)

Act on queries and keys (`angle`), pos[T,A] -> [T,pairs].

With A axes, `AxialRoPE` gives each axis a contiguous block of H/(2A) pairs, which turn at the same frequencies. `MixedRoPE`
(RoPE-Mixed) lets every pair turn with all axes, in a direction of its own. `MRoPE` is RoPE whose pairs read the time, the
height or the width of a token. Angles of `AxialRoPE` and `MRoPE` are exact at any integer position; those of `MixedRoPE` are
float32 products, off by |p f| 2^-24. A token that has no place on the grid, such as a class token, is not turned at the
position 0 on every axis.

References: Heo, Park, Han, Yun 2024 (arXiv:2403.13298), section 3.2, with theta = 100 for axial and 10 for mixed frequencies,
as in the authors' code. M-RoPE: Wang et al. 2024 (Qwen2-VL, arXiv:2409.12191), section 2.1, with theta = 1,000,000 and
sections (16, 24, 24) of 64 pairs in the released models.
"""

import dataclasses
import itertools
from typing import Annotated

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Index, Positive, Range
from attnjax.positions.angles import Frequencies, angles, exact, geometric
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.checks import validate_integer
from attnjax.positions.population import numeric
from attnjax.positions.rope import RotaryFrequencies
from attnjax.positions.rotary import Layout
from attnjax.typing import Array, ArrayLike, Float, Num

Axes = Annotated[int, Range(1)]


@dataclasses.dataclass(frozen=True)
class AxialRoPE(PositionEncoding):
    """RoPE on `axes` coordinates, each with its own share of the pairs and the same frequencies. Nothing is learned.

    Raises ValueError for a head dimension that is not a multiple of 2 * `axes`.

    Example:
        >>> from attnjax import attend
        >>> x = jnp.ones((1, 6, 2, 8))
        >>> row_and_column = jnp.stack(jnp.divmod(jnp.arange(6), 3), -1)
        >>> attend(x, x, x, encoding=AxialRoPE(), q_pos=row_and_column, k_pos=row_and_column).shape
        (1, 6, 2, 8)
    """

    axes: Axes = 2
    theta: Positive = numeric(100.0)
    layout: Layout = "interleaved"

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns the frequencies of the pairs of one axis."""
        return {"frequencies": exact(geometric(_pairs_per_axis(self, sizes), self.theta))}

    def angle(self, p: Params, pos: Num[ArrayLike, "T A"]) -> Float[Array, "T pairs"]:
        """Returns p_a * f_m, axis by axis."""
        chex.assert_shape(pos, (None, self.axes))
        return jnp.concatenate([angles(pos[:, axis], p["frequencies"]) for axis in range(self.axes)], axis=-1)


@dataclasses.dataclass(frozen=True)
class MixedRoPE(PositionEncoding):
    """RoPE on `axes` coordinates with learned frequencies for every axis and pair; `theta` is the base of their first values.

    Learned: frequencies [K,A,H/2] per key head, which the queries of its group share. At first the magnitudes are f_m, and the
    A blocks of pairs of a head point along the columns of a random rotation matrix.

    Raises ValueError for a head dimension that is not a multiple of 2 * `axes`.

    Example:
        >>> params = MixedRoPE().init(jax.random.key(0), Sizes(model=32, heads=4, kv_heads=2, head_dim=8))
        >>> params["frequencies"].shape
        (2, 2, 4)
    """

    axes: Axes = 2
    theta: Positive = 10.0
    layout: Layout = "interleaved"

    per_kv_head = ("frequencies",)

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns frequencies [K,A,H/2] along random orthogonal directions."""
        directions = jax.random.orthogonal(key, self.axes, (sizes.kv_heads,), jnp.float32)
        # The sign and not the determinant, which is 1 but for the rounding of the matrix.
        handedness = jnp.sign(jnp.linalg.det(directions))[:, None, None]
        handed = jnp.concatenate([directions[..., :-1], directions[..., -1:] * handedness], -1)
        return {"frequencies": mixed_frequencies(handed, _pairs_per_axis(self, sizes), self.theta)}

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns nothing, for head dimensions whose pairs the axes can share."""
        _pairs_per_axis(self, sizes)
        return {}

    def angle(self, p: Params, pos: Num[ArrayLike, "T A"]) -> Float[Array, "T pairs"]:
        """Returns sum_a p_a * f_ac."""
        frequencies = p["frequencies"]
        chex.assert_shape([pos, frequencies], [(None, self.axes), (self.axes, None)])
        # A sum of products and no matrix product, whose inputs a GPU rounds to 11 bits.
        return (jnp.asarray(pos).astype(frequencies.dtype)[:, :, None] * frequencies[None]).sum(1)


@dataclasses.dataclass(frozen=True)
class MRoPE(RotaryFrequencies):
    """Multimodal rotary positions (M-RoPE): RoPE on positions (time, height, width), each for its section of the pairs.

    The first `sections[0]` pairs, of the highest frequencies, read the time, the next ones the height, and the last the width.
    None is the share of Qwen2-VL, a quarter of the pairs for the time and half of the others each for height and width. The
    other hyper-parameters are those of `RoPE`. Nothing is learned.

    The three positions of a token of text are equal, which makes M-RoPE RoPE, bit by bit; `attend` takes positions [T] for such
    tokens. The patches of an image share their time, their height and width count from the position where the image begins
    (`grid_positions`), and the text after it begins at the largest position so far plus 1.

    Raises ValueError for sections that do not add up to the pairs, and for a scaling that depends on the length, because the
    number of tokens is not the range of positions with several axes.

    Example:
        >>> from attnjax import Mask, attend
        >>> x = jnp.ones((1, 4, 2, 16))
        >>> pos = jnp.array([[0, 0, 0], [1, 1, 1], [1, 1, 2], [3, 3, 3]])
        >>> attend(x, x, x, encoding=MRoPE(), q_pos=pos, k_pos=pos, mask=Mask(causal=True)).shape
        (1, 4, 2, 16)
    """

    sections: tuple[Index, Index, Index] | None = None

    axes = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by_length:
            raise ValueError(
                f"MRoPE: three axes have no one length that frequencies could depend on, got {self.scaling}"
            )

    def spans(self, pairs: int) -> tuple[int, int, int]:
        """Returns how many of the pairs read each axis. Raises ValueError where `sections` do not add up to them.

        Example:
            >>> MRoPE().spans(64)
            (16, 24, 24)
        """
        time, height = pairs // 4, (pairs - pairs // 4) // 2
        found = self.sections or (time, height, pairs - time - height)
        if sum(found) != pairs:
            raise ValueError(f"MRoPE: sections {found} must add up to the {pairs} pairs of a head")
        return found

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns frequencies and gain, those of RoPE."""
        self.spans(self.pairs(sizes.head_dim)[0])
        return super().constants(sizes, length)

    def angle(self, p: Params, pos: Num[ArrayLike, "T 3"]) -> Float[Array, "T pairs"]:
        """Returns p_a(c) * theta_c."""
        chex.assert_shape(pos, (None, self.axes))
        ends = np.cumsum((0, *self.spans(p["frequencies"].radians.shape[0])))
        section = lambda first, last: Frequencies(*(words[first:last] for words in p["frequencies"]))
        each = [angles(pos[:, axis], section(*span)) for axis, span in enumerate(itertools.pairwise(ends))]
        return jnp.concatenate(each, axis=-1)


def mixed_frequencies(directions: Float[Array, "K A A"], pairs: int, theta: float) -> Float[Array, "K A C"]:
    """Returns theta^(-m/pairs) times column b of `directions`, for pair m = 0 .. pairs - 1 of block b; C = A * pairs.

    Example:
        >>> mixed_frequencies(jnp.eye(2)[None], 2, 100.0)[0].tolist()
        [[1.0, 0.10000000149011612, 0.0, 0.0], [0.0, 0.0, 1.0, 0.10000000149011612]]
    """
    chex.assert_rank(directions, 3)
    magnitudes = jnp.asarray(geometric(pairs, theta), directions.dtype)
    return (directions[..., None] * magnitudes[None, None, None]).reshape(*directions.shape[:2], -1)


def grid_positions(time: int, height: int, width: int, start: int = 0) -> np.ndarray:
    """Returns (time, height, width) of the patches of an image (`time` = 1) or a video, row by row, that begin at `start`.

    Raises ValueError for sizes below 1.

    Example:
        >>> image = grid_positions(1, 2, 2, start=4)
        >>> image.tolist()
        [[4, 4, 4], [4, 4, 5], [4, 5, 4], [4, 5, 5]]
        >>> int(image.max()) + 1  # where the text goes on
        6
    """
    validate_integer("grid_positions", time=time, height=height, width=width)
    return np.indices((time, height, width), dtype=np.int32).reshape(3, -1).T + np.int32(start)


def _pairs_per_axis(encoding: AxialRoPE | MixedRoPE, sizes: Sizes) -> int:
    name, many = type(encoding).__name__, 2 * encoding.axes
    if sizes.head_dim % many:
        needs = f"the head dimension must be a multiple of {many}, got {sizes.head_dim}"
        raise ValueError(f"{name} shares the pairs of a head among {encoding.axes} axes: {needs}")
    return sizes.head_dim // many
