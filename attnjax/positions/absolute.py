"""Absolute positions that are added to the embeddings: sinusoidal and learned.

    Sinusoidal   x_p <- x_p + PE_p    PE_p = sin and cos of p * theta^(-2k/D),    k = 0 .. D/2 - 1
    Learned      x_p <- x_p + E_p     E a table of `length` rows

Acts on the embeddings (`embed`): x[T,D], pos[T] -> [T,D]. Hyper-parameters of Sinusoidal: `theta`, the base of the frequencies
(10,000), and `order`, the places of sines and cosines:

    "interleaved"    sin_0 cos_0 sin_1 cos_1 ...                 as in the paper
    "concatenated"   sin_0 sin_1 ... cos_0 cos_1 ...             as in tensor2tensor and Transformer-XL

The orders are permutations of one another. The factor sqrt(D) on the embeddings belongs to the token embedding.

Learned: table [length, D] ~ N(0, std^2), with 0.02 as GPT-2 and BERT. There is no row past the table and none before it: such
a position is a ValueError where its value is known, and a row of NaN where it is traced, never the row of a neighbour.

References: Vaswani et al. 2017, section 3.5 (arXiv:1706.03762); Gehring et al. 2017, section 3.1 (arXiv:1705.03122) for
Learned; Radford et al. 2019 (GPT-2) for its deviation.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.kinds import Positive
from attnjax.positions.angles import angles, exact, geometric, sine_cosine
from attnjax.positions.base import Params, PositionEncoding, Sizes, resolve, validate_encoding
from attnjax.positions.checks import Rows, concrete, validate_tokens
from attnjax.positions.compose import each, parts_of
from attnjax.positions.population import numeric
from attnjax.positions.rotary import merge
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree, compute_dtype

Order = Literal["interleaved", "concatenated"]


@dataclasses.dataclass(frozen=True)
class Sinusoidal(PositionEncoding):
    """Sines and cosines of geometric frequencies, added to the embeddings (Vaswani et al. 2017, section 3.5).

    Example:
        >>> p = Sinusoidal().constants(Sizes(4, 1, 1, 4))
        >>> Sinusoidal().embed(p, jnp.zeros((1, 4)), jnp.array([0])).tolist()
        [[0.0, 1.0, 0.0, 1.0]]
    """

    order: Order = "interleaved"
    theta: Positive = numeric(10_000.0)

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns the frequencies of D / 2 pairs. Raises ValueError for an odd model dimension."""
        if sizes.model < 2 or sizes.model % 2:
            raise ValueError(f"Sinusoidal pairs a sine with a cosine: the width must be even, got {sizes.model}")
        return {"frequencies": exact(geometric(sizes.model // 2, self.theta)), "amplitude": np.float64(1.0)}

    def absent(self, sizes: Sizes) -> dict:
        """Returns an amplitude of 0."""
        return {**self.constants(sizes), "amplitude": np.float64(0.0)}

    def embed(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """Returns x + amplitude * PE(pos)."""
        sin, cos = sine_cosine(angles(pos, p["frequencies"]))
        table = merge(sin, cos, "half" if self.order == "concatenated" else "interleaved")
        return x + jnp.asarray(p["amplitude"], table.dtype) * table


@dataclasses.dataclass(frozen=True)
class Learned(PositionEncoding):
    """A trained vector for each position 0 .. length-1, added to the embeddings.

    Example:
        >>> p = {"table": jnp.array([[1.0, 2.0], [3.0, 4.0]])}
        >>> Learned(length=2).embed(p, jnp.zeros((2, 2)), jnp.array([1, 2])).tolist()
        [[3.0, 4.0], [nan, nan]]
    """

    length: Rows
    std: Positive = 0.02

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns table [length, D], independent normal numbers of deviation `std`."""
        return {"table": self.std * jax.random.normal(key, (self.length, sizes.model), jnp.float32)}

    def check(self, pos: np.ndarray) -> None:
        """Raises ValueError for positions outside the table."""
        if pos.size and not 0 <= pos.min() <= pos.max() < self.length:
            raise ValueError(
                f"Learned has rows for positions 0..{self.length - 1}, got positions {pos.min()}..{pos.max()}: "
                f"make a longer table with Learned(length=...), or map positions into it"
            )

    def embed(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """Returns x + table[pos]. Raises ValueError for fractional positions, and for a table of another shape."""
        if not jnp.issubdtype(pos.dtype, jnp.integer):
            raise ValueError(f"Learned needs integer positions (a table has no rows in between), got {pos.dtype}")
        if p["table"].shape != (self.length, x.shape[1]):
            raise ValueError(f"Learned: the table must have shape {(self.length, x.shape[1])}, got {p['table'].shape}")
        return x + p["table"].at[pos].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


def embed(
    encoding: PositionEncoding, params: PyTree, x: Float[Array, "B T D"], pos: ArrayLike
) -> Float[Array, "B T D"]:
    """Returns embeddings with their positions put in, for positions [T] or [B, T]. The model calls it once, on its input.

    Of a composition only the parts with an `embed` hook act. Raises ValueError where the shapes do not fit, for 16-bit floats,
    in which positions collide, for known positions that an encoding cannot serve, and where parameters are missing.

    Example:
        >>> embed(Sinusoidal(), None, jnp.zeros((1, 1, 4)), jnp.array([0])).tolist()
        [[[0.0, 1.0, 0.0, 1.0]]]
    """
    validate_encoding("embed: encoding", encoding)
    validate_tokens("embed", x, pos)
    if jnp.issubdtype(pos.dtype, jnp.integer):
        # Narrower integers do not hold the length of a table, nor the magnitude of their smallest value.
        pos = pos.astype(jnp.int32)
    elif pos.dtype not in (jnp.float32, jnp.float64):
        raise ValueError(f"embed: pos must be integers or float32 (16-bit floats collide past 256), got {pos.dtype}")
    y, sizes = x.astype(compute_dtype(x)), Sizes(model=x.shape[2], heads=1, kv_heads=1, head_dim=x.shape[2])
    for part, own in zip(parts_of(encoding), each("params", encoding, params), strict=True):
        if part.has("embed"):
            if (known := concrete(pos)) is not None:
                part.check(np.atleast_2d(known))
            y = _over_examples(part, resolve(part, own, sizes), y, pos)
    return y.astype(x.dtype)


def _over_examples(part: PositionEncoding, p: dict, x: Float[Array, "B T D"], pos: ArrayLike) -> Float[Array, "B T D"]:
    wide = lambda leaf: jnp.asarray(leaf, x.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.asarray(leaf)
    found = jax.vmap(part.embed, in_axes=(None, 0, None if pos.ndim == 1 else 0))(jax.tree.map(wide, p), x, pos)
    if getattr(found, "shape", None) != x.shape:
        shapes = jax.tree.map(lambda leaf: leaf.shape[1:], found)
        raise ValueError(f"{part}: the hook embed must return embeddings {x.shape[1:]}, got {shapes}")
    return found.astype(x.dtype)
