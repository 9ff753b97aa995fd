"""PaTH attention: between a key and a query, the key is reflected by every token.

    score(i, j) = scale * (q_i^T M_i M_(i-1) ... M_(j+1) k_j + c_i - c_j),    M_s = I - beta_s w_s w_s^T
    w_s = unit(silu(convolution(x W_down W_up)_s)),    beta_s = 2 sigmoid(x_s . b + b_0)
    c_s = sum_{u<=s} log sigmoid(x_u . g + g_0)        with `forget` (PaTH-FoX), otherwise 0

The query's own map counts, the key's does not. Acts through `context`, which makes w_s and beta_s of the content, and
`score`: from the last key to the first, a query is multiplied with the key and then takes the map of that key. So no product of
maps is formed and none is inverted, and with beta in (0, 2) no map makes a vector longer. Tokens that the mask hides from a
query do not count for it.

Positions of a token are channels [F]: w (H), beta (1), c (1, with `forget`), and the last `convolution` - 1 inputs of H
numbers, which the convolution needs for the tokens to come. A cache keeps them beside the key, which stays as it was; the
authors' code changes all keys of its cache with each token. A document that is packed into a row starts anew.

Learned: down [D, rank], up [K, rank, H], convolution [K, taps, H], beta [K, D] (b), beta_bias [K] (b_0), and with `forget`
gate [N, D] (g) and gate_bias [N] (g_0).

Reference: Yang et al. 2025 (arXiv:2505.16381); widths, the order of the maps and the scaled gate are those of the authors'
code in flash-linear-attention.
"""

import dataclasses

import jax
import jax.numpy as jnp

from attnjax.positions.base import Params, PositionEncoding, Sizes, Tile
from attnjax.positions.checks import Rows
from attnjax.positions.contextual import Past
from attnjax.positions.projection import HIGHEST, project
from attnjax.typing import Array, ArrayLike, Bool, Float, Num

EPSILON = 1e-6
CHUNK = 16
"""Keys whose maps a query takes at once."""


@dataclasses.dataclass(frozen=True)
class PaTH(PositionEncoding):
    """Products of Householder-like maps between a key and a query.

    `rank` of the two matrices that make the directions, `convolution` the number of tokens that it looks at (1: none), and
    `forget`, which adds the gates of FoX.

    Example:
        >>> from attnjax import Mask, attend, context_positions
        >>> encoding, sizes = PaTH(), Sizes(model=8, heads=2, kv_heads=1, head_dim=4)
        >>> params = encoding.init(jax.random.key(0), sizes)
        >>> x, q, k = jnp.ones((1, 3, 8)), jnp.ones((1, 3, 2, 4)), jnp.ones((1, 3, 1, 4))
        >>> pos = context_positions(encoding, params, x, jnp.arange(3), sizes)
        >>> attend(q, k, k, encoding=encoding, params=params, q_pos=pos, k_pos=pos, mask=Mask(causal=True)).shape
        (1, 3, 2, 4)
    """

    rank: Rows = 32
    convolution: Rows = 3
    forget: bool = False

    per_kv_head = ("up", "convolution", "beta", "beta_bias")
    causal_only = "leads from earlier keys to later queries"
    whole_table = replaces_logits = True

    @property
    def per_head(self) -> tuple[str, ...]:
        return ("gate", "gate_bias") if self.forget else ()

    def init(self, key: jax.Array, sizes: Sizes) -> dict:
        """Returns normal matrices of variance 1 / inputs, uniform taps in +-1/sqrt(taps), and biases of zero."""
        D, N, K, H = sizes
        keys = jax.random.split(key, 5)
        normal = lambda key, shape, inputs: jax.random.normal(key, shape, jnp.float32) * inputs**-0.5
        limit, taps = self.convolution**-0.5, (K, self.convolution, H)
        p = {
            "down": normal(keys[0], (D, self.rank), D),
            "up": normal(keys[1], (K, self.rank, H), self.rank),
            "convolution": jax.random.uniform(keys[2], taps, jnp.float32, -limit, limit),
            "beta": normal(keys[3], (K, D), D),
            "beta_bias": jnp.zeros((K,), jnp.float32),
        }
        gate = {"gate": normal(keys[4], (N, D), D), "gate_bias": jnp.zeros((N,), jnp.float32)}
        return p | gate if self.forget else p

    def features(self, sizes: Sizes) -> tuple[int, ...]:
        """Returns (F,): w, beta, c with `forget`, and the inputs of the convolution."""
        return (self.convolution * sizes.head_dim + 1 + self.forget,)

    def context(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], past: Past) -> Float[Array, "T F"]:
        """Returns the channels of every token; `past.state` holds the sum of gates and the last inputs of the convolution."""
        H = p["up"].shape[1]
        first = H + 1 + self.forget
        inputs = project(project(x, p["down"]), p["up"])
        windows = past.windows(inputs, past.state[first:].reshape(-1, H))
        w = jax.nn.silu((windows * p["convolution"][:, None]).sum(0))
        w = w * jax.lax.rsqrt((w * w).sum(-1, keepdims=True) + EPSILON)
        channels = [w, 2 * jax.nn.sigmoid(project(x, p["beta"]) + p["beta_bias"])[:, None]]
        if self.forget:
            gates = jax.nn.log_sigmoid(project(x, p["gate"]) + p["gate_bias"])
            channels.append(past.sums(gates, past.state[H + 1])[:, None])
        return jnp.concatenate([*channels, *windows[1:]], axis=1)

    def score(self, p: Params, tile: Tile) -> Float[Array, "N T S"]:
        """Returns scale * (mapped query . key + c_i - c_j)."""
        (N, S, H), dtype = tile.k.shape, tile.logits.dtype
        q_pos, k_pos = tile.q_pos.astype(dtype), tile.k_pos.astype(dtype)
        channels = jnp.broadcast_to(k_pos[:, :, : H + 1], (N, S, H + 1))
        products = jax.vmap(_products, in_axes=(0, 0, 0, None))(tile.q, tile.k, channels, tile.visible)
        if self.forget:
            products = products + q_pos[:, :, None, H + 1] - k_pos[:, None, :, H + 1]
        return tile.scale * products


