"""DAPE: data-adaptive positional encoding, a network that reads the logits and biases of all heads.

    logits = A + B + W_out^T leaky_relu(W_hidden^T [A; B] + b_hidden) + b_out      at every query and key
    A = scale * q @ k.T of all N heads,    B = the bias of the base encoding

Acts through `score`, on the tiles of all heads at once (`Trait.ALL_HEADS`): logits[N,t,s] -> [N,t,s]. The base is an encoding
that adds to the logits, such as Kerple, ALiBi or FIRE; B is its score of logits that are 0. Without a base the network reads A
alone. The mask comes afterwards, and no entry reads another one, so that the future stays hidden.

Parameters are pairs: those of the base as its `init` makes them, and those of the network in shared[1] =
{"hidden": [2N, width], "hidden_bias": [width], "out": [width, N], "out_bias": [N]}, uniform in +-1/sqrt(inputs); [N, width]
without a base.

Reference: Zheng et al. 2024 (arXiv:2405.14722); the slope of 0.01 and a width of 32 are those of the authors' code.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, PositionEncoding, Sizes, Tile, Trait
from attnjax.positions.checks import MOST, validate_integer
from attnjax.positions.compose import parts_of, score_of_part
from attnjax.positions.fire import uniform
from attnjax.positions.kerple import Kerple
from attnjax.typing import Array, ArrayLike, Float, Num

HIGHEST = jax.lax.Precision.HIGHEST


@dataclasses.dataclass(frozen=True)
class DAPE(PositionEncoding):
    """A network of one hidden layer, `width` units wide, over the logits and the biases of `base` of all heads.

    Raises ValueError for a width below 1, and for a base that does more than add to the logits of one head; an encoding of
    queries and keys goes beside it, as in `compose(RoPE(), DAPE())`.

    Example:
        >>> from attnjax import Mask, attend
        >>> encoding, sizes = DAPE(), Sizes(model=16, heads=4, kv_heads=2, head_dim=4)
        >>> params = encoding.init(jax.random.key(0), sizes)
        >>> q, k = jnp.ones((1, 5, 4, 4)), jnp.ones((1, 5, 2, 4))
        >>> attend(q, k, k, encoding=encoding, params=params, mask=Mask(causal=True)).shape
        (1, 5, 4, 4)
    """

    base: PositionEncoding | None = Kerple()  # noqa: RUF009, a frozen record
    width: int = 32

    def __post_init__(self) -> None:
        validate_integer("DAPE", most=MOST, width=self.width)
        if self.base is None:
            return
        allowed = Trait.BIAS | Trait.SCORE | Trait.LENGTH
        if not isinstance(self.base, PositionEncoding):
            raise ValueError(f"DAPE: base must be an encoding such as Kerple(), or None, got {self.base!r}")
        replaces = any(part.replaces_logits for part in parts_of(self.base))
        if replaces or self.base.traits & ~allowed or not self.base.traits & Trait.ON_SCORES:
            raise ValueError(f"DAPE: base must add to the logits of a head and do nothing else, got {self.base}")

    @property
    def traits(self) -> Trait:
        """A score of all heads, and the length where the base needs it."""
        by_length = Trait(0) if self.base is None else self.base.traits & Trait.LENGTH
        return super().traits | Trait.ALL_HEADS | by_length

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """Pairs of the base's parameters and the network's."""
        keys = jax.random.split(key, 5)
        inputs = sizes.heads if self.base is None else 2 * sizes.heads
        network = {
            "hidden": uniform(keys[0], (inputs, self.width), inputs),
            "hidden_bias": uniform(keys[1], (self.width,), inputs),
            "out": uniform(keys[2], (self.width, sizes.heads), self.width),
            "out_bias": uniform(keys[3], (sizes.heads,), self.width),
        }
        return _pairs(EncodingParams() if self.base is None else self.base.init(keys[4], sizes), network)

    def constants(self, sizes: Sizes, length: Any = None) -> EncodingParams:
        """Pairs of the base's constants and none."""
        return _pairs(EncodingParams() if self.base is None else self.base.constants(sizes, length), ())

    def check(
        self, *, sizes: Sizes | None = None, causal: bool | None = None, pos: Num[ArrayLike, "..."] | None = None
    ) -> None:
        """Raises the ValueError of the base."""
        if self.base is not None:
            self.base.check(sizes=sizes, causal=causal, pos=pos)

    def score(self, p: EncodingParams, tile: Tile) -> Float[Array, "N t s"]:
        """A + B + the network of [A; B]."""
        A = tile.logits
        chex.assert_rank(A, 3)
        network = jax.tree.map(lambda leaf: jnp.asarray(leaf, A.dtype), p.shared[1])
        B = None
        if self.base is not None:
            zero = tile._replace(logits=jnp.zeros_like(A))
            B = score_of_part(self.base, EncodingParams(*(side[0] for side in p)), zero, (), self.traits)
        x = A if B is None else jnp.concatenate([A, B])
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        hidden = (
            jnp.einsum("cw,cts->wts", network["hidden"], x, precision=HIGHEST) + network["hidden_bias"][:, None, None]
        )
        out = jnp.einsum("wn,wts->nts", network["out"], jax.nn.leaky_relu(hidden), precision=HIGHEST)
        out = out + network["out_bias"][:, None, None]
        return A + out if B is None else A + B + out


def _pairs(base: EncodingParams, network: Any) -> EncodingParams:
    return EncodingParams((base.head, ()), (base.kv_head, ()), (base.shared, network))
