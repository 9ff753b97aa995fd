"""PaTH attention: on its way to a query, a key is reflected by every token that it passes.

    score(i, j) = scale * (q_i^T M_i M_(i-1) ... M_(j+1) k_j + c_i - c_j),    M_s = I - beta_s w_s w_s^T
    w_s = unit(silu(convolution(x W_down W_up)_s)),    beta_s = 2 sigmoid(x_s . b + b_0)
    c_s = sum_{u<=s} log sigmoid(x_u . g + g_0)        with `forget` (PaTH-FoX), otherwise 0

The query's own map counts, the key's does not. Acts through `context`, which makes w_s and beta_s of the content, and
`score`: key tiles are visited from the last to the first, and the carry of a row is its query after all maps so far, which
meets each key and then takes the map of that key. So no product of maps is formed and none is inverted, and with beta in
(0, 2) no map makes a vector longer. Tokens that the mask hides from a query do not count for it, whatever their channels hold.

Positions of a token are channels [F]: w (H), beta (1), c (1, with `forget`), and what the convolution needs for the tokens to
come, the last `convolution` - 1 inputs of H numbers. A cache keeps them beside the key, which stays as it was, instead of
changing all its keys with each token as the authors' code does; a step then walks along the cache. Where several documents are
packed into one row, the convolution of the first tokens of a document sees inputs of the one before it.

Learned: shared = {"down": [D,rank]}, kv_head = {"up": [K,rank,H], "convolution": [K,taps,H], "beta": [K,D], "beta_bias": [K]},
and head = {"gate": [N,D], "gate_bias": [N]} with `forget`.

Reference: Yang et al. 2025 (arXiv:2505.16381); widths, the order of the maps and the scaled gate are those of the authors'
code in flash-linear-attention.
"""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp

from attnjax.positions.base import EncodingParams, SequentialScore, Sizes, Tile, Trait
from attnjax.positions.checks import MOST, validate_integer
from attnjax.positions.projection import HIGHEST, project
from attnjax.typing import Array, ArrayLike, Float, Num, compute_dtype

EPSILON = 1e-6
CHUNK = 16
"""Keys whose maps a query takes at once."""