def _products(
    q: Float[Array, "T H"], k: Float[Array, "S H"], channels: Float[Array, "S C"], seen: Bool[Array, "T S"]
) -> Float[Array, "T S"]:
    """The products of each query with all keys of one head, after the maps of the keys between."""
    (T, H), S = q.shape, k.shape[0]
    # A token that no query sees has no effect, whatever its channels hold.
    channels = jnp.where(seen.any(0)[:, None], channels, 0.0)
    # Filled up with keys that no query sees.
    chunks = lambda x: jnp.pad(x, ((0, -S % CHUNK), (0, 0))).reshape(-1, CHUNK, x.shape[1])
    keys = (chunks(k), chunks(channels[:, :H]), chunks(jnp.where(seen.T, channels[:, H:], 0.0)))
    _, products = jax.lax.scan(jax.checkpoint(_past_chunk, prevent_cse=False), q, keys, reverse=True)
    return products.reshape(-1, T)[:S].T


def _past_chunk(q: Float[Array, "T H"], keys: tuple[Array, Array, Array]) -> tuple[Float[Array, "T H"], Array]:
    """The queries after the maps of some keys, from the last to the first, and the products [c, T] on the way.

    The map of key j subtracts a_j w_j from a query, which is q - sum_(l>j) a_l w_l before. With b_j = beta_j, or 0 where the
    query does not see the key,

        a_j = b_j (q . w_j - sum_(l>j) a_l w_l . w_j),    so (I + b U) a = b W q    with U_jl = w_j . w_l for l > j, else 0.
    """
    k, w, beta = keys
    product = lambda a, b: jnp.matmul(a, b, precision=HIGHEST)
    matrix = jnp.eye(len(w), dtype=w.dtype)[None] + beta.T[:, :, None] * jnp.triu(product(w, w.T), 1)[None]
    right = (beta.T * product(q, w.T))[:, :, None]
    taken = jax.scipy.linalg.solve_triangular(matrix, right, lower=False, unit_diagonal=True)[:, :, 0]
    return q - product(taken, w), product(k, q.T) - product(jnp.triu(product(k, w.T), 1), taken.T)
