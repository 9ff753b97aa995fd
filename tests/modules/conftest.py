"""What tests of modules share: small configs, random tokens, models of random numbers, and calls compiled as one."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.modules import TransformerConfig


@pytest.fixture
def config() -> Callable[..., TransformerConfig]:
    """A config of two layers, with some fields changed."""

    def make(**fields):
        sizes = {"vocab": 11, "model": 16, "layers": 2, "heads": 4, "hidden": 24}
        return TransformerConfig(**{**sizes, **fields})

    return make


@pytest.fixture
def tokens() -> np.ndarray:
    """Two sequences of eight tokens below 11."""
    return np.random.default_rng(0).integers(0, 11, (2, 8))


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """A module with noise on every parameter: the zeros and ones of initial values would hide what they multiply.

    Nothing is computed by JAX, so that a test compiles only what it calls.
    """

    def make(kind, *arguments, seed=0, scale=0.3, **options):
        abstract = jax.eval_shape(lambda: kind(*arguments, **options, rngs=nnx.Rngs(0)))
        draw = np.random.default_rng(seed)
        return jax.tree.map(lambda leaf: jnp.asarray(scale * draw.normal(size=leaf.shape), leaf.dtype), abstract)

    return make


@pytest.fixture(scope="session")
def call() -> Callable[..., Any]:
    """`call(module, ...)` or `call(module.method, ...)`, compiled as one. NumPy arguments are traced too."""

    @functools.partial(jax.jit, static_argnums=1)
    def compiled(module, name, *arguments, **options):
        return getattr(module, name)(*arguments, **options)

    def apply(function, *arguments, **options):
        module, name = getattr(function, "__self__", function), getattr(function, "__name__", "__call__")
        return compiled(module, name, *arguments, **options)

    return apply


@pytest.fixture
def count() -> Callable[..., int]:
    """Number of parameters of the module that these arguments make."""

    def parameters(kind, *arguments, **options):
        abstract = jax.eval_shape(lambda: kind(*arguments, **options, rngs=nnx.Rngs(0)))
        return sum(leaf.size for leaf in jax.tree.leaves(abstract))

    return parameters
