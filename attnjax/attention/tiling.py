"""How large a tile is, how many heads are taken at once, and mapping over the rest of them one group after another.

On a CPU a group is taken so small that the scores of one tile stay in the cache of a core; on an accelerator all heads
go at once, since what is not in one tile product leaves the device idle. `Tiling` overrides both.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attnjax.typing import Array, PyTree

CPU_LONG = 1024
"""From this length on, a CPU takes larger tiles."""
BATCHES_SPREAD = jax.__version_info__ >= (0, 12)
"""Whether XLA's products of a batch of small matrices use all cores of a CPU. Before jax 0.12 they used one, and only
matrices of some 512 rows were spread: there large tiles of few heads are the faster ones, from `CPU_LONG` on."""
CPU_SCORES = 2**20
"""Scores of one tile of one group, in numbers, on a CPU: 4 MiB of float32, which stay in the cache."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """Tiles of `queries` x `keys`, of `heads` key heads (of one or more examples) at once; None: all of them.

    An implementation to pass to `attend`: "chunked" with these sizes. Raises ValueError for sizes below 1.
    """

    queries: int = 128
    keys: int = 128
    heads: int | None = None

    def __post_init__(self) -> None:
        for name, size in dataclasses.asdict(self).items():
            whole = isinstance(size, int) and not isinstance(size, bool)
            if not (whole and size >= 1) and not (name == "heads" and size is None):
                raise ValueError(f"Tiling: {name} must be a whole number of at least 1, got {size!r}")


def usual(T: int, S: int, group: int, *, general: bool = False) -> Tiling:
    """The sizes measured to be fast on this kind of device. `group`: query heads per key head; `general`: the encoding has
    a score of its own, which may hold many numbers for each score (FIRE: one per hidden unit).
    """
    if jax.default_backend() != "cpu":
        return Tiling(128, 128)
    if max(T, S) < CPU_LONG:
        return Tiling(64, 64)
    side = 128 if BATCHES_SPREAD else 256 if general else 512
    t, s = min(side, T), min(side, S)
    return Tiling(t, s, max(1, CPU_SCORES // (t * s * group)))


def over_groups(
    f: Callable[[PyTree], Any],
    inputs: PyTree,
    batch: PyTree,
    heads: PyTree,
    sizes: tuple[int, int],
    at_once: int | None,
) -> Any:
    """f on groups of at most `at_once` (example, key head) pairs, one after another; results are put together again.

    `batch` and `heads` say, for each leaf of `inputs`, which axis runs over examples and key heads (-1: every group needs
    the whole leaf); results have them as axes 0 and 1. `sizes` is (B, K). Examples are grouped first, because they share
    what depends on the head alone.
    """
    B, K = sizes
    examples = _divisor(B, at_once or B)
    key_heads = _divisor(K, (at_once or B * K) // examples)
    inner = lambda inputs: _mapped(f, inputs, heads, K // key_heads, 1)
    return _mapped(inner, inputs, batch, B // examples, 0)


def _divisor(n: int, limit: int) -> int:
    """The largest divisor of n that is at most `limit`, and at least 1."""
    return next(size for size in range(max(1, min(n, limit)), 0, -1) if n % size == 0)


def _mapped(f: Callable[[PyTree], Any], inputs: PyTree, axes: PyTree, groups: int, joined: int) -> Any:
    if groups == 1:
        return f(inputs)
    leaves, structure = jax.tree.flatten(inputs)
    at = jax.tree.leaves(axes)
    split = [_split(leaf, axis, groups) for leaf, axis in zip(leaves, at, strict=True) if axis >= 0]

    def one(parts: list[Array]) -> Any:
        rest = iter(parts)
        merged = [leaf if axis < 0 else next(rest) for leaf, axis in zip(leaves, at, strict=True)]
        return f(jax.tree.unflatten(structure, merged))

    return jax.tree.map(lambda x: _join(x, joined), jax.lax.map(one, split))


def _split(x: Array, axis: int, groups: int) -> Array:
    """Axis of n entries -> a leading axis of groups, with n / groups entries left in place."""
    x = jnp.reshape(x, (*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :]))
    return jnp.moveaxis(x, axis, 0)


def _join(x: Array, axis: int) -> Array:
    """The inverse of `_split`."""
    x = jnp.moveaxis(x, 0, axis)
    return jnp.reshape(x, (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))
