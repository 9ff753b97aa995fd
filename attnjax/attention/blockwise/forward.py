"""Forward: key tiles of a query tile in turn, with the maximum, the sum and the output of each row so far."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from attnjax.attention.blockwise import block
from attnjax.attention.blockwise.block import BlockInputs, Static, block_at, drop, scores_at
from attnjax.attention.blockwise.schedule import BlockSchedule
from attnjax.attention.hooks import initial_carry
from attnjax.attention.products import weights_values
from attnjax.positions.base import Trait
from attnjax.typing import Array, Float, PyTree, compute_dtype


class RowState(NamedTuple):
    """The rows of a query tile after some keys: the largest score m, sum_j e^(s_ij - m), sum_j e^(s_ij - m) v_j, and the
    encoding's carry.
    """

    top: Float[Array, "B K G t"]
    total: Float[Array, "B K G t"]
    out: Float[Array, "B K G t H"]
    carry: PyTree


def forward(static: Static, inputs: BlockInputs) -> tuple[Array, Array, Array]:
    """Output, largest score of each row (0 where it sees nothing), and log sum_j e^(s_ij - largest).

    Where scores are the logarithms of weights, the last two are 0.
    """
    schedule = BlockSchedule.plan(static, inputs)
    whole = lambda i: normalized(static, _visit_keys(static, inputs, schedule, i, start(static, inputs, i)))
    out, top, log_total = jax.lax.map(whole, jnp.arange(query_tiles(static, inputs)))
    return block.join(out), block.join(top), block.join(log_total)


def extend(static: Static, inputs: BlockInputs, states: RowState) -> RowState:
    """The states of all query tiles, [tiles, ...], after these keys too."""
    schedule = BlockSchedule.plan(static, inputs)
    tiles = jnp.arange(query_tiles(static, inputs))
    return jax.lax.map(lambda at: _visit_keys(static, inputs, schedule, *at), (tiles, states))


def query_tiles(static: Static, inputs: BlockInputs) -> int:
    """How many query tiles there are."""
    return inputs.queries.q.shape[3] // static.tile[0]


def start(static: Static, inputs: BlockInputs, i: Array) -> RowState:
    """The state of query tile i before any key."""
    rows = block.queries_at(inputs.queries, i, static.tile[0])
    width, dtype = inputs.keys.v.shape[-1], compute_dtype(*inputs.keys[:2])
    shape, normal = rows.q.shape[:4], _is_normal(static)
    empty = jnp.zeros(shape, dtype)
    # Not -inf: a row that sees nothing yet has e^(-inf - lowest) = 0, without asking.
    top, total = jnp.full(shape, jnp.finfo(dtype).min, dtype) if normal else empty, empty
    if inputs.sink is not None:
        sink = jnp.broadcast_to(inputs.sink[None, :, :, None], shape)
        # At least the lowest number: a sink of -inf has no weight, and is no score to subtract.
        top = jnp.maximum(top, jax.lax.stop_gradient(sink))
        total = jnp.exp(sink - top)
    carry = initial_carry(static.encoding, inputs.params, rows.q)
    return block.same_axes(RowState(top, total, jnp.zeros((*shape, width), dtype), carry), inputs)


def normalized(static: Static, state: RowState) -> tuple[Array, Array, Array]:
    """Output, largest score and logarithm of the sum, from the state after all keys."""
    top, total, out, _ = state
    if not _is_normal(static):
        return out, top, top
    empty = total == 0
    safe = jnp.where(empty, 1, total)
    return out / safe[..., None], jnp.where(empty, 0, top), jnp.where(empty, -jnp.inf, jnp.log(safe))


def _visit_keys(static: Static, inputs: BlockInputs, schedule: BlockSchedule, i: Array, state: RowState) -> RowState:
    """The state of query tile i after the key tiles that it sees something of."""
    rows = block.queries_at(inputs.queries, i, static.tile[0])
    order, count = schedule.of(i)

    def key_tile(step: Array, state: RowState) -> RowState:
        top, total, out, carry = state
        at = block_at(static, inputs, rows, i, order[step])
        logits, carry = scores_at(static, inputs, at, carry)
        logits = jnp.where(at.seen, logits, -jnp.inf)
        # Nothing depends on what is subtracted: see `dense.py`.
        new = jnp.maximum(top, jax.lax.stop_gradient(logits.max(-1))) if _is_normal(static) else top
        p = jnp.exp(logits - new[..., None])
        shrink = jnp.exp(top - new)
        total = shrink * total + p.sum(-1)
        out = shrink[..., None] * out + weights_values(drop(static, inputs, p, at), at.keys.v)
        return RowState(new, total, out, carry)

    return jax.lax.fori_loop(0, count, key_tile, state)


def _is_normal(static: Static) -> bool:
    """Whether weights are normalized by a softmax."""
    return Trait.UNNORMALIZED not in static.encoding.traits
