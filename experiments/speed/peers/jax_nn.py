"""How the same attention is computed without attnjax: the functions that JAX and Flax users call today.

They take a bias as an array. Where the encoding is a bias, the array [1, N, T, T] is made from its parameters inside the
program, as such code does, so that the parameters are learned there too. Maps of queries and keys are our own functions:
what is compared is the attention.
"""

import jax
import jax.numpy as jnp
from flax import linen

from attnjax.positions import PositionEncoding, Sizes, Tile, resolve
from attnjax.positions.base import Params
from attnjax.typing import Array, Float, PyTree
from experiments.speed.suites import JAX_NN


def attention(
    name: str, encoding: PositionEncoding, params: PyTree, q: Array, k: Array, v: Array
) -> Float[Array, "B T N H"]:
    """Causal attention over positions 0 .. T-1 by `jax.nn`, or by Flax Linen."""
    T, N, H = q.shape[1:]
    p = resolve(encoding, params, Sizes(model=N * H, heads=N, kv_heads=k.shape[2], head_dim=H), T)
    if encoding.has("angle", "map_q", "map_k"):
        # One scale for all, also where the maps widen queries and keys; values are then as wide, as the peers demand.
        q, k = maps(encoding, p, q, k)
        q = q * (q.shape[-1] / H) ** 0.5
        v = jnp.pad(v, [(0, 0)] * 3 + [(0, q.shape[-1] - H)])
    bias = bias_array(encoding, p, N, T) if encoding.has("bias", "score") else None
    if name == JAX_NN:
        return jax.nn.dot_product_attention(q, k, v, bias=bias, is_causal=True, implementation="xla")[..., :H]
    causal = jnp.tril(jnp.ones((1, 1, T, T), bool))
    # Flax divides by sqrt(H), the others multiply by 1/sqrt(H): the same number here.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return linen.dot_product_attention(q, k, v, bias=bias, mask=causal)[..., :H]


def maps(encoding: PositionEncoding, p: Params, q: Array, k: Array) -> tuple[Array, Array]:
    """Queries and keys of all heads after the encoding's maps, which learn nothing per key head."""
    pos = jnp.arange(q.shape[1])
    of_keys = {name: leaf for name, leaf in p.items() if name not in encoding.per_head}
    of_q = jax.vmap(lambda p, q: encoding.map_q(p, q, pos), in_axes=(by_head(encoding, p), 1), out_axes=1)
    of_k = jax.vmap(lambda k: encoding.map_k(of_keys, k, pos), in_axes=1, out_axes=1)
    return jax.vmap(lambda q: of_q(p, q))(q), jax.vmap(of_k)(k)


def by_head(encoding: PositionEncoding, p: Params) -> dict[str, int | None]:
    """The axis of heads of every parameter, for `jax.vmap`."""
    return {name: 0 if name in encoding.per_head else None for name in p}


def bias_array(encoding: PositionEncoding, p: Params, heads: int, T: int) -> Float[Array, "1 N T T"]:
    """What the encoding adds to the logits, which must not depend on them."""
    pos = jnp.arange(T)
    nothing = jnp.zeros((T, 1), jnp.float32)
    tile = Tile(jnp.zeros((T, T), jnp.float32), nothing, nothing, pos, pos, jnp.tril(jnp.ones((T, T), bool)), 1.0)
    score = jax.vmap(lambda p: encoding.score(p, tile), in_axes=(by_head(encoding, p),), axis_size=heads)
    return score(jax.tree.map(jnp.asarray, p))[None]
