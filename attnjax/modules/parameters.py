"""Making parameters and reading them: kernels, norms, and the parameters of an encoding."""

import jax
import jax.numpy as jnp
from flax import nnx

from attnjax.modules.config import TransformerConfig
from attnjax.positions import EncodingParams, PositionEncoding, Sizes
from attnjax.typing import Array, Float

Norm = nnx.LayerNorm | nnx.RMSNorm


def kernel(shape: tuple[int, ...], inputs: int, *, dtype: str, rngs: nnx.Rngs) -> nnx.Param:
    """Normal numbers of variance 1 / (number of inputs). The first `inputs` axes are contracted with the input."""
    axes = tuple(range(len(shape)))
    init = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal", in_axis=axes[:inputs], out_axis=axes[inputs:])
    return nnx.Param(init(rngs.params(), shape, jnp.dtype(dtype)))


def zeros(shape: tuple[int, ...], *, dtype: str) -> nnx.Param:
    """A bias vector, zero at first."""
    return nnx.Param(jnp.zeros(shape, jnp.dtype(dtype)))


def linear(x: Float[Array, "B T D"], w: Float[Array, "D *axes"]) -> Float[Array, "B T *axes"]:
    """x times w, which is taken to the type of x."""
    # As two matrices: with more axes XLA transposes activations in memory for the gradient of w, which costs as much again.
    flat = x.reshape(-1, x.shape[-1]) @ w.astype(x.dtype).reshape(w.shape[0], -1)
    return flat.reshape(*x.shape[:-1], *w.shape[1:])


def add(x: Float[Array, "B T *axes"], bias: nnx.Param | None) -> Float[Array, "B T *axes"]:
    """x plus a bias vector over its last axes, in the type of x."""
    return x if bias is None else x + bias[...].astype(x.dtype)[None, None]


def norm(config: TransformerConfig, rngs: nnx.Rngs) -> Norm:
    """The norm of a model, over D, computed in float32 or better."""
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
    """norm(x) in the type of x; x itself without a norm."""
    if norm is None:
        return x
    # Flax promotes inside, which strict promotion refuses for float64.
    with jax.numpy_dtype_promotion("standard"):
        return norm(x).astype(x.dtype)


def widened(dtype: str) -> jnp.dtype:
    """The type for norms and parameters of encodings: float32, or float64 where the type is that."""
    return jnp.dtype(jnp.float64 if dtype == "float64" else jnp.float32)


def encoding_parameters(encoding: PositionEncoding, sizes: Sizes, *, dtype: str, rngs: nnx.Rngs) -> EncodingParams:
    """What the encoding's `init` returns, as `nnx.Param`s, in float32 or better. Store it with `nnx.data`."""
    return jax.tree.map(lambda leaf: nnx.Param(leaf.astype(widened(dtype))), encoding.init(rngs.params(), sizes))


def values(params: EncodingParams) -> EncodingParams:
    """The arrays inside."""
    return jax.tree.map(lambda p: p[...], params, is_leaf=lambda p: isinstance(p, nnx.Param))
