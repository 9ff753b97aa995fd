"""Training on several devices: members of a population, examples of a batch, tokens of an example, each device its own.

A step runs inside `jax.shard_map`, so that each device does what one device alone would do, on its members and its part of the
batch; losses and gradients are summed over the parts by one all-reduce a step. Where tokens are spread, the keys of attention
travel in a ring (`attention/ring.py`). Every device draws the whole batch, which is a function of (seed, step), and takes its
part, so that runs see the same examples on every mesh.

A causal model has its tokens in zigzag order: of 2 P chunks device d holds chunk d and chunk 2 P - 1 - d, as in
`attnjax.indices.zigzag`, and so sees as many keys as every other device. In contiguous blocks the last device would have P
blocks of keys to compute, and the others would wait for it.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config import RunConfig
from attnjax.config.mesh import MeshShape
from attnjax.positions import PositionEncoding
from attnjax.tasks.forms import SequencePair, Sequences
from attnjax.typing import Array, Int, Num, PyTree

MEMBERS, ROWS, TOKENS = MeshShape._fields
P = jax.sharding.PartitionSpec


def make_mesh(shape: MeshShape) -> jax.sharding.Mesh | None:
    """Return the mesh over the first devices of this process; None for one device.

    Of several processes (`jax.distributed`) each gives as many of its devices, side by side, so that the last axes of the
    mesh stay inside a process where they can. Raises ValueError where there are too few devices, or one process would have
    more of them than another.

    Example:
        >>> make_mesh(MeshShape()) is None
        True
    """
    count, processes = shape.devices, jax.process_count()
    if count % processes:
        raise ValueError(f"the mesh {str(shape) or 'of one device'} cannot be shared equally by {processes} processes")
    if count == 1:
        return None
    own = [[one for one in jax.devices() if one.process_index == i] for i in range(processes)]
    fewest, share = min(map(len, own)), count // processes
    if fewest < share:
        told = "" if processes == 1 else f" in each of {processes} processes"
        raise ValueError(f"the mesh {shape} needs {share} devices{told}, and there are {fewest}")
    kinds = (jax.sharding.AxisType.Auto,) * len(shape)
    used = np.array([devices[:share] for devices in own])
    return jax.sharding.Mesh(used.reshape(shape), shape._fields, axis_types=kinds)


def platform_of(mesh: jax.sharding.Mesh | None) -> str:
    """Return the platform of the devices of a mesh; without one, of the device on which JAX puts arrays.

    Example:
        >>> platform_of(None) == jax.devices()[0].platform
        True
    """
    if mesh is not None:
        return mesh.devices.flat[0].platform
    with jax.ensure_compile_time_eval():  # also while something is traced
        return jax.device_put(np.int32(0)).device.platform


def compiler_options(platform: str, level: int = 1) -> dict[str, int] | None:
    """Return the compiler options of a level on a CPU: 0 for a program that runs once, 1 for one that runs often.

    On accelerators the level means something else, and where a user has chosen less optimisation that choice stands. On a CPU
    compiling takes most of a small run's time, and its last passes save nothing. On two cores (2 layers, D = 64, 2,048 tokens
    a step, 3 runs together) level 1 compiles in 8 to 10 s, the default (level 3) in 11 to 15 s, at the same time per step;
    level 0 needs 3.5 times as long per step.
    """
    if platform != "cpu" or jax.config.values["jax_disable_most_optimizations"]:
        return None
    return {"xla_backend_optimization_level": level}


def check_mesh(shape: MeshShape, run: RunConfig) -> None:
    """Raise ValueError where this process has too few devices, or the run cannot be spread over the mesh.

    Example:
        >>> check_mesh(MeshShape(data=1), RunConfig())
    """
    make_mesh(shape)
    check_batches(shape, run)


def check_batches(shape: MeshShape, run: RunConfig) -> None:
    """Raise ValueError where the batches of a run cannot be spread over the mesh."""
    if run.train.batch % shape.data:
        raise ValueError(f"train.batch={run.train.batch} is no multiple of the {shape.data} devices along data")
    if run.evaluate.batch % shape.data:
        raise ValueError(f"evaluate.batch={run.evaluate.batch} is no multiple of the {shape.data} devices along data")
    if run.model.drops and shape.data * shape.sequence > 1:
        raise ValueError(
            "dropout draws for a whole batch: with a dropout rate above 0 the mesh may have the axis population only"
        )
    if run.task.form == "encoder_decoder" and shape.sequence > 1:
        raise ValueError(
            "an encoder-decoder has two sequences: with task.form='encoder_decoder' the mesh may have no axis sequence"
        )


def padded(members: int, mesh: jax.sharding.Mesh | None) -> int:
    """Return how many members train: a multiple of the devices along the population."""
    devices = 1 if mesh is None else mesh.shape[MEMBERS]
    return -(-members // devices) * devices


def rows_of_device(batch: Sequences | SequencePair, mesh: jax.sharding.Mesh | None) -> Sequences | SequencePair:
    """Return the examples of a batch that this device computes; call it inside `over_devices`."""
    devices = 1 if mesh is None else mesh.shape[ROWS]
    if devices == 1:
        return batch

    def take(leaf: Array) -> Array:
        """Return the examples of this device."""
        axis = max(leaf.ndim - 2, 0)  # examples are axis 0 of [B, T] and [B], and axis 1 of positions [L, B, T]
        chex.assert_is_divisible(leaf.shape[axis], devices)
        size = leaf.shape[axis] // devices
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(ROWS) * size, size, axis)

    return jax.tree.map(take, batch)


def entries_of_all(x: Num[Array, "b *_"], mesh: jax.sharding.Mesh | None) -> Num[Array, "B *_"]:
    """Return what each device computed of its examples, one after the other on every device; call it inside `over_devices`."""
    devices = 1 if mesh is None else mesh.shape[ROWS]
    if devices == 1:
        return x
    whole = jnp.zeros((devices * x.shape[0], *x.shape[1:]), x.dtype)
    return jax.lax.psum(jax.lax.dynamic_update_slice_in_dim(whole, x, jax.lax.axis_index(ROWS) * x.shape[0], 0), ROWS)


def axis_of_tokens(mesh: jax.sharding.Mesh | None) -> str | None:
    """Return the name of the axis over which tokens are spread, for `attend`; None where they are not."""
    return None if mesh is None or mesh.shape[TOKENS] == 1 else TOKENS


def is_zigzag(form: str, encodings: Iterable[PositionEncoding], mesh: jax.sharding.Mesh | None) -> bool:
    """Return whether a model has its tokens in zigzag order: where they are spread, the model is causal, and no encoding
    needs blocks that follow each other, because it computes positions from the tokens before.

    Example:
        >>> is_zigzag("decoder", (), None)
        False
    """
    in_order = any(encoding.has("context") for encoding in encodings)
    return axis_of_tokens(mesh) is not None and form == "decoder" and not in_order


def tokens_of_device(batch: Sequences | SequencePair, mesh: jax.sharding.Mesh | None, *, zigzag: bool) -> Any:
    """Return the tokens of each example that this device computes.

    Examples are padded to a multiple of the devices, in `zigzag` order to a multiple of twice as many.
    """
    if mesh is None or axis_of_tokens(mesh) is None:
        return batch
    devices = mesh.shape[TOKENS]
    parts = 2 * devices if zigzag else devices

    def take(leaf: Array) -> Array:
        """Return the tokens of this device; a leaf without an axis of tokens is whole on each."""
        if leaf.ndim < 2:
            return leaf
        # Padding is no target and not valid; positions repeat the last, which may not leave the range that they are drawn from.
        more = [(0, 0)] * (leaf.ndim - 1) + [(0, -leaf.shape[-1] % parts)]
        whole = jnp.pad(leaf, more, mode="constant" if leaf.dtype == bool else "edge")
        size, starts = _chunks(whole.shape[-1] // devices, mesh, zigzag=zigzag)
        own = [jax.lax.dynamic_slice_in_dim(whole, start, size, whole.ndim - 1) for start in starts]
        return jnp.concatenate(own, axis=-1)

    return jax.tree.map(take, batch)


def indices_of_tokens(tokens: int, mesh: jax.sharding.Mesh | None, *, zigzag: bool) -> Int[Array, " t"] | None:
    """Return the index in its example of each of the tokens of this device; None where it follows from the device's number."""
    if mesh is None or not zigzag:
        return None
    size, starts = _chunks(tokens, mesh, zigzag=zigzag)
    return jnp.concatenate([start + jnp.arange(size, dtype=jnp.int32) for start in starts])


