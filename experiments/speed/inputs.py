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
    """The largest |a - b| relative to the largest |b| of each array, or to a tenth of the largest of all arrays: a
    gradient that is zero in truth (of a constant added to all scores of a row) is rounding. NaN counts as infinite.
    """
    pairs = [
        tuple(np.asarray(z, np.float64) for z in pair)
        for pair in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]
    if not all(np.isfinite(x).all() and np.isfinite(y).all() for x, y in pairs):
        return float("inf")
    least = 0.1 * max((float(np.abs(y).max()) for _, y in pairs), default=0.0)
    scales = [max(float(np.abs(y).max()), least, 1e-30) for _, y in pairs]
    return max((float(np.abs(x - y).max()) / scale for (x, y), scale in zip(pairs, scales, strict=True)), default=0.0)


def compiled(f: Callable[..., Any], *args: Any) -> Any:
    """The program of a function for these arguments."""
    return jax.jit(f).lower(*args).compile()
