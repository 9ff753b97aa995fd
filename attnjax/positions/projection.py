"""Products whose sum stays in float32 where the operands have 16 bits: positions from content, and logits of the vocabulary.

    y    = round(x) round(w)        16-bit operands, summed and returned in float32
    dx   = round(dy) w^T            the gradient: 16-bit operands too, summed in float32 and rounded to their type
    dw   = x^T round(dy)

where `round` is to the type of x. The product of two 16-bit numbers is exact in float32, so y has no error but those of w and
of the sum. What JAX makes of `preferred_element_type=float32` alone has a float32 cotangent in the gradient, and widens the
other operand to meet it: twice the bytes, and none of the speed of 16 bits. Numbers of x in float32 or float64 are not rounded.

Reference: Micikevicius et al. 2018 (arXiv:1710.03740), section 3.3: products of 16 bits, sums in float32.
"""

import jax
import jax.numpy as jnp

from attnjax.typing import Array, Float, compute_dtype

HIGHEST = jax.lax.Precision.HIGHEST


def project(
    x: Float[Array, "*rows D"], w: Float[Array, "D *columns"], precision: jax.lax.Precision | None = HIGHEST
) -> Float[Array, "..."]:
    """x w, with operands in the type of x and the result in float32, or in float64 where x is.

    `precision` is that of a float32 product. It is the highest unless given, because the default of an accelerator rounds
    operands, and an error in a position that is a sum over the tokens stays in the positions of all tokens after it.

    Example:
        >>> y = project(jnp.ones((1, 257), jnp.bfloat16), jnp.ones(257))  # 257 itself is no number of bfloat16
        >>> y.tolist(), y.dtype.name
        ([257.0], 'float32')
    """
    if x.dtype == compute_dtype(x):
        return jnp.dot(x, jnp.asarray(w, x.dtype), precision=precision)
    return _sixteen_bits(x, jnp.asarray(w, x.dtype))


@jax.custom_jvp
def _sixteen_bits(x: Array, w: Array) -> Array:
    return jnp.dot(x, w, preferred_element_type=jnp.float32)


@_sixteen_bits.defjvp
def _sixteen_bits_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (x, w), (dx, dw) = primals, tangents
    # Rounded to 16 bits, so that the cotangent of each is rounded before the products of the transpose, the gradient.
    rounded = lambda a, b: jnp.dot(a, b).astype(jnp.float32)
    return _sixteen_bits(x, w), rounded(dx, w) + rounded(x, dw)
