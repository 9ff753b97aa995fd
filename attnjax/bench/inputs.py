"""Inputs that all contenders share, and the comparison of what they make of them, before anything is timed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import Array, Float, PyTree

TOLERANCE = 1e-4
"""Largest difference of two contenders, relative to the largest entry of the array, in float32."""


class Inputs(NamedTuple):
    """Queries, keys, values, and the weights w of the scalar sum(w * out) that is differentiated."""

    q: Float[Array, "B T N H"]
    k: Float[Array, "B T N H"]
    v: Float[Array, "B T N H"]
    w: Float[Array, "B T N H"]


def inputs(T: int, *, B: int = 4, N: int = 8, H: int = 64, seed: int = 0) -> Inputs:
    """Normal numbers in float32."""
    keys = jax.random.split(jax.random.key(seed), 4)
    return Inputs(*(jax.random.normal(key, (B, T, N, H), jnp.float32) for key in keys))


def both_ways(f: Callable[..., Array]) -> Callable[..., tuple[Array, PyTree]]:
    """(f(params, q, k, v), gradients of sum(w * f) to all four), as a function of (params, q, k, v, w)."""

    def value(params: PyTree, q: Array, k: Array, v: Array, w: Array):
        out = f(params, q, k, v)
        return (w * out).sum(), out

    def run(params: PyTree, q: Array, k: Array, v: Array, w: Array):
        gradients, out = jax.grad(value, argnums=(0, 1, 2, 3), has_aux=True)(params, q, k, v, w)
        return out, gradients

    return run


def difference(a: PyTree, b: PyTree) -> float:
    """The largest |a - b| relative to the largest |b| of each array; NaN counts as infinite, wherever it is."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = (np.asarray(z, np.float64) for z in (x, y))
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            return float("inf")
        worst = max(worst, float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)))
    return worst


def compiled(f: Callable[..., Any], *args: Any) -> Any:
    """The program of a function for these arguments."""
    return jax.jit(f).lower(*args).compile()
