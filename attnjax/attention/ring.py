"""Ring attention: one sequence over several devices, the key blocks of which travel from each to the next.

Inside `jax.shard_map`, each of P devices holds T queries and S keys of a sequence of P T queries and P S keys. In round r
device d attends to the keys of device d - r (mod P), and passes them on. Whatever runs along the keys travels with them: keys,
values, positions, indices, segments, validity; what follows from the number of a device does not. A state of every row, as
between the tiles of `blockwise`, is all that lasts from round to round, so that memory falls as 1/P.

Backward, the keys make the same journey in the other direction, and the sums of their gradients travel with them until they
are home. There are first derivatives only, in reverse mode. Gradients of learned parameters are summed where `jax.shard_map`
meets them. Blocks that the mask hides are passed on without a product: with a causal mask and contiguous blocks device d
computes d + 1 of P blocks, and the order of `attnjax.indices.zigzag` gives every device as much.

An encoding whose scores depend on the keys to the right (`SequentialScore`) meets the blocks from the last to the first: with a
causal mask and contiguous blocks these are the rounds as they are.

References: Liu, Zaharia & Abbeel 2023 (arXiv:2310.01889), section 3; Brandon et al. 2023 (arXiv:2311.09431), which stripes the
tokens; the zigzag order is that of Llama 3 (arXiv:2407.21783, section 3.3.2).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.blockwise import block, split
from attnjax.attention.blockwise.backward import accumulate, as_inputs, row_results, zero_sums
from attnjax.attention.blockwise.block import BlockInputs, Static
from attnjax.attention.blockwise.forward import extend, normalized, query_tiles, start
from attnjax.attention.blockwise.sizes import Tiling
from attnjax.attention.inputs import AttentionInputs, Keys
from attnjax.attention.position_axes import Positions, each
from attnjax.attention.sequence_axis import SequenceAxis
from attnjax.typing import Array, Float, PyTree

FORWARD, BACKWARD = 1, -1


class Travellers(NamedTuple):
    """What travels from device to device: keys and values side by side where they are of one type, and the other fields."""

    both: Array | None
    keys: Keys


def ring(
    inputs: AttentionInputs, tiling: Tiling | None = None
) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Output and log-sum-exp of every head of the queries of this device, over the keys of all devices."""
    assert inputs.sequence is not None
    static, inexact, exact = split(inputs, tiling)
    # A loop of JAX demands that what it begins with varies over the devices as what it ends with does.
    exact = block.same_axes(exact, (inexact, exact))
    out, lse = _attend((static, inputs.sequence), inexact, exact)
    T = inputs.queries.q.shape[3]
    return out[:, :, :, :T].astype(inputs.compute_dtype), lse[:, :, :, :T]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: tuple[Static, SequenceAxis], inexact: PyTree, exact: PyTree) -> tuple[Array, Array]:
    (out, top, log_total), _ = _forward(how, inexact, exact)
    return out, top + log_total


def _attend_fwd(how: tuple[Static, SequenceAxis], inexact: PyTree, exact: PyTree) -> tuple[tuple[Array, Array], Any]:
    results, carries = _forward(how, inexact, exact)
    return (results[0], results[1] + results[2]), (inexact, exact, results, carries)


def _forward(how: tuple[Static, SequenceAxis], inexact: PyTree, exact: PyTree) -> tuple[tuple[Array, ...], PyTree]:
    """(output, largest score, log of the sum) of every row, and the carries that the keys of rounds 1, 2, ... met."""
    static, sequence = how
    inputs = block.merge(inexact, exact)
    states = jax.lax.map(lambda i: start(static, inputs, i), jnp.arange(query_tiles(static, inputs)))
    last = sequence.size - 1
    # At least one, because JAX traces the body of a loop also where one device takes no step of it.
    carries = jax.tree.map(lambda x: jnp.zeros((max(last, 1), *x.shape), x.dtype), states.carry)
    carries = block.same_axes(carries, inputs)

    def one_round(r: Array, at: tuple) -> tuple:
        keys, states, carries = at
        # Sent before the products that hide the journey.
        following = _send(sequence, keys, FORWARD)
        states = extend(static, inputs._replace(keys=_arrived(sequence, inputs.keys, keys, r)), states)
        return following, states, jax.tree.map(lambda all_, x: all_.at[r].set(x), carries, states.carry)

    keys, states, carries = jax.lax.fori_loop(0, last, one_round, (_packed(sequence, inputs.keys), states, carries))
    states = extend(static, inputs._replace(keys=_arrived(sequence, inputs.keys, keys, last)), states)
    return tuple(block.join(x) for x in normalized(static, states)), carries


