"""Blockwise attention: linear memory for every encoding by tiles and an online softmax; the backward recomputes each tile.

For each tile of t queries, the key tiles that the mask does not empty are visited in turn, carrying per row the running
maximum m, the sum l and the unnormalized output:

    m'   = max(m, max_j s_ij)
    l'   = e^(m - m') l + sum_j e^(s_ij - m')
    out' = e^(m - m') out + sum_j e^(s_ij - m') v_j

A sink of logit s_h starts the row at m = s_h, l = 1. Backward, with delta_i = dout_i . out_i - dlse_i and
p_ij = e^(s_ij - lse_i), each tile contributes

    dv_j += p_ij dout_i
    ds_ij = p_ij (dout_i . v_j - delta_i)

and `jax.vjp` of the encoding's score takes ds to q, k, positions and every learned parameter. All is summed in a fixed
order, so gradients are bitwise repeatable. No array has two axes of length T or S.

There are first derivatives in reverse mode. JAX refuses forward mode (`custom_vjp`) and the second derivative in reverse (loops
whose number of steps is data); "dense" has both.

References: Milakov & Gimelshein 2018 (arXiv:1805.02867); Rabe & Staats 2021 (arXiv:2112.05682); Dao et al. 2022
(arXiv:2205.14135), Algorithms 1 and 4.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.blockwise import block
from attnjax.attention.blockwise.backward import backward
from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.attention.blockwise.forward import forward
from attnjax.attention.blockwise.schedule import BlockSchedule
from attnjax.attention.blockwise.sizes import Tiling, default_block_sizes, devices_of, over_devices, over_groups
from attnjax.attention.dropout import head_keys
from attnjax.attention.inputs import AttentionInputs
from attnjax.attention.relative_bias import per_distance
from attnjax.positions.base import Trait
from attnjax.typing import Array, Float, PyTree


def blockwise(
    inputs: AttentionInputs, tiling: Tiling | None = None
) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Output and log-sum-exp of every head in memory linear in T and S. `tiling`: sizes other than the default ones."""
    T = inputs.queries.q.shape[3]
    static, inexact, exact = split(inputs, tiling)
    out, lse = _attend(static, inexact, exact)
    return out[:, :, :, :T].astype(inputs.compute_dtype), lse[:, :, :, :T]


def split(inputs: AttentionInputs, tiling: Tiling | None) -> tuple[Static, PyTree, PyTree]:
    """What is known while tracing, and arrays padded to whole tiles: those that have a gradient, and the others."""
    B, K, G, T, _ = inputs.queries.q.shape
    S, traits = inputs.keys.k.shape[2], inputs.encoding.traits
    sizes = tiling or default_block_sizes(T, S, G, general=Trait.SCORE in traits)
    tile = (min(sizes.queries, T), min(sizes.keys, S))
    inputs = per_distance(inputs, tile, skipping=True)
    dropout, known = inputs.dropout, isinstance(inputs.scale, np.ndarray)
    static = Static(
        inputs.encoding,
        inputs.span,
        tile,
        float(inputs.scale) if known else None,
        0.0 if dropout is None else dropout.rate,
        (B, 1) if Trait.ALL_HEADS in traits else (B, K),
        sizes.heads,
        everywhere=tiling is not None,
    )
    keys = None if dropout is None else head_keys(dropout, (B, K, G))
    queries, cols, allowed = block.pad(inputs.queries, inputs.keys, inputs.allowed, tile)
    scale = None if known else inputs.scale
    all_of_it = BlockInputs(queries, cols, inputs.params, scale, inputs.sink, allowed, keys)
    inexact, exact = block.split_inexact(jax.tree.map(jnp.asarray, all_of_it))
    # Replicated parameters meet sharded queries here, outside of the custom gradient, so that theirs is summed over devices.
    return static, block.same_axes(inexact, (inexact, exact)), exact


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: Static, inexact: PyTree, exact: PyTree) -> tuple[Array, Array]:
    out, top, log_total = _forward(static, inexact, exact)
    return out, top + log_total


def _attend_fwd(static: Static, inexact: PyTree, exact: PyTree) -> tuple[tuple[Array, Array], Any]:
    inexact, exact, wanted = block.perturbed(inexact, exact)
    # Their sum would round away what the weights need, where all visible scores are far below zero.
    out, top, log_total = _forward(static, inexact, exact)
    return (out, top + log_total), (inexact, exact, wanted, out, top, log_total)


def _attend_bwd(static: Static, saved: Any, cotangents: tuple[Any, Any]) -> tuple[PyTree, PyTree]:
    inexact, exact, wanted, *results = saved
    dresults = [block.instantiated(x) for x in cotangents]
    gradient = _backward(static._replace(wanted=wanted.leaves), (inexact, *results, *dresults), exact)
    return gradient, jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), exact)


_attend.defvjp(_attend_fwd, _attend_bwd, symbolic_zeros=True)


def _forward(static: Static, inexact: PyTree, exact: PyTree) -> tuple[Array, Array, Array]:
    """Output, largest score of each row, and log sum_j e^(s_ij - largest)."""
    inputs = block.merge(inexact, exact)
    axes = [block.axes(static, inputs, axis) for axis in (0, 1)]
    return _in_groups(static, functools.partial(forward, static), inputs, axes, [(0, 0, 0), (1, 1, 1)])


def _backward(static: Static, arrays: tuple, exact: PyTree) -> PyTree:
    """Gradients of the wanted leaves, from (inexact, out, top, log_total, dout, dlse)."""
    inexact, *rows = arrays
    inputs = block.merge(inexact, exact)
    of_inputs = [block.axes(static, inputs, axis) for axis in (0, 1)]
    wanted = block.wanted(static, inputs)
    of_results = [block.chosen(axes, wanted) for axes in of_inputs]
    axes = [(along, [axis] * len(rows)) for axis, along in enumerate(of_inputs)]
    devices = devices_of((inputs, rows))

    def run(both: tuple[BlockInputs, list[Array]]) -> PyTree:
        schedule = BlockSchedule.plan(static, both[0])
        part = lambda both: backward(static, both[0], *both[1], schedule=schedule)
        return over_devices(part, both, axes[0], of_results[0], devices)

    return _in_groups(static, run, (inputs, rows), axes, of_results)


def _in_groups(static: Static, run: Callable[..., Any], inputs: PyTree, axes: list, results: list) -> Any:
    """`run` on groups of heads that fit into the caches of a CPU, one after another; on other devices on all at once.

    Which of the two is decided where the program is lowered, by the device that it is lowered for. Sizes that a caller chose
    hold on every device.
    """
    grouped = lambda inputs: over_groups(run, inputs, axes, results, static.groups, static.at_once)
    if static.at_once is None or static.at_once >= static.groups[0] * static.groups[1]:
        return run(inputs)
    if static.everywhere:
        return grouped(inputs)
    return jax.lax.platform_dependent(inputs, cpu=grouped, default=run)
