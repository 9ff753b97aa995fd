"""ALiBi, attention with linear biases, and NAPE, which gives them to a part of the heads.

    score[i, j] = scale * q_i . k_j - m_h * (i - j)          symmetric=False, under a causal mask
    score[i, j] = scale * q_i . k_j - m_h * |i - j|          symmetric=True
    score[i, j] = scale * q_i . k_j - m_h * (i - j - past)   symmetric=True and past > 0, for keys in the past (i > j)

Without a causal mask, `past` tells the past from the future: Ruoss et al. 2023 (arXiv:2305.16843) use 1/2.

Acts through `bias`. Nothing is learned. Constants: slope [N], where the slope m_h of head h = 1..N is 2^(-8h/N) if N is a
power of two; otherwise the slopes of the largest power of two P below N come first, followed by every other slope of 2P heads.

NAPE (NoPE and ALiBi) has m_h = 1/h on the first heads, or 2^(1-h) with kind="exp", and 0 on the others, which see no positions.

References: Press, Smith, Lewis 2022, arXiv:2108.12409, section 3; the rule for other N is that of the authors' code.
Vasylenko et al. 2026, arXiv:2506.16640 (NAPE); slopes are those of the authors' code (deep-spin/asentmax, `get_nape_slopes`).
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Index, NonNegative, Positive
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.population import numeric
from attnjax.typing import Array, Float

REWARDS = "rewards keys in the future the more the farther they are"


@dataclasses.dataclass(frozen=True)
class ALiBi(PositionEncoding):
    """Linear bias -m_h * n, or -m_h * |n| with `symmetric`, where n = q_pos - k_pos.

    Hyper-parameters: `slopes`, one positive number per head (None: the published ones); `symmetric`, needed where the mask is
    not causal; with it `past`, which is subtracted from the distance of keys in the past.

    Example:
        >>> ALiBi().bias({"slope": jnp.float32(0.5)}, jnp.array([0.0, 1.0, 4.0])).tolist()
        [-0.0, -0.5, -2.0]
    """

    slopes: tuple[Positive, ...] | None = numeric(None)
    symmetric: bool = False
    past: NonNegative = 0.0

    per_head = ("slope",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.past and not self.symmetric:
            raise ValueError(f"ALiBi: past belongs to symmetric=True, got past={self.past} without it")

    @property
    def causal_only(self) -> str:
        return "" if self.symmetric else REWARDS

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns slope [N]. Raises ValueError where `slopes` does not have one number per head."""
        slopes = published_slopes(sizes.heads) if self.slopes is None else self.slopes
        if len(slopes) != sizes.heads:
            raise ValueError(f"ALiBi: got {len(slopes)} slopes for {sizes.heads} heads, need one per head")
        return {"slope": np.array(slopes)}

    def absent(self, sizes: Sizes) -> dict:
        """Returns slopes of 0."""
        return {"slope": np.zeros(sizes.heads)}

    def bias(self, p: Params, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns -m * n, or -m * |n| where symmetric, less m * past for n > 0."""
        distance = jnp.abs(n) if self.symmetric else n
        return -p["slope"] * jnp.where(n > 0, distance - self.past, distance)

    def slope(self, p: Params) -> Float[Array, ""] | None:
        """Returns -m, with `bias(p, n) == -m * n` for all n; None where symmetric."""
        return None if self.symmetric else -p["slope"]

    def for_encoder(self) -> "ALiBi":
        """Returns the symmetric form."""
        return dataclasses.replace(self, symmetric=True)


@dataclasses.dataclass(frozen=True)
class NAPE(PositionEncoding):
    """Bias -m * n on the first `biased` heads (None: half of them, rounded down), none on the others; needs a causal mask.

    Example:
        >>> NAPE().constants(Sizes(model=32, heads=4, kv_heads=4, head_dim=8))["slope"].tolist()
        [1.0, 0.5, 0.0, 0.0]
    """

    biased: Index | None = None
    kind: Literal["linear", "exp"] = "linear"

    per_head = ("slope",)
    causal_only = REWARDS

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns slope [N]. Raises ValueError for more biased heads than there are heads."""
        biased = sizes.heads // 2 if self.biased is None else self.biased
        if biased > sizes.heads:
            raise ValueError(f"NAPE: biased={biased} of {sizes.heads} heads")
        h = np.arange(biased)
        slopes = 1 / (h + 1) if self.kind == "linear" else 0.5**h
        return {"slope": np.pad(slopes, (0, sizes.heads - biased))}

    def bias(self, p: Params, n: Float[Array, "..."]) -> Float[Array, "..."]:
        """Returns -m * n."""
        return -p["slope"] * n

    def slope(self, p: Params) -> Float[Array, ""]:
        """Returns -m."""
        return -p["slope"]


def published_slopes(heads: int) -> tuple[float, ...]:
    """Returns 2^(-8h/N) for h = 1..N where N is a power of two, otherwise as the module docstring says.

    Example:
        >>> published_slopes(4)
        (0.25, 0.0625, 0.015625, 0.00390625)
    """
    geometric = lambda count: tuple(2.0 ** (-8.0 * h / count) for h in range(1, count + 1))
    power = 2 ** (heads.bit_length() - 1)
    return geometric(power) + geometric(2 * power)[0::2][: heads - power]
