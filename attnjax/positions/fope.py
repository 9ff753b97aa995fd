"""FoPE, Fourier position embedding: each pair of channels is multiplied by Fourier series of the position.

    (x_a, x_b) -> (C_c x_a - S_c x_b,  S_c x_a + C_c x_b)                     pair c = 0 .. P - 1
    C_c(pos) = sum_d cos(pos f_d) A_dc,    S_c(pos) = sum_d sin(pos f_d) B_dc
    f_d      = theta^(-2d/H),    d = 0 .. W - 1, those of at least 2 pi / L

Waves longer than the trained length L, of which training never sees a whole one, are left out. As released, P is H/4 or W,
whichever is smaller, and the other pairs have C = S = 1 at every position: content without position, times 2 in a score.
Acts on queries and keys (`map_q`, `map_k`). With A = B = 1 where d = c, and 0 elsewhere, the P pairs are those of RoPE; other
numbers make no rotation, and the score depends on both positions, not on their distance alone.

Learned: cos [K, W, P] (A) and sin [K, W, P] (B), normal with the deviation gain * sqrt(2 / ((K + W) P)), plus 1 where d is c
times ceil(W / P). The authors draw them and train neither, which `frozen` does: the hooks then stop the gradient (weight decay
would still shrink them). Their gains are 0.3 to 0.6. The queries of a group share the numbers of their key head.

Reference: Hua et al. 2025 (arXiv:2412.17739), section 4, in the form of the authors' code (`FourierEmbedding` of
TsinghuaC3I/Fourier-Position-Embedding, as their runs configure it: separate series for sine and cosine and for each head).
"""

import dataclasses
import math
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Positive, Range
from attnjax.positions.angles import angles, exact, geometric, sine_cosine
from attnjax.positions.base import Params, PositionEncoding, Sizes
from attnjax.positions.projection import HIGHEST
from attnjax.positions.rotary import merge, pairs_of, swapped
from attnjax.typing import Array, ArrayLike, Float, Num


@dataclasses.dataclass(frozen=True)
class FoPE(PositionEncoding):
    """Fourier series of the position on a half of the pairs, without waves longer than `length`, the trained length.

    Example:
        >>> encoding, sizes = FoPE(length=64), Sizes(model=32, heads=2, kv_heads=2, head_dim=16)
        >>> encoding.constants(sizes)["frequencies"].radians.round(3).tolist()  # 2 pi / 64 is 0.098
        [1.0, 0.316, 0.1]
        >>> encoding.init(jax.random.key(0), sizes)["cos"].shape
        (2, 3, 3)
    """

    length: Annotated[int, Range(7, 2**30)] = 1024
    theta: Positive = 10_000.0
    gain: Positive = 0.3
    frozen: bool = False

    per_kv_head = ("cos", "sin")

    def radians(self, head_dim: int) -> np.ndarray:
        """Returns f_d. Raises ValueError for a head dimension below 4, or an odd one."""
        if head_dim < 4:
            raise ValueError(
                f"FoPE gives series to a quarter of the channels: head_dim must be at least 4, got {head_dim}"
            )
        radians = geometric(pairs_of("FoPE", head_dim), self.theta)
        return radians[radians >= 2 * math.pi / self.length]

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns cos and sin [K, W, P]."""
        waves = len(self.radians(sizes.head_dim))
        pairs = min(waves, sizes.head_dim // 4)
        near = (np.arange(waves)[:, None] == math.ceil(waves / pairs) * np.arange(pairs)[None])[None].astype(np.float32)
        deviation = self.gain * math.sqrt(2 / ((sizes.kv_heads + waves) * pairs))
        draw = lambda key: deviation * jax.random.normal(key, (sizes.kv_heads, waves, pairs), jnp.float32) + near
        return dict(zip(("cos", "sin"), map(draw, jax.random.split(key)), strict=True))

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns the frequencies f_d."""
        return {"frequencies": exact(self.radians(sizes.head_dim))}

    def map_q(self, p: Params, q: Float[Array, "T H"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T H"]:
        """Returns queries times the series."""
        weights = jax.lax.stop_gradient((p["sin"], p["cos"])) if self.frozen else (p["sin"], p["cos"])
        waves = sine_cosine(angles(jnp.asarray(pos), p["frequencies"]).astype(q.dtype))
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        series = (
            jnp.matmul(wave, w.astype(q.dtype), precision=HIGHEST) for wave, w in zip(waves, weights, strict=True)
        )
        sin, cos = (jnp.pad(x, ((0, 0), (0, q.shape[1] // 2 - x.shape[1])), constant_values=1.0) for x in series)
        return q * merge(cos, cos, "half") + swapped(q, "half") * merge(-sin, sin, "half")

    def map_k(self, p: Params, k: Float[Array, "S H"], pos: Num[ArrayLike, " S"]) -> Float[Array, "S H"]:
        """Returns keys times the series."""
        return self.map_q(p, k, pos)