def tokens_of_all(
    x: Num[Array, "B t"], size: int, mesh: jax.sharding.Mesh | None, *, zigzag: bool
) -> Num[Array, "B T"]:
    """Return what each device computed of its tokens, in the order of the example on every device, without the padding."""
    if mesh is None or axis_of_tokens(mesh) is None:
        return x
    whole = jnp.zeros((x.shape[0], x.shape[1] * mesh.shape[TOKENS]), x.dtype)
    chunk, starts = _chunks(x.shape[1], mesh, zigzag=zigzag)
    for i, start in enumerate(starts):
        whole = jax.lax.dynamic_update_slice_in_dim(whole, x[:, i * chunk : (i + 1) * chunk], start, 1)
    return jax.lax.psum(whole, TOKENS)[:, :size]


def _chunks(tokens: int, mesh: jax.sharding.Mesh, *, zigzag: bool) -> tuple[int, list[Array]]:
    """Return the size of the chunks of an example that make up the `tokens` of this device, and where they start."""
    device = jax.lax.axis_index(TOKENS)
    if not zigzag:
        return tokens, [device * tokens]
    chunk = tokens // 2
    return chunk, [device * chunk, (2 * mesh.shape[TOKENS] - 1 - device) * chunk]


def sum_over_batch(tree: PyTree, mesh: jax.sharding.Mesh | None) -> PyTree:
    """Return the sums over the devices that share a batch."""
    spread = _shared_axes(mesh)
    return jax.lax.psum(tree, spread) if spread else tree


