"""Linear memory for every encoding: tiles, online softmax, and a backward pass that recomputes each tile.

For each tile of t queries, the key tiles that the mask does not empty are visited in turn, carrying per row the running
maximum m, the sum l and the unnormalised output:

    m'   = max(m, max_j s_ij)
    l'   = e^(m - m') l + sum_j e^(s_ij - m')
    out' = e^(m - m') out + sum_j e^(s_ij - m') v_j

Backward, with delta_i = dout_i . out_i - dlse_i and p_ij = e^(s_ij - lse_i), each tile contributes

    dv_j += p_ij dout_i
    ds_ij = p_ij (dout_i . v_j - delta_i)

and `jax.vjp` of the encoding's score takes ds to q, k, positions and every learned parameter. All is summed in a fixed
order, so gradients are bitwise repeatable. No array has two axes of length T or S. Forward-mode
differentiation is not defined here (`custom_vjp`): use the dense implementation for it.

References: Milakov & Gimelshein 2018 (arXiv:1805.02867); Rabe & Staats 2021 (arXiv:2112.05682); Dao et al. 2022
(arXiv:2205.14135), Algorithms 1 and 4.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention import tiles
from attnjax.attention.chunked_backward import backward
from attnjax.attention.chunked_forward import forward
from attnjax.attention.chunked_tile import Inputs, Static
from attnjax.attention.distances import by_distance
from attnjax.attention.problem import Problem
from attnjax.attention.tile import head_keys
from attnjax.attention.tiling import Tiling, over_groups, usual
from attnjax.typing import Array, Float, PyTree


def chunked(
    problem: Problem, tiling: Tiling | None = None
) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Output and log-sum-exp of every head in memory linear in T and S. `tiling`: sizes other than the usual ones."""
    B, K, G, T, _ = problem.rows.q.shape
    S = problem.cols.k.shape[2]
    if tiling is None:
        tiling = usual(T, S, G, general=problem.encoding.has("score"))
    tile = (min(tiling.queries, T), min(tiling.keys, S))
    problem = by_distance(problem, tile, skipping=True)
    dropout, known = problem.dropout, isinstance(problem.scale, np.ndarray)
    static = Static(
        problem.encoding,
        problem.span,
        tile,
        float(problem.scale) if known else None,
        0.0 if dropout is None else dropout.rate,
        None if dropout is None else jax.random.key_impl(dropout.key),
    )
    keys = None if dropout is None else head_keys(dropout, (B, K, G))
    rows, cols, allowed = tiles.pad(problem.rows, problem.cols, problem.allowed, tile)
    scale = None if known else problem.scale
    inputs = jax.tree.map(jnp.asarray, Inputs(rows, cols, problem.head, problem.shared, scale, allowed, keys))
    one = lambda inputs: _attend(static, *_parts(inputs))
    out, lse = over_groups(one, inputs, _axes(inputs, 0, 2), _axes(inputs, 1, 3), (B, K), tiling.heads)
    return out[:, :, :, :T], lse[:, :, :, :T]


def _parts(inputs: Inputs) -> tuple[PyTree, PyTree]:
    inexact, exact = tiles.split_inexact(inputs)
    # Replicated parameters meet sharded queries here, outside of the custom gradient, so that theirs is summed over devices.
    return tiles.same_axes(inexact, (inexact, exact)), exact


def _axes(inputs: Inputs, axis: int, least: int) -> Inputs:
    """Where examples (axis 0) or key heads (axis 1) run in each leaf; -1 where they do not. What has them has at least
    `least` axes.
    """
    along = lambda x: axis if x.ndim >= least else -1
    nowhere = lambda tree: jax.tree.map(lambda _: -1, tree)
    rows, cols = jax.tree.map(along, (inputs.rows, inputs.cols))
    head = jax.tree.map(lambda _: axis - 1, inputs.head)
    allowed = jax.tree.map(lambda x: 0 if axis == 0 and x.ndim == 3 else -1, inputs.allowed)
    keys = jax.tree.map(lambda _: axis, inputs.keys)
    return Inputs(rows, cols, head, nowhere(inputs.shared), nowhere(inputs.scale), allowed, keys)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(static: Static, inexact: PyTree, exact: PyTree) -> tuple[Array, Array]:
    out, top, log_total = forward(static, tiles.merge(inexact, exact))
    return out, top + log_total


def _attend_fwd(static: Static, inexact: PyTree, exact: PyTree) -> tuple[tuple[Array, Array], Any]:
    # Their sum would round away what the weights need, where all visible scores are far below zero.
    out, top, log_total = forward(static, tiles.merge(inexact, exact))
    return (out, top + log_total), (inexact, exact, out, top, log_total)


def _attend_bwd(static: Static, saved: Any, cotangents: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
    inexact, exact, out, top, log_total = saved
    gradient = backward(static, tiles.merge(inexact, exact), out, top, log_total, *cotangents)
    return gradient, jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), exact)


_attend.defvjp(_attend_fwd, _attend_bwd)
