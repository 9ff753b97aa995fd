"""Encodings whose scores need all keys, or all heads, at once: CoPE, stick-breaking and DAPE. Only dense attention serves them.

CoPE, contextual position encoding, counts the keys that a query finds worth counting:

    g_ij = sigmoid(logit_ij) where the mask allows j, else 0
    p_ij = min( sum_{m >= j} g_im, max_position - 1 )
    score[i, j] = logit_ij + (1 - w) * q_i . e[floor(p_ij)] + w * q_i . e[floor(p_ij) + 1],    w = p_ij - floor(p_ij)

The sum runs over all visible keys from the last back to j, in the order of the keys and not of their positions. The gate sees
the scaled logit, and q . e is not scaled, as in x-transformers (class CoPE, called after scaling and masking, with queries that
are not scaled themselves). The gradient jumps where p_ij passes a whole number; there it is that to its right. On a GPU that
shortens the operands of float32 products, single entries were therefore wrong by a fifth of the largest;
`jax.default_matmul_precision("highest")` prevents it. Learned: table [max_position, H] (e), zero at first.

Stick-breaking makes weights without a softmax, each a share of the stick that the nearer keys have left:

    A_ij = sigmoid(s_ij) * prod_{j<k, k visible to i} (1 - sigmoid(s_ik)),    s_ij = scale * q_i . k_j
    log A_ij = log sigmoid(s_ij) + sum_{j<k} log sigmoid(-s_ik)
    out_i = sum_j A_ij v_j

It needs no positions: of two equal keys the later one gets more. Nothing is learned. The published code does not let a token
see itself; here the mask decides, and `attend_current=False` hides the token itself. The weights of a row sum to at most 1. The
rest of the stick, 1 - sum_j A_ij = prod_k (1 - sigmoid(s_ik)), is the caller's: a channel of ones beside the values brings the
sum with the output.

DAPE, data-adaptive positional encoding, is a network that reads the logits and biases of all heads, at every query and key:

    logits = A + B + W_out^T leaky_relu(W_hidden^T [A; B] + b_hidden) + b_out
    A = scale * q @ k.T of all N heads,    B = the bias of the base encoding

The base is an encoding that adds to the logits, such as Kerple, ALiBi or FIRE; B is its score of logits that are 0. Without a
base the network reads A alone. No entry reads another one, so that the future stays hidden. Learned: hidden [2N, width] ([N,
width] without a base), hidden_bias [width], out [width, N] and out_bias [N], all uniform in +-1/sqrt(inputs), and the
parameters of the base, with "base_" before their names.

References: Golovneva, Wang, Weston, Sukhbaatar 2024, arXiv:2405.18719, equations 3 to 7 and appendix B (CoPE). Tan, Yang,
Courville, Panda, Shen 2025, arXiv:2410.17980 (stick-breaking); the sum of logarithms is that of the authors' code, which leaves
the rest of the stick to its caller too. Zheng et al. 2024, arXiv:2405.14722 (DAPE); the slope of 0.01 and a width of 32 are
those of the authors' code.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.positions.base import Params, PositionEncoding, Sizes, Tile, validate_encoding
from attnjax.positions.checks import MOST, Rows, validate_integer, validate_rows
from attnjax.positions.compose import Compose
from attnjax.positions.fire import uniform
from attnjax.positions.kerple import Kerple
from attnjax.positions.projection import HIGHEST
from attnjax.typing import Array, Bool, Float

LOWEST = -1e5
"""The least logarithm of 1 - sigmoid: e^LOWEST is 0 in float64, and sums of millions of them stay finite."""
BASE = "base_"


@dataclasses.dataclass(frozen=True)
class CoPE(PositionEncoding):
    """Counted positions 0 .. `max_position` - 1, with embeddings interpolated between whole numbers.

    Example:
        >>> CoPE(max_position=4).init(jax.random.key(0), Sizes(8, 1, 1, 8))["table"].shape
        (4, 8)
    """

    max_position: Rows = 16

    whole_table = True

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns a table of zeros [max_position, H]: at first, attention without position."""
        return {"table": jnp.zeros((self.max_position, sizes.head_dim), jnp.float32)}

    def score(self, p: Params, tile: Tile) -> Float[Array, "N T S"]:
        """Returns logits + interpolated q . e[p]."""
        gates = jnp.where(tile.visible[None], jax.nn.sigmoid(tile.logits), 0.0)
        position = jnp.minimum(jax.lax.cumsum(gates, axis=2, reverse=True), self.max_position - 1)
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        by_position = jnp.matmul(tile.q, validate_rows("CoPE", p["table"], self.max_position).T, precision=HIGHEST)
        below = jnp.floor(position)
        at = lambda m: jnp.take_along_axis(by_position, jnp.minimum(m.astype(jnp.int32), self.max_position - 1), axis=2)
        weight = position - below
        return tile.logits + (1.0 - weight) * at(below) + weight * at(below + 1)


