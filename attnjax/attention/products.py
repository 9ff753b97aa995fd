"""The products of a tile, as batched products of matrices: the queries of a key head are rows of one matrix.

With three axes the compiler's matrix routines take operands as they lie; with five they copy first. On a CPU they take half
of the speed where the large operand lies transposed, so that a sum over queries is a product from the left. Operands in 16
bits stay so; sums are in float32.
"""

import jax
import jax.numpy as jnp

from attnjax.typing import Array, Float, PyTree, compute_dtype


@jax.custom_jvp
def queries_keys(q: Float[Array, "B K G t h"], k: Float[Array, "B K 1 s h"]) -> Float[Array, "B K G t s"]:
    """Returns q_i . k_j, in float32 or float64."""
    return _product("nth,nsh->nts", _flat(q), _flat(k)).reshape(*q.shape[:4], k.shape[3])


@queries_keys.defjvp
def _queries_keys_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (q, k), (dq, dk) = primals, tangents
    products = queries_keys(q, k)
    # Transposed, this is `weights_queries`: the small operand is turned, the table of scores stays as it lies.
    of_keys = _tangent("nht,nhs->nts", turned(q), materialized(jnp.swapaxes(_flat(dk), 1, 2)))
    of_queries = _tangent("nth,nsh->nts", _flat(dq), _flat(k))
    return products, (of_queries + of_keys).reshape(products.shape)


@jax.custom_jvp
def weights_values(p: Float[Array, "B K G t s"], v: Float[Array, "B K 1 s h"]) -> Float[Array, "B K G t h"]:
    """Returns sum_j p_ij v_j, in float32 or float64, with the weights rounded to the type of the values."""
    return _product("nts,nsh->nth", _flat(p).astype(v.dtype), _flat(v)).reshape(*p.shape[:4], v.shape[4])


@weights_values.defjvp
def _weights_values_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (p, v), (dp, dv) = primals, tangents
    out = weights_values(p, v)
    of_values = _tangent("nhs,nts->nht", materialized(jnp.swapaxes(_flat(dv), 1, 2)), _flat(p).astype(dv.dtype))
    of_weights = _tangent("nts,nsh->nth", _flat(dp).astype(v.dtype), _flat(v))
    return out, (of_weights + jnp.swapaxes(materialized(of_values), 1, 2)).reshape(out.shape)


def turned(x: Float[Array, "B K G t h"]) -> Float[Array, "n h m"]:
    """Returns the queries of each key head as columns, for `weights_queries`: once for all tiles."""
    return materialized(jnp.swapaxes(_flat(x), 1, 2))


def weights_queries(p: Float[Array, "B K G t s"], x: Float[Array, "n h m"]) -> Float[Array, "B K 1 s h"]:
    """Returns sum_i p_ij x_i, over all queries of a key head, with p rounded to the type of x; x is `turned`."""
    product = materialized(_product("nht,nts->nhs", x, _flat(p).astype(x.dtype)))
    return jnp.swapaxes(product, 1, 2).reshape(*p.shape[:2], 1, p.shape[4], x.shape[1])


def materialized(x: PyTree) -> PyTree:
    """Returns x behind an optimization barrier, so that it is computed once and written to memory.

    Without it XLA:CPU fuses x into each consumer and computes it again there, and folds a transposition into a product that
    it then does slowly.
    """
    return jax.lax.optimization_barrier(x)


def _product(axes: str, a: Array, b: Array) -> Array:
    # `jnp.promote_types` refuses float64 beside float32 under strict promotion.
    wide = compute_dtype(a, b)
    dtype = a.dtype if a.dtype == b.dtype else wide
    return jnp.einsum(axes, a.astype(dtype), b.astype(dtype), preferred_element_type=wide)


def _tangent(axes: str, a: Array, b: Array) -> Array:
    """`_product` as a linear map of one operand: with 16-bit operands the result is rounded to their type, so that products
    of the transpose, which is the gradient, have two 16-bit operands as well.
    """
    wide = compute_dtype(a)
    if a.dtype != b.dtype or a.dtype == wide:
        return _product(axes, a, b)
    return jnp.einsum(axes, a, b).astype(wide)


def _flat(x: Float[Array, "B K G t c"]) -> Float[Array, "n m c"]:
    B, K, G, t, c = x.shape
    return x.reshape(B * K, G * t, c)
