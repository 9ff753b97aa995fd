"""Learned absolute positions.

    x_p <- x_p + E_p,    E a table of `length` rows

Acts on the embeddings (`embed`): x[T,D], pos[T] -> [T,D]. Learned: shared={"table": [length, D]}, drawn from a normal
distribution of deviation `std` (0.02, as GPT-2 and BERT). There is no row past the table and none before it: such a
position is a ValueError where its value is known, and a row of NaN where it is traced, never the row of a neighbour.

Reference: Gehring et al. 2017, section 3.1 (arXiv:1705.03122); Radford et al. 2019 (GPT-2) for the deviation.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes
from attnjax.positions.checks import MOST, validate, validate_integer
from attnjax.positions.concrete import concrete
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype


@dataclasses.dataclass(frozen=True)
class Learned(PositionEncoding):
    """A trained vector per position 0 .. length-1, added to the embeddings.

    Raises ValueError if `length` is not a positive integer or `std` is not positive and finite.

    Example:
        >>> params = EncodingParams(shared={"table": jnp.array([[1.0, 2.0], [3.0, 4.0]])})
        >>> Learned(length=2).embed(params, jnp.zeros((1, 2)), jnp.array([1])).tolist()
        [[3.0, 4.0]]
    """

    length: int
    std: float = 0.02

    def __post_init__(self) -> None:
        validate_integer("Learned", most=MOST, length=self.length)
        validate("Learned", std=self.std)

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """shared={"table": [length, D]}, independent normal numbers of deviation `std`."""
        table = float(self.std) * jax.random.normal(key, (self.length, sizes.model), jnp.float32)
        return EncodingParams(shared={"table": table})

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Refuses fractional positions, and positions outside the table where their values are known."""
        del sizes, causal
        if pos is None:
            return
        if not jnp.issubdtype(pos.dtype, jnp.integer):
            raise ValueError(f"Learned needs integer positions (a table has no rows in between), got {pos.dtype}")
        values = concrete(pos)
        if values is not None and values.size and not 0 <= values.min() <= values.max() < self.length:
            raise ValueError(
                f"Learned has rows for positions 0..{self.length - 1}, got positions {values.min()}..{values.max()}: "
                f"make a longer table with Learned(length=...), or map positions into it"
            )

    def embed(self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """x + table[pos], in the type of x.

        Raises ValueError for fractional positions, a known position outside the table, and a table that does not fit.
        """
        self.check(pos=pos)
        table = p.shared["table"]
        if table.shape != (self.length, x.shape[-1]):
            raise ValueError(f"Learned: the table must have shape {(self.length, x.shape[-1])}, got {table.shape}")
        pos = jnp.asarray(pos)
        inside = (pos >= 0) & (pos < self.length)
        dtype = compute_dtype(x)
        rows = table[jnp.where(inside, pos, 0)].astype(dtype)
        rows = jnp.where(inside[:, None], rows, jnp.asarray(jnp.nan, dtype))
        return (x.astype(dtype) + rows).astype(x.dtype)
