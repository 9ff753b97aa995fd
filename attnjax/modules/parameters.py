"""Creates and applies parameters: kernels, biases, norms, dropout, and the parameters of an encoding."""

import math
from collections.abc import Callable
from typing import TypeVar

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from attnjax.modules.config import TransformerConfig
from attnjax.positions import PositionEncoding, Sizes
from attnjax.positions.checks import validate_key
from attnjax.typing import Array, Float, Key, PyTree, compute_dtype

Norm = nnx.LayerNorm | nnx.RMSNorm
Model = TypeVar("Model", bound=nnx.Module)


def kernel(shape: tuple[int, ...], inputs: int, *, dtype: str, rngs: nnx.Rngs) -> nnx.Param:
    """Returns a kernel of normal numbers with variance 1 / fan_in; its first `inputs` axes are those of the input."""
    axes = tuple(range(len(shape)))
    init = jax.nn.initializers.variance_scaling(1.0, "fan_in", "normal", in_axis=axes[:inputs], out_axis=axes[inputs:])
    return nnx.Param(init(rngs.params(), shape, jnp.dtype(dtype)))


def rescale(config: TransformerConfig, w: nnx.Param | None, inputs: int, *, residual: bool = False) -> None:
    """Rescales a kernel of variance 1 / inputs by `kernel_std` and `residual_start` of the config, see `TransformerOptions`.

    `residual`: its output is added to the residual stream.
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
    return {"layer": nnx.LayerNorm, "rms": nnx.RMSNorm}[config.norm](
        config.model,
        epsilon=config.norm_epsilon,
        dtype=widened(config.dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        use_fast_variance=False,  # E[x^2] - E[x]^2 cancels where the mean is large
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
    """Returns the dtype of norms and of parameters of encodings: float64 where `dtype` is float64, else float32."""
    return jnp.dtype(jnp.float64 if dtype == "float64" else jnp.float32)


def encoding_parameters(encoding: PositionEncoding, sizes: Sizes, *, dtype: str, rngs: nnx.Rngs) -> PyTree:
    """Returns the initial parameters of an encoding as `nnx.Param`s, float32 or wider; store them with `nnx.data`."""
    return jax.tree.map(lambda leaf: nnx.Param(leaf.astype(widened(dtype))), encoding.init(rngs.params(), sizes))


def encoding_values(params: PyTree, constants: PyTree = None) -> PyTree:
    """Returns the parameters of an encoding as arrays, beside the constants of `replace_constants`.

    Example:
      >>> encoding_values(({"w": nnx.Param(jnp.ones(()))}, {}), ({}, {"gain": 2.0}))
      ({'w': Array(1., dtype=float32)}, {'gain': 2.0})
    """
    if isinstance(params, tuple):
        return tuple(map(encoding_values, params, constants or ({},) * len(params)))
    array = lambda leaf: leaf[...] if isinstance(leaf, nnx.Param) else leaf
    return {**(constants or {}), **jax.tree.map(array, params, is_leaf=lambda leaf: isinstance(leaf, nnx.Param))}


def with_parameters(make: Callable[[], Model], parameters: PyTree) -> Model:
    """Returns the model that `make` makes, with these parameters, a pure dict, in place of its own; none are drawn.

    Example:
      >>> from attnjax.modules import Encoder
      >>> config, tokens = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32), jnp.arange(3)[None]
      >>> make = lambda: Encoder(config, rngs=nnx.Rngs(0))
      >>> model = make()
      >>> same = with_parameters(make, nnx.to_pure_dict(nnx.split(model, graph=False)[1]))
      >>> bool((same(tokens) == model(tokens)).all())
      True
    """
    graph, state = nnx.split(nnx.eval_shape(make), graph=False)
    nnx.replace_by_pure_dict(state, parameters)
    return nnx.merge(graph, state)


def split(key: Key[Array, ""] | None, count: int) -> list[Key[Array, ""] | None]:
    """Returns `count` independent keys for dropout, or `count` times None without a key, so that nothing is dropped.

    Raises ValueError for anything but one typed key.
    """
    return [None] * count if key is None else list(jax.random.split(validate_key("dropout", key), count))


def drop(x: Float[Array, "*axes"], key: Key[Array, ""] | None, rate: float) -> Float[Array, "*axes"]:
    """Returns x with each entry set to 0 with probability `rate`, and divided by 1 - rate otherwise.

    Reference: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from overfitting".

    Example:
      >>> sorted(set(drop(jnp.ones(100), jax.random.key(0), 0.5).tolist()))
      [0.0, 2.0]
      >>> drop(jnp.ones(3), None, 0.5).tolist()
      [1.0, 1.0, 1.0]
    """
    chex.assert_type(x, float)
    if key is None or rate == 0:
        return x
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))
