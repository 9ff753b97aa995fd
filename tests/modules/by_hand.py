"""Random arrays, a LayerNorm in NumPy, and keywords of attention, for tests that compute a layer by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from attnjax.modules import AttentionOptions

ATTENTION_OPTIONS = frozenset(field.name for field in dataclasses.fields(AttentionOptions))


def attention_arguments(given):
    """Keywords of `MultiHeadAttention`, with those of its options in their record."""
    options = {name: value for name, value in given.items() if name in ATTENTION_OPTIONS}
    others = {name: value for name, value in given.items() if name not in ATTENTION_OPTIONS}
    return {**others, "options": AttentionOptions(**options)}


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def layer_norm(x, norm, epsilon=1e-6):
    x = np.asarray(x, np.float64)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return x * np.asarray(norm.scale[...]) + np.asarray(norm.bias[...])
