"""Small encodings that use one trait each, as somebody else might write them, with their tables [T, S] in plain NumPy style.

`table(...)` of each is what its score must be for all queries and keys at once, written without tiles or carries.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from attnjax import EncodingParams, PositionEncoding, SequentialScore, Sizes, Trait

N, K, H = 4, 2, 8
SIZES = Sizes(model=N * H, heads=N, kv_heads=K, head_dim=H)


@dataclasses.dataclass(frozen=True)
class PerLength(PositionEncoding):
    """score = logit - rate_h * n / length: a bias whose slope is a constant divided by the length of each example."""

    @property
    def traits(self):
        return super().traits | Trait.LENGTH

    def constants(self, sizes, length=None):
        return EncodingParams(
            head={"slope": jnp.arange(1, sizes.heads + 1, dtype=jnp.float32) / jnp.asarray(length, jnp.float32)}
        )

    def bias(self, p, n):
        return -p.head["slope"] * n.astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Sigmoid(PositionEncoding):
    """Weights sigmoid(logit + bias_h), of which none knows of the others."""

    @property
    def traits(self):
        return super().traits | Trait.UNNORMALIZED

    def init(self, key, sizes):
        return EncodingParams(head={"bias": jax.random.normal(key, (sizes.heads,))})

    def score(self, p, tile):
        return jax.nn.log_sigmoid(tile.logits + p.head["bias"].astype(tile.logits.dtype))


@dataclasses.dataclass(frozen=True)
class MixedHeads(PositionEncoding):
    """logits of head h = sum_g mix_hg * tanh(logit_g - |n| / 10) + q_h . u + k . w: every head reads those of all."""

    @property
    def traits(self):
        return super().traits | Trait.ALL_HEADS

    def init(self, key, sizes):
        keys = jax.random.split(key, 3)
        normal = lambda key, *shape: jax.random.normal(key, shape) / 2
        return EncodingParams(
            head={"u": normal(keys[0], sizes.heads, sizes.head_dim)},
            kv_head={"w": normal(keys[1], sizes.kv_heads, sizes.head_dim)},
            shared={"mix": normal(keys[2], sizes.heads, sizes.heads)},
        )

    def score(self, p, tile):
        dtype, n = tile.logits.dtype, jnp.abs(tile.distance)
        n = n if n.ndim == 3 else n[None]
        x = jnp.tanh(tile.logits - n.astype(dtype) / 10)
        of_queries = jnp.einsum("nth,nh->nt", tile.q, p.head["u"].astype(dtype))
        of_keys = jnp.einsum("ksh,kh->ks", tile.k, p.kv_head["w"].astype(dtype))
        of_keys = jnp.repeat(of_keys, tile.q.shape[0] // tile.k.shape[0], axis=0)
        return jnp.einsum("hg,gts->hts", p.shared["mix"].astype(dtype), x) + of_queries[:, :, None] + of_keys[:, None]


@dataclasses.dataclass(frozen=True)
class Budget(SequentialScore):
    """score = logit + log1p(what is left): a budget that starts at softplus(q . u) and pays tanh(logit)^2 for each key seen.

    The budget of key j is what those after it have left, so that the state starts from the queries.
    """

    def init(self, key, sizes):
        return EncodingParams(head={"u": jax.random.normal(key, (sizes.heads, sizes.head_dim)) / 2})

    def carry(self, p, q):
        return {"left": jax.nn.softplus(q @ p.head["u"].astype(q.dtype))}

    def score(self, p, tile, carry=None):
        carry = self.carry(p, tile.q) if carry is None else carry
        cost = jnp.where(tile.visible, jnp.tanh(tile.logits) ** 2, 0) / 8
        after = jnp.cumsum(cost[:, ::-1], axis=1)[:, ::-1]
        left = carry["left"][:, None] * jnp.exp(-(after - cost))
        return tile.logits + jnp.log1p(left), {"left": carry["left"] * jnp.exp(-after[:, 0])}


def drawn(T: int, S: int | None = None, B: int = 2, seed: int = 0, dtype="float64") -> tuple[jax.Array, ...]:
    """q [B,T,N,H], k and v [B,S,K,H] of normal numbers."""
    draw, S = np.random.default_rng(seed), S or T
    return tuple(jnp.asarray(draw.normal(size=(B, n, heads, H)), dtype) for n, heads in ((T, N), (S, K), (S, K)))


def learned(encoding: PositionEncoding, sizes: Sizes = SIZES, dtype="float64") -> EncodingParams:
    """Parameters away from their initial values."""
    draw = np.random.default_rng(7)
    params = encoding.init(jax.random.key(1), sizes)
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) + jnp.asarray(0.3 * draw.normal(size=x.shape), dtype), params)


def products(q, k, scale) -> jax.Array:
    """scale * q . k, [B,N,T,S]."""
    return scale * jnp.einsum("btnh,bsnh->bnts", q, jnp.repeat(k, q.shape[2] // k.shape[2], axis=2))


def averaged(weights, v) -> jax.Array:
    """Weights [B,N,T,S] of values [B,S,K,H]."""
    return jnp.einsum("bnts,bsnh->btnh", weights, jnp.repeat(v, weights.shape[1] // v.shape[2], axis=2))


def softmax(table, seen) -> jax.Array:
    """Over what is seen; 0 where nothing is."""
    top = jax.lax.stop_gradient(jnp.where(seen, table, 0).max(-1, keepdims=True))
    weights = jnp.where(seen, jnp.exp(jnp.where(seen, table - top, 0)), 0)
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)


def assert_trees_close(got, expected, rtol=1e-9, atol=1e-10) -> None:
    """Every leaf, with its path."""
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=jax.tree_util.keystr(path))


def with_gradients(function):
    """Output of function(*arguments), and the gradients of a random sum of it by all of them, compiled."""

    def loss(*arguments):
        out = function(*arguments)
        return (np.random.default_rng(3).normal(size=out.shape).astype(out.dtype) * out).sum(), out

    def run(*arguments):
        gradient = jax.value_and_grad(loss, argnums=tuple(range(len(arguments))), has_aux=True)
        (_, out), gradients = jax.jit(gradient)(*arguments)
        return out, gradients

    return run
