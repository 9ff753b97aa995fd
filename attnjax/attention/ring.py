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

from attnjax.attention.blockwise import Results, Tiling, backward, forward, padded, sink_gradient
from attnjax.attention.record import Call, Cols
from attnjax.attention.trees import added, as_types_of, merge, same_axes, split, zeros_of
from attnjax.typing import Array, Float, PyTree


def ring(call: Call, tiling: Tiling | None = None) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Returns output and log-sum-exp of every head of the queries of this device, over the keys of all devices."""
    T = call.rows.q.shape[3]
    tiling, call = padded(call, tiling)
    # A loop of JAX demands that its first state varies over the devices as its last one does.
    floats, rest = split(same_axes(call, call))
    out, lse = _attend(tiling, floats, rest)
    return out[:, :, :, :T], lse[:, :, :, :T]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(tiling: Tiling, floats: Call, rest: Call) -> tuple[Array, Array]:
    return _attend_fwd(tiling, floats, rest)[0]


def _attend_fwd(tiling: Tiling, floats: Call, rest: Call) -> tuple[tuple[Array, Array], Any]:
    call = merge(floats, rest)
    B, K, G, T, _ = call.rows.q.shape
    empty = jnp.full((B, K, G, T), -jnp.inf, call.compute_dtype)
    start = Results(jnp.zeros((B, K, G, T, call.cols.v.shape[-1]), empty.dtype), jnp.zeros_like(empty), empty)
    if call.sink is not None:
        # A sink is one more block, of one key without value; one of -inf has no weight.
        none = jnp.isneginf(call.sink)
        start = start._replace(top=start.top + jnp.where(none, 0, call.sink))
        start = start._replace(log_total=jnp.where(none, empty, jnp.zeros_like(empty)))

    def one_round(_: Array, at: tuple[Cols, Results]) -> tuple[Cols, Results]:
        following = _send(call.axis_name, at[0])
        return following, joined(at[1], forward(tiling, _with_keys(call, at[0])))

    state = (call.cols, same_axes(start, call))
    cols, results = jax.lax.fori_loop(0, jax.lax.axis_size(call.axis_name) - 1, one_round, state)
    results = joined(results, forward(tiling, _with_keys(call, cols)))
    return (results.out, results.top + results.log_total), (floats, rest, results)


def _attend_bwd(tiling: Tiling, saved: Any, cotangents: tuple[Array, Array]) -> tuple[Call, None]:
    floats, rest, results = saved
    call = merge(floats, rest)
    zeros = same_axes(zeros_of(dataclasses.replace(floats, sink=None)), call)

    def one_round(_: Array, at: tuple[Cols, Cols, Call]) -> tuple[Cols, Cols, Call]:
        cols, dcols, sums = at
        new = backward(tiling, _with_keys(call, cols), results, *cotangents)
        sums = added(sums, dataclasses.replace(new, cols=None))
        return _send(call.axis_name, cols), _send(call.axis_name, added(dcols, new.cols)), sums

    state = (call.cols, zeros.cols, dataclasses.replace(zeros, cols=None))
    # After P rounds the gradients are back at the device of their keys.
    _, dcols, sums = jax.lax.fori_loop(0, jax.lax.axis_size(call.axis_name), one_round, state)
    delta = (cotangents[0] * results.out).sum(-1) - cotangents[1]
    dsink = None if call.sink is None else sink_gradient(call.sink, results, delta)
    return as_types_of(floats, dataclasses.replace(sums, cols=dcols, sink=dsink)), None


_attend.defvjp(_attend_fwd, _attend_bwd)


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


def _with_keys(call: Call, cols: Cols) -> Call:
    """The call of a device with the keys that it has in a round; a sink is joined apart."""
    return dataclasses.replace(call, cols=cols, sink=None)


def _send(axis_name: str | None, tree: PyTree) -> PyTree:
    """Every device's arrays, sent to the next device."""
    devices = jax.lax.axis_size(axis_name)
    pairs = [(d, (d + 1) % devices) for d in range(devices)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, axis_name, pairs), tree)
