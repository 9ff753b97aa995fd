"""How large a tile is, how many heads are taken at once, and mapping over the rest of them one group after another.

On a CPU a group is taken so small that the scores of one tile stay in the cache of a core; on an accelerator all heads
go at once, since what is not in one tile product leaves the device idle. `Tiling` overrides both.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.typing import Array, PyTree

LONG = 1024
"""From this length on, tiles are larger."""
BATCHES_SPREAD = jax.__version_info__ >= (0, 12)
"""Whether XLA's products of a batch of small matrices use all cores of a CPU. Before jax 0.12 they used one, and only
matrices of some 512 rows were spread: there large tiles of few heads are the faster ones, from `LONG` on."""
SCORES_OF_GROUP = 2**20
"""Scores of one tile of one group, in numbers, on a CPU: 4 MiB of float32, which stay in the cache."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """Tiles of `queries` x `keys`, of `heads` key heads (of one or more examples) at once; None: all of them.

    An implementation to pass to `attend`: "chunked" with these sizes. Raises ValueError for sizes below 1.

    Example:
        >>> import jax.numpy as jnp
        >>> from attnjax import Tiling, attend
        >>> x = jnp.ones((1, 5, 2, 4))
        >>> attend(x, x, x, implementation=Tiling(queries=2, keys=3)).shape
        (1, 5, 2, 4)
    """

    queries: int = 128
    keys: int = 128
    heads: int | None = None

    def __post_init__(self) -> None:
        for name, size in (("queries", self.queries), ("keys", self.keys), ("heads", self.heads)):
            whole = isinstance(size, int) and not isinstance(size, bool)
            if not (whole and size >= 1) and not (name == "heads" and size is None):
                raise ValueError(f"Tiling: {name} must be a whole number of at least 1, got {size!r}")


def default_block_sizes(T: int, S: int, group: int, *, general: bool = False) -> Tiling:
    """The sizes measured to be fast on a CPU; `heads` counts there alone.

    `group`: query heads per key head; `general`: the encoding has a score of its own, which may hold many numbers for each
    score (FIRE: one per hidden unit).
    """
    if max(T, S) < LONG:
        return Tiling(64, 64)
    side = 128 if BATCHES_SPREAD else 256 if general else 512
    t, s = min(side, T), min(side, S)
    return Tiling(t, s, max(1, SCORES_OF_GROUP // (t * s * group)))


def over_groups(
    f: Callable[[PyTree], Any],
    inputs: PyTree,
    axes: list[PyTree],
    results: list[PyTree],
    sizes: tuple[int, int],
    at_once: int,
) -> Any:
    """f on groups of at most `at_once` (example, key head) pairs, one after another; results are put together again.

    `axes` says, for each leaf of `inputs`, which axis runs over examples and which over key heads (-1: every group needs
    the whole leaf); `results` the same for what f returns, where -1 means a sum over groups. `sizes` is (B, K). Examples
    are grouped first, because they share what depends on the head alone. Where a mesh is in use each of its devices takes
    so many, since examples may be spread over them: a loop over a spread axis would gather it.
    """
    B, K = sizes
    devices = devices_of(inputs)
    at_once *= devices
    examples = _divisor(B, at_once)
    key_heads = _divisor(K, at_once // examples)
    inner = lambda inputs: _mapped(f, inputs, axes[1], results[1], K // key_heads)
    return _mapped(inner, inputs, axes[0], results[0], B // examples, strided=devices > 1)


def over_devices(f: Callable[[PyTree], Any], inputs: PyTree, axes: PyTree, results: PyTree, devices: int) -> Any:
    """f on the examples of each device apart, all at once: what f sums over examples, in a loop or not, each device sums over
    its own, and one sum over devices follows. `axes` and `results` are those of examples, as for `over_groups`.
    """
    pairs = zip(jax.tree.leaves(inputs), jax.tree.leaves(axes), strict=True)
    examples = max((leaf.shape[axis] for leaf, axis in pairs if axis >= 0), default=1)
    return _mapped(f, inputs, axes, results, math.gcd(examples, devices), at_once=True)


def devices_of(arrays: PyTree) -> int:
    """Devices over which the compiler may spread an axis of these arrays: those of the mesh in use, or of the mesh that the
    arrays lie on; 1 without one, and inside `jax.shard_map`.
    """
    meshes = [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(arrays)]
    return max(_size(mesh) for mesh in (jax.sharding.get_abstract_mesh(), *meshes))


def _size(mesh: Any) -> int:
    manual = jax.sharding.AxisType.Manual
    return math.prod(size for size, kind in zip(mesh.axis_sizes, mesh.axis_types, strict=True) if kind != manual)


def _divisor(n: int, limit: int) -> int:
    """The largest divisor of n that is at most `limit`, and at least 1."""
    return next(size for size in range(max(1, min(n, limit)), 0, -1) if n % size == 0)


def _mapped(
    f: Callable[[PyTree], Any],
    inputs: PyTree,
    axes: PyTree,
    results: PyTree,
    groups: int,
    *,
    strided: bool = False,
    at_once: bool = False,
) -> Any:
    """`strided`: group g takes every entry g, g + groups, ..., so that each group has entries of every device. `at_once`: all
    groups together, as one more axis of every array.
    """
    if groups == 1:
        return f(inputs)
    leaves, structure = jax.tree.flatten(inputs)
    at = jax.tree.leaves(axes)
    split = [_split(leaf, axis, groups, strided) for leaf, axis in zip(leaves, at, strict=True) if axis >= 0]

    def one(parts: list[Array]) -> Any:
        rest = iter(parts)
        merged = [leaf if axis < 0 else next(rest) for leaf, axis in zip(leaves, at, strict=True)]
        return f(jax.tree.unflatten(structure, merged))

    found = jax.vmap(one)(split) if at_once else jax.lax.map(one, split)
    return jax.tree.map(lambda x, axis: x.sum(0) if axis < 0 else _join(x, axis, strided), found, results)


def _split(x: Array, axis: int, groups: int, strided: bool) -> Array:
    """Axis of n entries -> a leading axis of groups, with n / groups entries left in place."""
    parts = (x.shape[axis] // groups, groups) if strided else (groups, x.shape[axis] // groups)
    x = jnp.reshape(x, (*x.shape[:axis], *parts, *x.shape[axis + 1 :]))
    return jnp.moveaxis(x, axis + strided, 0)


def _join(x: Array, axis: int, strided: bool) -> Array:
    """The inverse of `_split`."""
    x = jnp.moveaxis(x, 0, axis + strided)
    return jnp.reshape(x, (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))
