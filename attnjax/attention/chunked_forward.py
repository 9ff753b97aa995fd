"""Forward: key tiles of a query tile in turn, with the maximum, the sum and the output of each row so far."""

import jax
import jax.numpy as jnp

from attnjax.attention import tiles
from attnjax.attention.chunked_tile import Inputs, Static, drop, place, poisoned
from attnjax.attention.products import weights_values
from attnjax.attention.tile import initial_carry
from attnjax.typing import Array


def forward(static: Static, inputs: Inputs) -> tuple[Array, Array, Array]:
    """Output, largest score of each row (0 where it sees nothing), and log sum_j e^(s_ij - largest)."""
    t, _ = static.tile
    queries, width = inputs.rows.q.shape[3], inputs.cols.v.shape[-1]
    visits = tiles.Visits.plan(static, inputs)

    def query_tile(i):
        rows = tiles.rows_at(inputs.rows, i, t)
        empty = rows.q[..., 0]
        # Not -inf: a row that sees nothing yet has e^(-inf - lowest) = 0, without asking.
        lowest = jnp.full_like(empty, jnp.finfo(empty.dtype).min)
        state = (lowest, jnp.zeros_like(empty), jnp.zeros((*empty.shape, width), empty.dtype))
        state, carry = tiles.same_axes((state, initial_carry(static.encoding, rows.q)), inputs)
        order, count = visits.of(i)

        def key_tile(step, carried):
            (top, total, out), carry = carried
            at = place(static, inputs, rows, i, order[step])
            logits, carry = poisoned(static, inputs, at, carry)
            logits = jnp.where(at.seen, logits, -jnp.inf)
            new = jnp.maximum(top, logits.max(-1))
            p = jnp.exp(logits - new[..., None])
            shrink = jnp.exp(top - new)
            total = shrink * total + p.sum(-1)
            out = shrink[..., None] * out + weights_values(drop(static, inputs, p, at), at.cols.v)
            return (new, total, out), carry

        (top, total, out), _ = jax.lax.fori_loop(0, count, key_tile, (state, carry))
        empty = total == 0
        safe = jnp.where(empty, 1, total)
        return out / safe[..., None], jnp.where(empty, 0, top), jnp.where(empty, -jnp.inf, jnp.log(safe))

    out, top, log_total = jax.lax.map(query_tile, jnp.arange(queries // t))
    return tiles.join(out), tiles.join(top), tiles.join(log_total)
