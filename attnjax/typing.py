"""The axis legend of the whole package, and the array types that annotations use.

The letters are those of `jax.nn.dot_product_attention`. They mean the same in every annotation, einsum and docstring:

    B  batch             N  query heads          D  model dimension
    T  queries           K  key/value heads      F  feed-forward dimension
    S  keys              G  = N / K              V  vocabulary
    H  head dimension    h  head dimension after `map_q` / `map_k`     L  layers     P  population

Lower case `t`, `s`: the same axes inside one tile of one head.
"""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, Num, UInt32

__all__ = ["Array", "ArrayLike", "Bool", "Float", "Int", "Key", "Num", "PyTree", "UInt32", "compute_dtype"]

ArrayLike: TypeAlias = jax.Array | np.ndarray
"""What public functions accept for an array: one of JAX, or one of NumPy (whose values are known while tracing)."""

PyTree: TypeAlias = Any
"""Any nesting of tuples, dicts and dataclasses with arrays at the leaves."""


def compute_dtype(*arrays: Any) -> jnp.dtype:
    """The type in which angles, biases and the softmax are computed: float32, or float64 where an input is float64."""
    return jnp.dtype(jnp.float64 if any(a.dtype == jnp.float64 for a in arrays) else jnp.float32)
