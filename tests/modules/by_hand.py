"""Small modules of random numbers, calls compiled as one, and attention and norms written out in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.modules import AttentionOptions, MultiHeadAttention, TransformerConfig

TOKENS = np.random.default_rng(0).integers(0, 11, (2, 8))


def config(**fields):
    """Returns a config of two layers, with some fields changed."""
    sizes = {"vocab": 11, "model": 16, "layers": 2, "heads": 4, "hidden": 24}
    return TransformerConfig(**{**sizes, **fields})


def build(kind, *arguments, seed=0, scale=0.3, **options):
    """Returns a module with noise in every parameter: initial zeros and ones would hide what they multiply.

    The noise is drawn by NumPy, so that a test compiles only what it calls.
    """
    abstract = jax.eval_shape(lambda: kind(*arguments, **options, rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(seed)
    noise = lambda leaf: (scale * rng.normal(size=leaf.shape)).astype(leaf.dtype)
    return jax.tree.map(lambda leaf: jnp.asarray(noise(leaf)), abstract)


def attention(model=16, heads=4, *, seed=0, encoding=None, shares_encoding=False, **options):
    given = {} if encoding is None else {"encoding": encoding, "shares_encoding": shares_encoding}
    return build(MultiHeadAttention, model, heads, options=AttentionOptions(**options), seed=seed, **given)


@functools.partial(jax.jit, static_argnums=1)
def _compiled(module, name, *arguments, **options):
    return getattr(module, name)(*arguments, **options)


def call(function, *arguments, **options):
    """Returns `function(...)` of a module or one of its methods, compiled as one program, as NumPy arrays."""
    module, name = getattr(function, "__self__", function), getattr(function, "__name__", "__call__")
    return jax.tree.map(np.asarray, _compiled(module, name, *arguments, **options))


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def value(parameter):
    return np.asarray(parameter[...], np.float64)


def layer_norm(x, norm, epsilon=1e-6):
    x = np.asarray(x, np.float64)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return x * value(norm.scale) + value(norm.bias)


def rms_norm(x, norm, epsilon=1e-6):
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * value(norm.scale)


def attend_by_hand(module, x, visible, gate=1.0):
    """Returns output and weights of self-attention without an encoding, in float64; `gate` multiplies heads [B,T,N,H]."""
    x, (_, N, K, H) = np.asarray(x, np.float64), module.sizes
    project = lambda w, b: np.einsum("btd,dnh->bnth", x, value(w)) + (0 if b is None else value(b)[:, None])
    q, k, v = (project(getattr(module, f"w_{one}"), getattr(module, f"b_{one}")) for one in "qkv")
    if module.q_norm is not None:
        q, k = (rms_norm(one, norm, norm.epsilon) for one, norm in ((q, module.q_norm), (k, module.k_norm)))
    k, v = np.repeat(k, N // K, 1), np.repeat(v, N // K, 1)
    scale = H**-0.5 if module.scale is None else module.scale
    e = np.where(visible, np.exp(scale * np.einsum("bnth,bnsh->bnts", q, k)), 0)
    sink = 0 if module.sink is None else np.exp(value(module.sink))[:, None, None]
    weights = e / (e.sum(-1, keepdims=True) + sink)
    heads = np.einsum("bnts,bnsh->btnh", weights, v) * gate
    if module.w_g is not None:
        gates = 1 / (1 + np.exp(-np.tensordot(x, value(module.w_g), 1)))
        heads = heads * (gates if gates.ndim == 4 else gates[..., None])
    out = np.einsum("btnh,nhd->btd", heads, value(module.w_o))
    return out + (0 if module.b_o is None else value(module.b_o)), weights
