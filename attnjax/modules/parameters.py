"""Creates and applies parameters: kernels, biases, norms, and the parameters of an encoding."""

import math

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from attnjax.modules.config import TransformerConfig
from attnjax.positions import EncodingParams, PositionEncoding, Sizes
from attnjax.typing import Array, Float, compute_dtype

Norm = nnx.LayerNorm | nnx.RMSNorm


def kernel(shape: tuple[int, ...], inputs: int, *, dtype: str, rngs: nnx.Rngs) -> nnx.Param:
    """Returns a kernel of normal numbers with variance 1 / fan_in; its first `inputs` axes meet the input."""
    axes = tuple(range(len(shape)))
    init = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal", in_axis=axes[:inputs], out_axis=axes[inputs:])
    return nnx.Param(init(rngs.params(), shape, jnp.dtype(dtype)))


def start(config: TransformerConfig, w: nnx.Param | None, inputs: int, *, residual: bool = False) -> None:
    """Rescales a kernel of variance 1 / inputs to the start that a config asks for; `residual`: it writes to the residual
    stream, see `kernel_std` and `residual_start` of `TransformerOptions`.
    """
    factor = 1.0 if config.kernel_std is None else config.kernel_std * math.sqrt(inputs)
    factor /= math.sqrt(2 * config.layers) if residual and config.residual_start else 1.0
    if w is not None and factor != 1.0:
        w[...] = w[...] * jnp.asarray(factor, w.dtype)


def zeros(shape: tuple[int, ...], *, dtype: str) -> nnx.Param:
    """Returns a bias vector, initially 0."""
    return nnx.Param(jnp.zeros(shape, jnp.dtype(dtype)))


def linear(x: Float[Array, "B T D"], w: Float[Array, "D *axes"]) -> Float[Array, "B T *axes"]:
    """Returns x w, contracted over D, with w cast to the dtype of x."""
    chex.assert_rank(w, {2, 3})
    chex.assert_axis_dimension(x, -1, w.shape[0])
    # A product of two matrices: with more axes XLA transposes activations for the gradient of w, at twice the cost.
    flat = x.reshape(-1, x.shape[-1]) @ w.astype(x.dtype).reshape(w.shape[0], -1)
    return flat.reshape(*x.shape[:-1], *w.shape[1:])


def add(x: Float[Array, "B T *axes"], bias: nnx.Param | None) -> Float[Array, "B T *axes"]:
    """Returns x plus a bias vector over its last axes, in the dtype of x; x itself without a bias."""
    if bias is None:
        return x
    chex.assert_shape(x, (None, None, *bias.shape))
    # The gradient of the bias is a sum over all tokens, which in 16 bits stops growing: 8,192 where it is 100,000, on a CPU.
    wide = compute_dtype(x)
    return (x.astype(wide) + bias[...].astype(wide)[None, None]).astype(x.dtype)


def norm(config: TransformerConfig, rngs: nnx.Rngs) -> Norm:
    """Returns the LayerNorm or RMSNorm over D that a config asks for, computed in float32 or wider."""
    kind = {"layer": nnx.LayerNorm, "rms": nnx.RMSNorm}[config.norm]
    return kind(
        config.model,
        epsilon=config.norm_epsilon,
        dtype=widened(config.dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        # E[x^2] - E[x]^2 cancels where the mean is large.
        use_fast_variance=False,
        rngs=rngs,
    )


def normalize(norm: Norm | None, x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Returns norm(x) in the dtype of x; x itself without a norm."""
    chex.assert_type(x, float)
    if norm is None:
        return x
    # Flax promotes inside, which strict promotion refuses for float64.
    with jax.numpy_dtype_promotion("standard"):
        return norm(x).astype(x.dtype)


def widened(dtype: str) -> jnp.dtype:
    """Returns the dtype of norms and of parameters of encodings: float64 where `dtype` is that, else float32."""
    return jnp.dtype(jnp.float64 if dtype == "float64" else jnp.float32)


def encoding_parameters(encoding: PositionEncoding, sizes: Sizes, *, dtype: str, rngs: nnx.Rngs) -> EncodingParams:
    """Returns the initial parameters of an encoding as `nnx.Param`s, float32 or wider; store them with `nnx.data`."""
    return jax.tree.map(lambda leaf: nnx.Param(leaf.astype(widened(dtype))), encoding.init(rngs.params(), sizes))


def values(params: EncodingParams) -> EncodingParams:
    """Returns the parameters of an encoding as arrays, in place of `nnx.Param`s."""
    return jax.tree.map(lambda p: p[...], params, is_leaf=lambda p: isinstance(p, nnx.Param))
