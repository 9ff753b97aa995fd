"""Between plain numbers and the arrays that `attend` takes."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.typing import Array, ArrayLike, Float


def one_head(x: Any) -> Float[Array, "1 T 1 H"]:
    """[T, H] as one example with one head."""
    return jnp.asarray(x, jnp.float32)[None, :, None, :]


def heads(x: Any, count: int) -> Float[Array, "1 T N H"]:
    """[T, D] as one example whose channels are cut into this many heads."""
    x = jnp.asarray(x, jnp.float32)
    return x.reshape(1, x.shape[0], count, x.shape[1] // count)


def plain(x: ArrayLike) -> Any:
    """An array as nested lists of Python floats; a scalar as one float."""
    return np.asarray(jax.device_get(x), np.float64).tolist()


def parameters(module: nnx.Module) -> int:
    """How many numbers a module learns; shapes are enough."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.split(module, graph=False)[1]))
