"""Ring attention: the tokens are spread over an axis of a mesh, and blocks of keys go from device to device.

In round r = 0 .. P - 1 device d has the keys of device (d - r) mod P beside its own queries; tiles give a result for them,
and results are joined by their log-sum-exp. Backward the keys go around once more, with their gradients. Keys are sent before
the products that hide the transfer. No device holds all keys.

References: Liu et al. 2023 (arXiv:2310.01889), algorithm 1; Brandon et al. 2023 (arXiv:2311.09431), which stripes the tokens;
the zigzag order of `attnjax.indices.zigzag` is that of Llama 3 (arXiv:2407.21783, section 3.3.2).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.blockwise import Arrays, Results, Static, Tiling, backward, forward, padded, sink_gradient
from attnjax.attention.call import Call, Cols, Ring
from attnjax.attention.masks import Mask
from attnjax.attention.trees import as_types_of, merge, same_axes, split, zeros_of
from attnjax.typing import Array, ArrayLike, Float, Int, PyTree


def ring_of(axis_name: Any, mask: Mask, S: int, *, default_pos: bool) -> Ring:
    """Returns the axis of the mesh over which S keys per device are spread. Raises ValueError for calls that cannot be."""
    if not isinstance(axis_name, str):
        raise ValueError(f"axis_name must be the name of one axis of a mesh, got {axis_name!r}")
    if mask.allowed is not None:
        raise ValueError("mask.allowed is a table of all queries and keys, which no device holds with axis_name")
    if mask.k_segments is not None and default_pos:
        raise ValueError("positions restart at each document, which may begin on another device: pass q_pos and k_pos")
    try:
        size = jax.lax.axis_size(axis_name)
    except NameError:
        raise ValueError(
            f"axis_name={axis_name!r} is no axis of a mesh here: call attend inside jax.shard_map over that axis"
        ) from None
    default_index = mask.k_index is None
    return Ring(axis_name, size, S, default_index, default_pos and default_index, mask.k_valid is None)


def indices_of_device(axis_name: str | None, n: int) -> Int[ArrayLike, " n"]:
    """Returns the indices of the n tokens of this device, where devices hold n tokens each; NumPy on one device.

    Example:
        >>> indices_of_device(None, 3).tolist()
        [0, 1, 2]
    """
    own = np.arange(n, dtype=np.int32)
    return own if axis_name is None else jax.lax.axis_index(axis_name) * n + jnp.asarray(own)


def ring(call: Call, tiling: Tiling | None = None) -> tuple[Float[Array, "B K G T H"], Float[Array, "B K G T"]]:
    """Returns output and log-sum-exp of every head of the queries of this device, over the keys of all devices."""
    assert call.ring is not None
    static, arrays = padded(call, tiling)
    # A loop of JAX demands that its first state varies over the devices as its last one does.
    floats, rest = split(same_axes(arrays, arrays))
    out, lse = _attend((static, call.ring), floats, rest)
    T = call.rows.q.shape[3]
    return out[:, :, :, :T], lse[:, :, :, :T]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: tuple[Static, Ring], floats: Arrays, rest: Arrays) -> tuple[Array, Array]:
    return _attend_fwd(how, floats, rest)[0]


def _attend_fwd(how: tuple[Static, Ring], floats: Arrays, rest: Arrays) -> tuple[tuple[Array, Array], Any]:
    (static, ring), arrays = how, merge(floats, rest)
    B, K, G, T, _ = arrays.rows.q.shape
    found = functools.partial(_of_round, ring, arrays)
    empty = jnp.full((B, K, G, T), -jnp.inf, arrays.scale.dtype)
    start = Results(jnp.zeros((B, K, G, T, arrays.cols.v.shape[-1]), empty.dtype), jnp.zeros_like(empty), empty)
    if arrays.sink is not None:
        # A sink is one more block, of one key without value; one of -inf has no weight.
        none = jnp.isneginf(arrays.sink)
        start = start._replace(top=start.top + jnp.where(none, 0, arrays.sink))
        start = start._replace(log_total=jnp.where(none, empty, jnp.zeros_like(empty)))

    def one_round(r: Array, at: tuple[Cols, Results]) -> tuple[Cols, Results]:
        following = _send(ring, at[0])
        return following, joined(at[1], forward(static, found(at[0], r)))

    cols, results = jax.lax.fori_loop(0, ring.size - 1, one_round, (_sent(ring, arrays.cols), same_axes(start, arrays)))
    results = joined(results, forward(static, found(cols, ring.size - 1)))
    return (results.out, results.top + results.log_total), (floats, rest, results)


def _attend_bwd(how: tuple[Static, Ring], saved: Any, cotangents: tuple[Array, Array]) -> tuple[Arrays, None]:
    (static, ring), (floats, rest, results) = how, saved
    arrays = merge(floats, rest)
    zeros = same_axes(zeros_of(floats._replace(sink=None)), arrays)

    def one_round(r: Array, at: tuple[Cols, Cols, Arrays]) -> tuple[Cols, Cols, Arrays]:
        cols, dcols, sums = at
        new = backward(static, _of_round(ring, arrays, cols, r), results, *cotangents)
        add = lambda a, b: a + b
        dcols = jax.tree.map(add, dcols, new.cols)
        sums = jax.tree.map(add, sums, new._replace(cols=None))
        return _send(ring, cols), _send(ring, dcols), sums

    state = (_sent(ring, arrays.cols), zeros.cols, zeros._replace(cols=None))
    # After P rounds the gradients are back at the device of their keys.
    _, dcols, sums = jax.lax.fori_loop(0, ring.size, one_round, state)
    delta = (cotangents[0] * results.out).sum(-1) - cotangents[1]
    dsink = None if arrays.sink is None else sink_gradient(arrays.sink, results, delta)
    return as_types_of(floats, sums._replace(cols=dcols, sink=dsink)), None


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


def _sent(ring: Ring, cols: Cols) -> Cols:
    """The keys as they are sent, without what follows from the number of a device."""
    cols = cols._replace(index=None) if ring.default_index else cols
    cols = cols._replace(pos=()) if ring.default_pos else cols
    return cols._replace(valid=None) if ring.all_valid else cols


def _of_round(ring: Ring, arrays: Arrays, cols: Cols, r: Array | int) -> Arrays:
    """The arrays of a device in round r, with the keys that it then has; a sink is joined apart."""
    me, own = jax.lax.axis_index(ring.name), arrays.cols
    # The keys of device (me - r) mod P are so many tokens further on than one's own.
    away = ((me - r) % ring.size - me) * ring.keys
    cols = cols._replace(index=own.index + away) if ring.default_index else cols
    if ring.default_pos:
        cols = cols._replace(pos=tuple(pos + away.astype(pos.dtype) for pos in own.pos))
    cols = cols._replace(valid=own.valid) if ring.all_valid else cols
    return arrays._replace(cols=cols, sink=None)


def _send(ring: Ring, tree: PyTree) -> PyTree:
    """Every device's arrays, sent to the next device."""
    pairs = [(d, (d + 1) % ring.size) for d in range(ring.size)]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, ring.name, pairs), tree)