@dataclasses.dataclass(frozen=True)
class PaTH(SequentialScore):
    """Products of Householder-like maps between a key and a query.

    `rank` of the two matrices that make the directions, `convolution` the number of tokens that it looks at (1: none), and
    `forget`, which adds the gates of FoX. Raises ValueError for numbers below 1.

    Example:
        >>> from attnjax import Mask, attend, context_positions
        >>> encoding, sizes = PaTH(), Sizes(model=8, heads=2, kv_heads=1, head_dim=4)
        >>> params = encoding.init(jax.random.key(0), sizes)
        >>> x, q, k = jnp.ones((1, 3, 8)), jnp.ones((1, 3, 2, 4)), jnp.ones((1, 3, 1, 4))
        >>> pos = context_positions(encoding, params, x, jnp.arange(3), sizes)
        >>> attend(q, k, k, encoding=encoding, params=params, q_pos=pos, k_pos=pos, mask=Mask(causal=True)).shape
        (1, 3, 2, 4)
    """

    rank: int = 32
    convolution: int = 3
    forget: bool = False

    needs_causal = "leads from earlier keys to later queries"
    replaces_logits = True

    def __post_init__(self) -> None:
        validate_integer("PaTH", most=MOST, rank=self.rank, convolution=self.convolution)
        if not isinstance(self.forget, bool):
            raise ValueError(f"PaTH: forget must be True or False, got {self.forget!r}")

    @property
    def traits(self) -> Trait:
        """Channels computed from content, a score with a carry, and where no gates differ by query head, a map of the keys that
        changes nothing: so channels are per key head.
        """
        return super().traits | Trait.AXES | (Trait(0) if self.forget else Trait.MAP_K)

    def init(self, key: jax.Array, sizes: Sizes) -> EncodingParams:
        """Normal matrices of variance 1 / inputs, uniform taps in +-1/sqrt(taps), and biases of zero."""
        D, N, K, H = sizes
        keys = jax.random.split(key, 5)
        normal = lambda key, shape, inputs: jax.random.normal(key, shape, jnp.float32) * inputs**-0.5
        limit = self.convolution**-0.5
        taps = jax.random.uniform(keys[2], (K, self.convolution, H), jnp.float32, -limit, limit)
        kv_head = {
            "up": normal(keys[1], (K, self.rank, H), self.rank),
            "convolution": taps,
            "beta": normal(keys[3], (K, D), D),
            "beta_bias": jnp.zeros((K,), jnp.float32),
        }
        gate = {"gate": normal(keys[4], (N, D), D), "gate_bias": jnp.zeros((N,), jnp.float32)} if self.forget else ()
        return EncodingParams(gate, kv_head, {"down": normal(keys[0], (D, self.rank), D)})

    def context(
        self, p: EncodingParams, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"], before: Float[Array, "*F"]
    ) -> Float[Array, "T F"]:
        """Channels of every token; those of the token before hold the sum of gates and the inputs of the convolution."""
        del pos
        T, H, taps = x.shape[0], p.kv_head["up"].shape[-1], self.convolution
        dtype = compute_dtype(x, p.kv_head["up"])
        head, kv_head, shared = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tuple(p))
        x, first = x if x.dtype.itemsize == 2 else x.astype(dtype), H + 1 + self.forget
        before = jnp.broadcast_to(before, (first + (taps - 1) * H,)).astype(dtype)
        inputs = project(project(x, shared["down"]), kv_head["up"])
        inputs = jnp.concatenate([before[first:].reshape(taps - 1, H), inputs])
        mixed = sum(kv_head["convolution"][tap][None] * inputs[tap : tap + T] for tap in range(taps))
        w = jax.nn.silu(mixed)
        w = w * jax.lax.rsqrt((w * w).sum(-1, keepdims=True) + EPSILON)
        channels = [w, 2 * jax.nn.sigmoid(project(x, kv_head["beta"]) + kv_head["beta_bias"])[:, None]]
        if self.forget:
            gates = jax.nn.log_sigmoid(project(x, head["gate"]) + head["gate_bias"])
            channels.append((before[H + 1] + jnp.cumsum(gates))[:, None])
        return jnp.concatenate([*channels, *(inputs[tap : tap + T] for tap in range(1, taps))], axis=-1)

    def carry(self, p: EncodingParams, q: Float[Array, "t h"]) -> Float[Array, "t h"]:
        """The queries before any map."""
        del p
        return q.astype(compute_dtype(q))

    def score(
        self, p: EncodingParams, tile: Tile, carry: Float[Array, "t h"] | None = None
    ) -> tuple[Float[Array, "t s"], Float[Array, "t h"]]:
        """(scale * mapped query . key of this tile, the queries after the maps of all its keys)."""
        moved = self.carry(p, tile.q) if carry is None else carry
        dtype, (s, H) = tile.logits.dtype, tile.k.shape
        chex.assert_shape(tile.k_pos, (s, H + 1 + self.forget + (self.convolution - 1) * H))
        q_pos, k_pos = (jnp.asarray(pos, dtype) for pos in (tile.q_pos, tile.k_pos))
        own = k_pos[:, : H + 1]
        # A map that a query does not take is one of scale 0, and 0 * NaN is NaN. A row that sees such a key is NaN as a whole.
        marks = jax.lax.stop_gradient(own - own).sum(-1)
        own = jnp.where(jnp.isfinite(own), own, jnp.zeros((), dtype))
        w, beta = own[:, :H], own[:, H]

        # Filled up with keys that nobody sees.
        chunks = lambda x: jnp.pad(x, [(0, -s % CHUNK)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, CHUNK, *x.shape[1:])
        xs = jax.tree.map(chunks, (tile.k, w, beta, tile.visible.T))
        moved, products = jax.lax.scan(_past_chunk, moved.astype(dtype), xs, reverse=True)
        products = products.reshape(-1, products.shape[-1])[:s]
        if self.forget:
            products = products + q_pos[None, :, H + 1] - k_pos[:, None, H + 1]
        logits = jnp.asarray(tile.scale, dtype) * products.T
        return logits + jnp.where(tile.visible, marks[None, :], jnp.zeros((), dtype)), moved


@functools.partial(jax.checkpoint, prevent_cse=False)
def _past_chunk(q: Float[Array, "t h"], keys: tuple[Array, ...]) -> tuple[Float[Array, "t h"], Float[Array, "c t"]]:
    """The queries after the maps of some keys, from the last to the first, and their products with the keys as they met them.

    All but `_shares` is products of matrices. For the gradient, the queries alone are kept for each chunk of keys.
    """
    k, w, beta, seen = keys
    product = lambda a, b: jnp.matmul(a, b, precision=HIGHEST)
    scale = jnp.where(seen, beta[:, None], jnp.zeros((), beta.dtype))
    along = _shares(jnp.triu(product(w, w.T), 1), scale, product(w, q.T))
    return q - product(along.T, w), product(k, q.T) - product(jnp.triu(product(k, w.T), 1), along)


def _shares(later: Float[Array, "c c"], scale: Float[Array, "c t"], left: Float[Array, "c t"]) -> Float[Array, "c t"]:
    """How much of w_j the map of key j takes off each query, for all keys of a chunk.

    A map takes a_j w_j off a query, which came to it as q - sum_(l>j) a_l w_l, so that with scale_j = beta_j, or 0 where the
    query does not see the key,

        a_j = scale_j (q . w_j - sum_(l>j) a_l w_l . w_j),    that is (1 + scale * later) a = scale * left.

    `later` holds w_j . w_l for l > j, 0 elsewhere, and `left` holds q . w_j. A solver of linear equations instead of the loop
    alone has products of matrices for its derivatives.
    """
    keys = range(left.shape[0])

    def solve(_, given: Float[Array, "c t"]) -> Float[Array, "c t"]:
        shares: list[Array] = []
        for j in reversed(keys):
            shares.insert(0, given[j])
            given = given[:j] - scale[:j] * later[:j, j, None] * shares[0][None]
        return jnp.stack(shares)

    def solve_transposed(_, given: Float[Array, "c t"]) -> Float[Array, "c t"]:
        shares: list[Array] = []
        for j in keys:
            shares.append(given[0])
            given = given[1:] - later[j, j + 1 :, None] * (scale[j] * shares[-1])[None]
        return jnp.stack(shares)

    matrix = lambda a: a + scale * jnp.matmul(later, a, precision=HIGHEST)
    return jax.lax.custom_linear_solve(matrix, scale * left, solve, solve_transposed)