def _attend_bwd(how: tuple[Static, SequenceAxis], saved: Any, cotangents: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
    """Rounds P - 1, ..., 1, 0: keys and their gradients travel back, and are at home in round 0."""
    static, sequence = how
    inexact, exact, results, carries = saved
    inputs = block.merge(inexact, exact)
    rows = row_results(static, inputs, *results, *cotangents)
    last = sequence.size - 1
    dkeys, dshares = zero_sums(static, inputs)
    queries, _ = block.split_inexact(inputs.queries)
    dqueries = _by_tile(block.same_axes(block.zeros_of(queries), inputs), static, inputs)
    dcarries = block.same_axes(jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), carries), inputs)

    def one_round(step: Array, at: tuple) -> tuple:
        r = last - step
        keys, dkeys, dqueries, dshares, dcarries = at
        keys = _send(sequence, keys, BACKWARD)
        here = inputs._replace(keys=_arrived(sequence, inputs.keys, keys, r))
        met = jax.tree.map(lambda x: x[r - 1], carries)
        more, (dkeys, dshares), dcarries = accumulate(
            static, here, rows, (dkeys, dshares), carries=met, dcarries=dcarries
        )
        return keys, _send(sequence, dkeys, BACKWARD), jax.tree.map(jnp.add, dqueries, more), dshares, dcarries

    state = (_packed(sequence, inputs.keys), dkeys, dqueries, dshares, dcarries)
    _, dkeys, dqueries, dshares, dcarries = jax.lax.fori_loop(0, last, one_round, state)
    more, sums, _ = accumulate(static, inputs, rows, (dkeys, dshares), dcarries=dcarries)
    gradient = as_inputs(static, inputs, rows, jax.tree.map(jnp.add, dqueries, more), sums)
    return gradient, jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), exact)


_attend.defvjp(_attend_fwd, _attend_bwd)


def _by_tile(zeros: Any, static: Static, inputs: BlockInputs) -> Any:
    """Zeros for the gradients of the queries, with a leading axis of query tiles."""
    t, n = static.tile[0], query_tiles(static, inputs)

    def one(x: Array, axis: int) -> Array:
        axis = axis % x.ndim
        return jnp.broadcast_to(
            block.slice_axis(x, jnp.int32(0), t, axis)[None], (n, *x.shape[:axis], t, *x.shape[axis + 1 :])
        )

    return block.over_fields(one, block.QUERY_AXES, zeros)


def _packed(sequence: SequenceAxis, keys: Keys) -> Travellers:
    """The keys as they travel, without what follows from the number of a device."""
    both = jnp.concatenate([keys.k, keys.v], -1) if keys.k.dtype == keys.v.dtype else None
    if both is not None:
        keys = keys._replace(k=None, v=None)
    if sequence.default_index:
        keys = keys._replace(index=None)
    if sequence.default_pos:
        keys = keys._replace(pos=None)
    if sequence.all_valid:
        keys = keys._replace(valid=None)
    return Travellers(both, keys)


def _arrived(sequence: SequenceAxis, own: Keys, travellers: Travellers, r: Array | int) -> Keys:
    """The keys that a device has in round r, with what follows from whose they are. `own`: the keys of the device itself."""
    me = jax.lax.axis_index(sequence.name)
    # The keys of device (me - r) mod P lie so many tokens further on than one's own.
    away = ((me - r) % sequence.size - me) * sequence.keys
    both, keys = travellers
    assert own.index is not None
    if both is not None:
        width = own.k.shape[-1]
        keys = keys._replace(k=both[..., :width], v=both[..., width:])
    if sequence.default_index:
        keys = keys._replace(index=own.index + away)
    if sequence.default_pos:
        shift = lambda one: Positions(one.values + away.astype(one.values.dtype), one.axes)
        keys = keys._replace(pos=each(shift, own.pos))
    if sequence.all_valid:
        keys = keys._replace(valid=own.valid)
    return keys


def _send(sequence: SequenceAxis, tree: PyTree, direction: int) -> PyTree:
    """Every device's arrays to the next device, or to the one before."""
    pairs = [(d, (d + direction) % sequence.size) for d in range(sequence.size)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, sequence.name, pairs), tree)