def varying_over_batch(tree: PyTree, mesh: jax.sharding.Mesh | None) -> PyTree:
    """Return the same numbers, as numbers that may differ between the devices that share a batch: their gradient is summed
    over these devices here, in the type of the numbers, and not in that of 16 bits which a product casts them to.
    """
    spread = _shared_axes(mesh)
    vary = functools.partial(jax.lax.pcast, axis_name=spread, to="varying")
    return jax.tree.map(vary, tree) if spread else tree


def _shared_axes(mesh: jax.sharding.Mesh | None) -> tuple[str, ...]:
    """Return the axes whose devices share a batch."""
    return tuple(axis for axis in (ROWS, TOKENS) if mesh is not None and mesh.shape[axis] > 1)


def varying_over_members(tree: PyTree, mesh: jax.sharding.Mesh | None) -> PyTree:
    """Return the same numbers, as numbers that may differ between the members."""
    vary = functools.partial(jax.lax.pcast, axis_name=(MEMBERS,), to="varying")
    return tree if mesh is None else jax.tree.map(vary, tree)


def over_devices(
    function: Callable[..., Any],
    mesh: jax.sharding.Mesh | None,
    arguments: tuple[bool, ...],
    results: tuple[int, ...] | int,
) -> Callable[..., Any]:
    """Return the function as each device computes it on its members.

    Args:
      function: of trees, some of whose leaves lead with the axis of members.
      mesh: the devices; None for one.
      arguments: for each argument, whether its leaves lead with the members; others are whole on every device.
      results: which axis of the leaves of the result, or of each one of several, runs over the members.
    """
    if mesh is None:
        return function
    spec = lambda axis: P(*(None,) * axis, MEMBERS)
    in_specs = tuple(P(MEMBERS) if leads else P() for leads in arguments)
    out_specs = spec(results) if isinstance(results, int) else tuple(map(spec, results))
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def place(tree: PyTree, mesh: jax.sharding.Mesh | None) -> PyTree:
    """Return leaves [P, ...] of a population, each member on its own devices."""
    return tree if mesh is None else jax.device_put(tree, jax.sharding.NamedSharding(mesh, P(MEMBERS)))


def on_host(tree: PyTree, mesh: jax.sharding.Mesh | None) -> PyTree:
    """Return the leaves as arrays of NumPy, whole in every process that has devices of the mesh; all of them must call it.

    Example:
        >>> on_host(jnp.arange(3), None)
        array([0, 1, 2], dtype=int32)
    """
    if mesh is not None and mesh.is_multi_process:
        whole = jax.sharding.NamedSharding(mesh, P())
        # One after another, so that no device holds more than one leaf of all members.
        return jax.tree.map(lambda leaf: jax.device_get(jax.device_put(leaf, whole)), tree)
    return jax.device_get(tree)
