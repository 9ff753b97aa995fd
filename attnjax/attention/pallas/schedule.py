"""Which blocks of keys a block of queries visits: from the first that the mask leaves something of to the last.

The bounds are two numbers for each block, of queries and of keys. A TPU holds them in SMEM before the grid begins: a step
outside of them computes nothing, and asks for the block that a visited step asks for, so that nothing is copied for it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.attention.blockwise.schedule import BlockSchedule
from attnjax.typing import Array, Int


class Bounds(NamedTuple):
    """First and last block of keys of each block of queries, and the other way round; last < first where there are none."""

    of_queries: Int[Array, "2 n"]
    of_keys: Int[Array, "2 m"]


def bounds(static: Static, inputs: BlockInputs) -> Bounds:
    """Of these inputs, over all examples."""
    schedule = BlockSchedule.plan(static, inputs)
    t, s = static.tile

    def of_queries(i: Array) -> Array:
        order, count = schedule.of(i)
        last = jnp.where(count > 0, order[count - 1], -1)
        return jnp.stack([jnp.where(count > 0, order[0], 0), last]).astype(jnp.int32)

    queries = jnp.arange(inputs.queries.q.shape[3] // t, dtype=jnp.int32)
    first, last = jax.lax.map(of_queries, queries).T

    def of_keys(j: Array) -> Array:
        seen = (first <= j) & (j <= last)
        few, many = jnp.where(seen, queries, queries.shape[0]).min(), jnp.where(seen, queries, -1).max()
        return jnp.stack([jnp.where(many >= 0, few, 0), many]).astype(jnp.int32)

    keys = jnp.arange(inputs.keys.k.shape[2] // s, dtype=jnp.int32)
    return Bounds(jnp.stack([first, last]), jax.lax.map(of_keys, keys).T)