@dataclasses.dataclass(frozen=True)
class StickBreaking(PositionEncoding):
    """Weights by stick-breaking from the last visible key to the first.

    With `attend_current=False`, the default of the published code, no query sees its own token, which is found by its place and
    not by its position: with as many queries as keys that is key i of query i, and otherwise, as in decoding, the last key that
    the query sees under a causal mask.

    Example:
        >>> from attnjax import Mask, attend
        >>> x, v = jnp.zeros((1, 3, 1, 2)), jnp.arange(6.0).reshape(1, 3, 1, 2)
        >>> with_ones = jnp.concatenate([v, jnp.ones((1, 3, 1, 1))], -1)
        >>> out = attend(x, x, with_ones, encoding=StickBreaking(), mask=Mask(causal=True))
        >>> left = 1 - out[..., -1:]
        >>> left.ravel().tolist()
        [0.5, 0.25, 0.125]
        >>> (out[..., :-1] + left * v).shape
        (1, 3, 1, 2)
    """

    attend_current: bool = True

    whole_table = log_weights = True

    def score(self, p: Params, tile: Tile) -> Float[Array, "N T S"]:
        """Returns log A."""
        visible = (tile.visible if self.attend_current else _others(tile.visible))[None]
        broken = jnp.where(visible, jnp.maximum(jax.nn.log_sigmoid(-tile.logits), LOWEST), 0.0)
        # The sum beyond j is that of the next column; to subtract the own entry instead would cancel where it is large.
        beyond = jax.lax.cumsum(jnp.pad(broken[:, :, 1:], ((0, 0), (0, 0), (0, 1))), axis=2, reverse=True)
        return jnp.where(visible, jax.nn.log_sigmoid(tile.logits) + beyond, LOWEST)


def _others(visible: Bool[Array, "T S"]) -> Bool[Array, "T S"]:
    """The visible keys of other tokens than the query's own."""
    T, S = visible.shape
    own = jnp.arange(T) if T == S else S - 1 - jnp.argmax(visible[:, ::-1], axis=1)
    return visible & (jnp.arange(S)[None] != own[:, None])


@dataclasses.dataclass(frozen=True)
class DAPE(PositionEncoding):
    """A network of one hidden layer, `width` units wide, over the logits and the biases of `base` of all heads.

    Raises ValueError for a width below 1, and for a base that is a composition or does more than add to the logits of one head;
    an encoding of queries and keys goes beside it, as in `compose(RoPE(), DAPE())`.

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

    whole_table = True

    def __post_init__(self) -> None:
        validate_integer("DAPE", most=MOST, width=self.width)
        if self.base is None:
            return
        validate_encoding("DAPE: base", self.base)
        adds = self.base.has("bias", "score") and not self.base.has("context", "embed", "angle", "map_q", "map_k")
        beyond = self.base.whole_table or self.base.replaces_logits or self.base.by_length or self.base.axes
        if not adds or beyond or isinstance(self.base, Compose):
            raise ValueError(f"DAPE: base must add to the logits of a head and do nothing else, got {self.base}")

    @property
    def causal_only(self) -> str:
        return "" if self.base is None else self.base.causal_only

    @property
    def per_head(self) -> tuple[str, ...]:
        return () if self.base is None else tuple(BASE + name for name in self.base.per_head)

    @property
    def per_kv_head(self) -> tuple[str, ...]:
        return () if self.base is None else tuple(BASE + name for name in self.base.per_kv_head)

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns the parameters of the network and of the base."""
        keys = jax.random.split(key, 5)
        inputs = sizes.heads if self.base is None else 2 * sizes.heads
        network = {
            "hidden": uniform(keys[0], (inputs, self.width), inputs),
            "hidden_bias": uniform(keys[1], (self.width,), inputs),
            "out": uniform(keys[2], (self.width, sizes.heads), self.width),
            "out_bias": uniform(keys[3], (sizes.heads,), self.width),
        }
        return network if self.base is None else network | _prefixed(self.base.init(keys[4], sizes))

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns the constants of the base."""
        return {} if self.base is None else _prefixed(self.base.constants(sizes, length))

    def check(self, pos: np.ndarray) -> None:
        """Raises the ValueError of the base."""
        if self.base is not None:
            self.base.check(pos)

    def for_encoder(self) -> "DAPE":
        """Returns the same with the base for a mask that is not causal."""
        return self if self.base is None else dataclasses.replace(self, base=self.base.for_encoder())

    def score(self, p: Params, tile: Tile) -> Float[Array, "N T S"]:
        """Returns A + B + the network of [A; B]."""
        x = tile.logits
        if self.base is not None:
            x = jnp.concatenate([x, _biases(self.base, p, tile)])
        # Highest precision, because the default of a GPU rounds the inputs of a float32 product to 11 bits.
        layer = lambda w, b, x: jnp.einsum("cw,cts->wts", w, x, precision=HIGHEST) + b[:, None, None]
        hidden = jax.nn.leaky_relu(layer(p["hidden"], p["hidden_bias"], x))
        return x.reshape(-1, *tile.logits.shape).sum(0) + layer(p["out"], p["out_bias"], hidden)


def _biases(base: PositionEncoding, p: Params, tile: Tile) -> Float[Array, "N T S"]:
    """B: the score of the base, of logits that are 0."""
    own = {name.removeprefix(BASE): leaf for name, leaf in p.items() if name.startswith(BASE)}
    by_head = {name: 0 if name in base.per_head + base.per_kv_head else None for name in own}
    each_head = lambda pos: jnp.broadcast_to(pos, (tile.logits.shape[0], *pos.shape[1:]))
    q_pos, k_pos = each_head(tile.q_pos), each_head(tile.k_pos)
    tile = tile._replace(logits=jnp.zeros_like(tile.logits), q_pos=q_pos, k_pos=k_pos)
    return jax.vmap(base.score, in_axes=(by_head, Tile(0, 0, 0, 0, 0, None, None)))(own, tile)


def _prefixed(p: dict) -> dict:
    return {BASE + name: leaf for name, leaf in p.items()}
