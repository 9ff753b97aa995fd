"""Forward: key tiles of a query tile in turn, with the maximum, the sum and the output of each row so far."""

import jax
import jax.numpy as jnp

from attnjax.attention.blockwise import block
from attnjax.attention.blockwise.block import BlockInputs, Static, block_at, drop, scores_at
from attnjax.attention.blockwise.schedule import BlockSchedule, visit
from attnjax.attention.hooks import initial_carry
from attnjax.attention.products import weights_values
from attnjax.positions.base import Trait
from attnjax.typing import Array, compute_dtype


def forward(static: Static, inputs: BlockInputs) -> tuple[Array, Array, Array]:
    """Output, largest score of each row (0 where it sees nothing), and log sum_j e^(s_ij - largest).

    Where scores are the logarithms of weights, the last two are 0.
    """
    t, _ = static.tile
    queries, width, dtype = inputs.queries.q.shape[3], inputs.keys.v.shape[-1], compute_dtype(*inputs.keys[:2])
    normalized = Trait.UNNORMALIZED not in static.encoding.traits
    schedule = BlockSchedule.plan(static, inputs)

    def query_tile(i):
        rows = block.queries_at(inputs.queries, i, t)
        state, carry = block.same_axes(_start(inputs, rows.q.shape[:4], width, dtype, normalized), inputs), None
        carry = block.same_axes(initial_carry(static.encoding, inputs.params, rows.q), inputs)
        order, count = schedule.of(i)

        def key_tile(step, carried):
            (top, total, out), carry = carried
            at = block_at(static, inputs, rows, i, order[step])
            logits, carry = scores_at(static, inputs, at, carry)
            logits = jnp.where(at.seen, logits, -jnp.inf)
            # Nothing depends on what is subtracted: see `dense.py`.
            new = jnp.maximum(top, jax.lax.stop_gradient(logits.max(-1))) if normalized else top
            p = jnp.exp(logits - new[..., None])
            shrink = jnp.exp(top - new)
            total = shrink * total + p.sum(-1)
            out = shrink[..., None] * out + weights_values(drop(static, inputs, p, at), at.keys.v)
            return (new, total, out), carry

        (top, total, out), _ = visit(static, order.shape[0], count, key_tile, (state, carry))
        if not normalized:
            return out, top, top
        empty = total == 0
        safe = jnp.where(empty, 1, total)
        return out / safe[..., None], jnp.where(empty, 0, top), jnp.where(empty, -jnp.inf, jnp.log(safe))

    out, top, log_total = jax.lax.map(query_tile, jnp.arange(queries // t))
    return block.join(out), block.join(top), block.join(log_total)


def _start(
    inputs: BlockInputs, rows: tuple[int, ...], width: int, dtype: jnp.dtype, normalized: bool
) -> tuple[Array, Array, Array]:
    """Maximum, sum and output of rows that have seen no key."""
    empty = jnp.zeros(rows, dtype)
    # Not -inf: a row that sees nothing yet has e^(-inf - lowest) = 0, without asking.
    top = jnp.full(rows, jnp.finfo(dtype).min, dtype) if normalized else empty
    out = jnp.zeros((*rows, width), dtype)
    if inputs.sink is None:
        return top, empty, out
    sink = jnp.broadcast_to(inputs.sink[None, :, :, None], rows)
    top = jax.lax.stop_gradient(sink)
    return top, jnp.exp(sink - top), out
