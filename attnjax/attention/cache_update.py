"""Writing the next tokens into the slots of a cache, in place.

Tokens take the slots index, index + 1, ... of C along the axis that is given for each array. In a ring they wrap around.
"""

import jax
import jax.numpy as jnp

from attnjax.typing import Array, ArrayLike, Int, PyTree


def indices(count: Int[ArrayLike, ""], slot: Int[ArrayLike, " C"], capacity: int) -> Int[ArrayLike, " C"]:
    """The index of the last token in each slot of a ring, after `count` of them; below 0 where it is known that there is none.

    Example:
        >>> import numpy as np
        >>> indices(np.int32(8), np.arange(5), 5).tolist()
        [5, 6, 7, 3, 4]
    """
    last = count - 1
    return last - (last - slot) % capacity


def write(old: PyTree, new: PyTree, axes: PyTree, index: Int[ArrayLike, ""], *, ring: bool) -> PyTree:
    """The arrays `old` with `new` in the slots from `index` on, which run along `axes`; `ring`: whether they wrap
    around.

    Where they do not fit, what comes back is of no use. On a CPU there is a condition around the update: without it XLA
    writes twice, once for who reads the slots now and once for the next step, each time into a copy of the whole array. On
    an accelerator a condition would cost time.
    """
    first = [jax.tree.leaves(tree)[0] for tree in (old, new, axes)]
    capacity, T = (x.shape[first[2]] for x in first[:2])
    around = ring and T > 1
    put = _put_around if around else jax.lax.dynamic_update_slice_in_dim
    # What is behind the end of a sequence is clamped to it: that cache gives nothing but NaN from then on.
    start = jnp.asarray(index % capacity if ring and not around else index)
    update = lambda old, new, start: jax.tree.map(
        lambda x, y, axis: put(x, y.astype(x.dtype), start, axis), old, new, axes
    )
    if not isinstance(index, jax.Array):
        return update(old, new, start)
    fits = index >= 0 if ring else index <= capacity - T
    on_condition = lambda *arrays: jax.lax.cond(fits, update, lambda old, new, start: old, *arrays)
    return jax.lax.platform_dependent(old, new, start, cpu=on_condition, default=update)


def _put_around(old: Array, new: Array, index: Int[Array, ""], axis: int) -> Array:
    places = (index + jnp.arange(new.shape[axis], dtype=jnp.int32)) % old.shape[axis]
    return old.at[(slice(None),) * axis + (places,)].set(new)
