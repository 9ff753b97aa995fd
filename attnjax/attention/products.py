"""The products of a tile, as batched products of matrices: grouped queries of one key head are rows of one matrix.

With three axes the compiler's matrix routines take operands as they lie; with five they copy first. On a CPU they take half
of the speed where the large operand lies transposed, so that a sum over queries is a product from the left.
"""

import jax
import jax.numpy as jnp

from attnjax.typing import Array, Float, PyTree


@jax.custom_jvp
def queries_keys(q: Float[Array, "B K G t h"], k: Float[Array, "B K s h"]) -> Float[Array, "B K G t s"]:
    """q_i . k_j."""
    return jnp.einsum("nth,nsh->nts", _rows(q), _cols(k)).reshape(*q.shape[:4], k.shape[2])


@queries_keys.defjvp
def _queries_keys_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (q, k), (dq, dk) = primals, tangents
    products = queries_keys(q, k)
    # Transposed, this is `weights_queries`: the small operand is turned, the table of scores stays as it lies.
    of_keys = jnp.einsum("nht,nhs->nts", turned(q), once(jnp.swapaxes(_cols(dk), 1, 2)))
    return products, queries_keys(dq, k) + of_keys.reshape(products.shape)


@jax.custom_jvp
def weights_values(p: Float[Array, "B K G t s"], v: Float[Array, "B K s h"]) -> Float[Array, "B K G t h"]:
    """sum_j p_ij v_j."""
    return jnp.einsum("nts,nsh->nth", _rows(p), _cols(v)).reshape(*p.shape[:4], v.shape[3])


@weights_values.defjvp
def _weights_values_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (p, v), (dp, dv) = primals, tangents
    out = weights_values(p, v)
    of_values = jnp.einsum("nhs,nts->nht", once(jnp.swapaxes(_cols(dv), 1, 2)), _rows(p))
    return out, weights_values(dp, v) + jnp.swapaxes(once(of_values), 1, 2).reshape(out.shape)


def turned(x: Float[Array, "B K G t h"]) -> Float[Array, "n h m"]:
    """The queries of each key head as columns, for `weights_queries`: once for all tiles that they meet."""
    return once(jnp.swapaxes(_rows(x), 1, 2))


def weights_queries(p: Float[Array, "B K G t s"], x: Float[Array, "n h m"]) -> Float[Array, "B K s h"]:
    """sum_i p_ij x_i, over all queries of a key head; x is `turned`."""
    product = once(jnp.einsum("nht,nts->nhs", x, _rows(p)))
    return jnp.swapaxes(product, 1, 2).reshape(*p.shape[:2], p.shape[4], x.shape[1])


def once(x: PyTree) -> PyTree:
    """x, computed once and put into memory: on a CPU the compiler would rather compute it again in each place that reads it,
    and fold a transposition into a product that it then does slowly.
    """
    return jax.lax.optimization_barrier(x) if jax.default_backend() == "cpu" else x


def _rows(x: Float[Array, "B K G t c"]) -> Float[Array, "n m c"]:
    B, K, G, t, c = x.shape
    return x.reshape(B * K, G * t, c)


def _cols(x: Float[Array, "B K s c"]) -> Float[Array, "n s c"]:
    B, K, s, c = x.shape
    return x.reshape(B * K, s, c)
