"""Ring attention: the tokens are spread over an axis of a mesh, and blocks of keys go from device to device.

In round r = 0 .. P - 1 device d has the keys of device (d - r) mod P beside its own queries; tiles give a result for them,
and results are joined by their log-sum-exp. Backward the keys go around once more, with their gradients. Keys are sent before
the products that hide the transfer. No device holds all keys.

References: Liu et al. 2023 (arXiv:2310.01889), algorithm 1; Brandon et al. 2023 (arXiv:2311.09431), which stripes the tokens;
the zigzag order of `attnjax.indices.zigzag` is that of Llama 3 (arXiv:2407.21783, section 3.3.2).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.attention.blockwise import Results, Tiles, Tiling, backward, forward, padded, sink_gradient
from attnjax.attention.record import Call, Cols, Ring
from attnjax.attention.trees import as_types_of, merge, same_axes, split, zeros_of
from attnjax.typing import Array, Float, PyTree


def ring(call: Call, tiling: Tiling | None = None) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Returns output and log-sum-exp of every head of the queries of this device, over the keys of all devices."""
    T = call.rows.q.shape[3]
    tiles, call = padded(call, tiling)
    # A loop of JAX demands that its first state varies over the devices as its last one does.
    floats, rest = split(same_axes(call, call))
    out, lse = _attend(tiles, floats, rest)
    return out[:, :, :, :T], lse[:, :, :, :T]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(tiles: Tiles, floats: Call, rest: Call) -> tuple[Array, Array]:
    return _attend_fwd(tiles, floats, rest)[0]


def _attend_fwd(tiles: Tiles, floats: Call, rest: Call) -> tuple[tuple[Array, Array], Any]:
    call, devices = merge(floats, rest), _devices(floats)
    B, K, G, T, _ = call.rows.q.shape
    empty = jnp.full((B, K, G, T), -jnp.inf, call.compute_dtype)
    start = Results(jnp.zeros((B, K, G, T, call.cols.v.shape[-1]), empty.dtype), jnp.zeros_like(empty), empty)
    if call.sink is not None:
        # A sink is one more block, of one key without value; one of -inf has no weight.
        none = jnp.isneginf(call.sink)
        start = start._replace(top=start.top + jnp.where(none, 0, call.sink))
        start = start._replace(log_total=jnp.where(none, empty, jnp.zeros_like(empty)))

    def one_round(r: Array, at: tuple[Cols, Results]) -> tuple[Cols, Results]:
        following = _send(devices, at[0])
        return following, joined(at[1], forward(tiles, _of_round(call, at[0], r)))

    state = (_sent(devices, call.cols), same_axes(start, call))
    cols, results = jax.lax.fori_loop(0, devices.size - 1, one_round, state)
    results = joined(results, forward(tiles, _of_round(call, cols, devices.size - 1)))
    return (results.out, results.top + results.log_total), (floats, rest, results)


def _attend_bwd(tiles: Tiles, saved: Any, cotangents: tuple[Array, Array]) -> tuple[Call, None]:
    floats, rest, results = saved
    call, devices = merge(floats, rest), _devices(floats)
    zeros = same_axes(zeros_of(dataclasses.replace(floats, sink=None)), call)

    def one_round(r: Array, at: tuple[Cols, Cols, Call]) -> tuple[Cols, Cols, Call]:
        cols, dcols, sums = at
        new = backward(tiles, _of_round(call, cols, r), results, *cotangents)
        add = lambda a, b: a + b
        dcols = jax.tree.map(add, dcols, new.cols)
        sums = jax.tree.map(add, sums, dataclasses.replace(new, cols=None))
        return _send(devices, cols), _send(devices, dcols), sums

    state = (_sent(devices, call.cols), zeros.cols, dataclasses.replace(zeros, cols=None))
    # After P rounds the gradients are back at the device of their keys.
    _, dcols, sums = jax.lax.fori_loop(0, devices.size, one_round, state)
    delta = (cotangents[0] * results.out).sum(-1) - cotangents[1]
    dsink = None if call.sink is None else sink_gradient(call.sink, results, delta)
    return as_types_of(floats, dataclasses.replace(sums, cols=dcols, sink=dsink)), None


_attend.defvjp(_attend_fwd, _attend_bwd)


def _devices(call: Call) -> Ring:
    assert call.ring is not None
    return call.ring


def joined(a: Results, b: Results) -> Results:
    """Returns the results over the union of two disjoint blocks of keys."""
    low = lambda x: jnp.where(jnp.isneginf(x.log_total), -jnp.inf, x.top)
    top = jnp.maximum(low(a), low(b))
    top = jnp.where(jnp.isneginf(top), 0, top)
    of_a, of_b = (jnp.exp(x.top - top + x.log_total) for x in (a, b))
    total = of_a + of_b
    empty = total == 0
    safe = jnp.where(empty, 1, total)
    out = (of_a[..., None] * a.out + of_b[..., None] * b.out) / safe[..., None]
    return Results(out, top, jnp.where(empty, -jnp.inf, jnp.log(safe)))


def _sent(ring: Ring, cols: Cols) -> Cols:
    """The keys as they are sent, without what follows from the number of a device."""
    cols = cols._replace(index=None) if ring.default_index else cols
    cols = cols._replace(pos=()) if ring.default_pos else cols
    return cols._replace(valid=None) if ring.all_valid else cols


def _of_round(call: Call, cols: Cols, r: Array | int) -> Call:
    """The call of a device in round r, with the keys that it then has; a sink is joined apart."""
    ring, own = _devices(call), call.cols
    me = jax.lax.axis_index(ring.name)
    # The keys of device (me - r) mod P are so many tokens further on than one's own.
    away = ((me - r) % ring.size - me) * ring.keys
    cols = cols._replace(index=own.index + away) if ring.default_index else cols
    if ring.default_pos:
        cols = cols._replace(pos=tuple(pos + away.astype(pos.dtype) for pos in own.pos))
    cols = cols._replace(valid=own.valid) if ring.all_valid else cols
    return dataclasses.replace(call, cols=cols, sink=None)


def _send(ring: Ring, tree: PyTree) -> PyTree:
    """Every device's arrays, sent to the next device."""
    pairs = [(d, (d + 1) % ring.size) for d in range(ring.size)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, ring.name, pairs), tree)
