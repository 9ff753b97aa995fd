"""Multimodal rotary positions (M-RoPE): one RoPE whose pairs read the time, the height or the width of a token.

    score(i, j) = scale * q_i . R(p_j - p_i) k_j,    pair c turned by p_a(c) * theta^(-2c/H)

Acts on queries and keys (`map_q`, `map_k`): q[T,H], pos[T,3] -> [T,H], with positions (time, height, width). The first
`sections[0]` pairs, of the highest frequencies, read the time, the next ones the height, and the last the width. Nothing is
learned.

The three positions of a token of text are equal, which makes M-RoPE RoPE, bit by bit; `attend` takes positions [T] for such
tokens. The patches of an image share their time, their height and width count from the position where the image begins
(`grid_positions`), and the text after it begins at the largest position so far plus 1.

Reference: Wang et al. 2024 (Qwen2-VL, arXiv:2409.12191), section 2.1, with theta = 1,000,000 and sections (16, 24, 24) of 64
pairs in the released models.
"""

import dataclasses
from typing import Any

import chex
import jax.numpy as jnp
import numpy as np

from attnjax.positions.angles import Frequencies, angles
from attnjax.positions.base import EncodingParams, Sizes, Trait
from attnjax.positions.checks import validate, validate_integer
from attnjax.positions.population import numeric
from attnjax.positions.rope import RoPE
from attnjax.positions.rotary import Layout, Rotation, rotate
from attnjax.positions.scaling import Scaling
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class MRoPE(Rotation):
    """RoPE on positions (time, height, width), each for its section of the pairs.

    `theta`, `layout` and `scaling` are those of `RoPE`. `sections` counts the pairs of each axis; None is the share of
    Qwen2-VL, a quarter of the pairs for the time and half of the others each for height and width.

    Raises ValueError for hyper-parameters out of range, a scaling that depends on the length, which positions with several
    axes do not have, and sections that do not add up to the pairs of a head.

    Example:
        >>> from attnjax import Mask, attend
        >>> x = jnp.ones((1, 4, 2, 16))
        >>> pos = jnp.array([[0, 0, 0], [1, 1, 1], [1, 1, 2], [3, 3, 3]])
        >>> attend(x, x, x, encoding=MRoPE(), q_pos=pos, k_pos=pos, mask=Mask(causal=True)).shape
        (1, 4, 2, 16)
    """

    theta: float = numeric(10_000.0)
    sections: tuple[int, int, int] | None = None
    layout: Layout = "half"
    scaling: Scaling | None = numeric(None)  # noqa: RUF009, this makes a field, as dataclasses.field does

    axes = 3

    def __post_init__(self) -> None:
        validate("MRoPE", theta=self.theta)
        if Trait.LENGTH in self.rope.traits:
            raise ValueError(
                f"MRoPE: positions with three axes have no length that a scaling could use, got {self.scaling}"
            )
        if self.sections is None:
            return
        if not isinstance(self.sections, tuple | list) or len(self.sections) != self.axes:
            raise ValueError(f"MRoPE: sections must be three numbers of pairs, or None, got {self.sections!r}")
        for pairs in self.sections:
            validate_integer("MRoPE", minimum=0, sections=pairs)
        object.__setattr__(self, "sections", tuple(self.sections))

    @property
    def rope(self) -> RoPE:
        """The encoding of text."""
        return RoPE(theta=self.theta, layout=self.layout, scaling=self.scaling)

    @property
    def traits(self) -> Trait:
        """The maps, at positions with coordinates."""
        return super().traits | Trait.AXES

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses an odd head dimension, and sections that do not add up to its pairs."""
        del causal, pos
        if sizes is not None:
            self.rope.check(sizes=sizes)
            self.pairs(sizes.head_dim // 2)

    def pairs(self, pairs: int) -> tuple[int, int, int]:
        """How many of a head's pairs read each axis. Raises ValueError where `sections` do not add up to them.

        Example:
            >>> MRoPE().pairs(64)
            (16, 24, 24)
        """
        if self.sections is None:
            time, height = pairs // 4, (pairs - pairs // 4) // 2
            return time, height, pairs - time - height
        if sum(self.sections) != pairs:
            raise ValueError(
                f"MRoPE: sections {self.sections} must add up to the {pairs} pairs of a head of {2 * pairs}"
            )
        return self.sections

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """shared={"frequencies", "gain"}, those of RoPE."""
        return self.rope.constants(sizes, length)

    def turn(self, p: EncodingParams, x: Float[Array, "T H"], pos: Num[ArrayLike, "T 3"]) -> Float[Array, "T H"]:
        """R(pos) x."""
        chex.assert_shape(pos, (x.shape[0], self.axes))
        each, first = [], 0
        for axis, pairs in enumerate(self.pairs(x.shape[1] // 2)):
            section = Frequencies(*(words[first : first + pairs] for words in p.shared["frequencies"]))
            each.append(angles(pos[:, axis], section, compute_dtype(x)))
            first += pairs
        return rotate(x, jnp.concatenate(each, axis=-1), self.layout, p.shared["gain"])


def grid_positions(time: int, height: int, width: int, start: int = 0) -> np.ndarray:
    """(time, height, width) of the patches of an image (`time` = 1) or a video, row by row, that begin at `start`.

    Raises ValueError for sizes below 1.

    Example:
        >>> image = grid_positions(1, 2, 2, start=4)
        >>> image.tolist()
        [[4, 4, 4], [4, 4, 5], [4, 5, 4], [4, 5, 5]]
        >>> int(image.max()) + 1  # where the text goes on
        6
    """
    validate_integer("grid_positions", time=time, height=height, width=width)
    axes = np.indices((time, height, width), dtype=np.int32)
    return axes.reshape(3, -1).T + np.int32(start)
