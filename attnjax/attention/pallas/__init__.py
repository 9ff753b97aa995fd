"""A Pallas kernel for TPUs, forward and backward, in which the hooks of the encoding are traced: linear memory, any bias.

What FlexAttention is to PyTorch, with exact gradients of everything that the hooks read: learned parameters, scale, and
positions that were computed from content. `tile.py` is the function of one tile, `layout.py` says what lies in which memory,
`forward.py` and `backward.py` are the kernels; formulas are those of `blockwise`.

The kernel is compiled where a program is lowered for a TPU, and interpreted, block by block in XLA, on every other device. It
has been compiled for TPU v5e and v6e without one at hand; its numbers are those of interpretation, and it has not run on a TPU.

References: Dao et al. 2022 (arXiv:2205.14135); Dong et al. 2024 (FlexAttention, arXiv:2412.05496).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.blockwise import block
from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.attention.inputs import AttentionInputs
from attnjax.attention.pallas.backward import backward
from attnjax.attention.pallas.distances import by_distance
from attnjax.attention.pallas.forward import forward
from attnjax.typing import Array, Float, PyTree

BLOCK = 128
"""Queries and keys of a tile: the lanes of a TPU."""


def pallas(inputs: AttentionInputs, size: int = BLOCK) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Output and log-sum-exp of every head, by tiles of `size` queries and keys."""
    T = inputs.queries.q.shape[3]
    out, lse = _attend(*_split(inputs, size))
    return out[:, :, :, :T], lse[:, :, :, :T]


def _split(inputs: AttentionInputs, size: int) -> tuple[Static, PyTree, PyTree]:
    """What is known while tracing, and arrays padded to whole blocks: those that have a gradient, and the others."""
    inputs = by_distance(inputs, size)
    known = isinstance(inputs.scale, np.ndarray)
    scale = float(inputs.scale) if known else None
    static = Static(inputs.encoding, inputs.span, (size, size), scale, 0.0, (1, 1), None, everywhere=True)
    queries, keys, _ = block.pad(inputs.queries, inputs.keys, None, static.tile)
    queries = queries._replace(q=_supported(queries.q))
    keys = keys._replace(k=_supported(keys.k), v=_supported(keys.v))
    params = jax.tree.map(_wide, inputs.params)
    whole = BlockInputs(queries, keys, params, None if known else inputs.scale, inputs.sink, None, None)
    inexact, exact = block.split_inexact(jax.tree.map(jnp.asarray, whole))
    return static, block.same_axes(inexact, (inexact, exact)), exact


def _supported(x: Array) -> Array:
    """float32 in place of float16, which a TPU does not have."""
    return x.astype(jnp.float32) if x.dtype == jnp.float16 else x


def _wide(x: Any) -> Array:
    x = jnp.asarray(x)
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: Static, inexact: PyTree, exact: PyTree) -> tuple[Array, Array]:
    out, top, log_total = _forward(static, inexact, exact)
    return out, top + log_total


def _attend_fwd(static: Static, inexact: PyTree, exact: PyTree) -> tuple[tuple[Array, Array], Any]:
    # Their sum would round away what the weights need, where all visible scores are far below zero.
    out, top, log_total = _forward(static, inexact, exact)
    return (out, top + log_total), (inexact, exact, out, top, log_total)


def _attend_bwd(static: Static, saved: Any, cotangents: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
    inexact, exact, *results = saved
    gradient = _backward(static, (inexact, *results, *cotangents), exact)
    return gradient, jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), exact)


_attend.defvjp(_attend_fwd, _attend_bwd)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _forward(static: Static, inexact: PyTree, exact: PyTree) -> tuple[Array, Array, Array]:
    """Output, largest score of each row, and log sum_j e^(s_ij - largest)."""
    return _on_each_platform(functools.partial(forward, static), block.merge(inexact, exact))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _backward(static: Static, arrays: tuple, exact: PyTree) -> PyTree:
    """Gradients of the inexact leaves, from (inexact, out, top, log_total, dout, dlse)."""
    inexact, *results = arrays
    gradient = _on_each_platform(functools.partial(backward, static), block.merge(inexact, exact), *results)
    return jax.tree.map(lambda g, x: g.astype(x.dtype), gradient, inexact)


@_forward.defjvp
@_backward.defjvp
def _no_second_derivative(static: Static, primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        f"implementation 'pallas' has no second derivatives (of {static.encoding}); take 'chunked' or 'dense' for them"
    )


def _on_each_platform(run: Any, *arguments: Any) -> Any:
    """Compiled on a TPU, and interpreted elsewhere, by the device that the program is lowered for."""
    tpu, other = (functools.partial(run, interpret=interpret) for interpret in (False, True))
    return jax.lax.platform_dependent(*arguments, tpu=tpu, default=other)
