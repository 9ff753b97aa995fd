"""Writing the next tokens into the slots of a cache, in place.

Tokens take the slots index, index + 1, ... of C along the axis that is given for each array. In a ring they wrap around, behind
the slots of the first tokens, which are kept.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.typing import Array, ArrayLike, Int, PyTree


def slots(index: Int[ArrayLike, "*T"], capacity: int, first: int) -> Int[ArrayLike, "*T"]:
    """The slots of tokens in a ring of `capacity` slots, of which the `first` are not part of the round.

    Example:
        >>> import numpy as np
        >>> slots(np.arange(8), 5, 2).tolist()
        [0, 1, 2, 3, 4, 2, 3, 4]
    """
    if not first:
        return index % capacity
    xp = jnp if isinstance(index, jax.Array) else np
    return xp.where(index < first, index, first + (index - first) % (capacity - first))


def indices(count: Int[ArrayLike, ""], slot: Int[ArrayLike, " C"], capacity: int, first: int) -> Int[ArrayLike, " C"]:
    """The index of the last token in each slot of a ring, after `count` of them; below 0 where it is known that there is none.

    Example:
        >>> import numpy as np
        >>> indices(np.int32(8), np.arange(5), 5, 2).tolist()
        [0, 1, 5, 6, 7]
    """
    xp = jnp if isinstance(count, jax.Array) else np
    last = count - 1
    around = last - (last - slot) % (capacity - first)
    return xp.where(slot < first, xp.where(slot <= last, slot, -1), around) if first else around


def write(old: PyTree, new: PyTree, axes: PyTree, index: Int[ArrayLike, ""], *, ring: int | None) -> PyTree:
    """The arrays `old` with `new` in the slots from `index` on, which run along `axes`; `ring`: how many tokens at the start a
    ring keeps, None where there is no ring.

    Where they do not fit, what comes back is of no use. On a CPU there is a condition around the update: without it XLA
    writes twice, once for who reads the slots now and once for the next step, each time into a copy of the whole array. On
    an accelerator a condition would cost time.
    """
    first = [jax.tree.leaves(tree)[0] for tree in (old, new, axes)]
    capacity, T = (x.shape[first[2]] for x in first[:2])
    around = ring is not None and T > 1
    put = functools.partial(_put_around, first=ring) if around else jax.lax.dynamic_update_slice_in_dim
    # What is behind the end of a sequence is clamped to it: that cache gives nothing but NaN from then on.
    start = jnp.asarray(index if ring is None or around else slots(index, capacity, ring))
    update = lambda old, new, start: jax.tree.map(
        lambda x, y, axis: put(x, y.astype(x.dtype), start, axis), old, new, axes
    )
    if not isinstance(index, jax.Array):
        return update(old, new, start)
    fits = index <= capacity - T if ring is None else index >= 0
    on_condition = lambda *arrays: jax.lax.cond(fits, update, lambda old, new, start: old, *arrays)
    return jax.lax.platform_dependent(old, new, start, cpu=on_condition, default=update)


def _put_around(old: Array, new: Array, index: Int[Array, ""], axis: int, *, first: int) -> Array:
    places = slots(index + jnp.arange(new.shape[axis], dtype=jnp.int32), old.shape[axis], first)
    return old.at[(slice(None),) * axis + (places,)].set(new)
