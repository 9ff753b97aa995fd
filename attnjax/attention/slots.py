"""Writing the next tokens into the slots of a cache, in place.

Arrays are [B, C] or [B, K, C, ...]: slots are the second axis of two, and otherwise the third. Tokens take the slots
index, index + 1, ... of C; in a ring they wrap around.
"""

import jax
import jax.numpy as jnp

from attnjax.typing import Array, Int, PyTree


def write(old: PyTree, new: PyTree, index: Int[Array, ""], *, ring: bool) -> PyTree:
    """The arrays `old` with `new` in the slots from `index` on. Where they do not fit, what comes back is of no use.

    On a CPU there is a condition around the update: without it XLA writes twice, once for who reads the slots now and
    once for the next step, each time into a copy of the whole array. On an accelerator a condition would cost time.
    """
    capacity, T = (_slots(jax.tree.leaves(tree)[0]) for tree in (old, new))
    put = _put_around if ring and T > 1 else _put
    # What is behind the end of a sequence is clamped to it: that cache gives nothing but NaN from then on.
    start = index % capacity if ring else index
    update = lambda old, new: jax.tree.map(lambda x, y: put(x, y.astype(x.dtype), start), old, new)
    if jax.default_backend() != "cpu":
        return update(old, new)
    fits = index >= 0 if ring else index <= capacity - T
    return jax.lax.cond(fits, update, lambda old, new: old, old, new)


def _put(old: Array, new: Array, start: Int[Array, ""]) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(old, new, start, _axis(old))


def _put_around(old: Array, new: Array, start: Int[Array, ""]) -> Array:
    slots = (start + jnp.arange(_slots(new), dtype=jnp.int32)) % _slots(old)
    return old.at[(slice(None),) * _axis(old) + (slots,)].set(new)


def _axis(x: Array) -> int:
    return min(x.ndim - 1, 2)


def _slots(x: Array) -> int:
    return x.shape[_axis(x)]
