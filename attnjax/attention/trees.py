"""Trees of the arrays of a call, and of their gradients, in which floating leaves are told from the others."""

import jax
import jax.numpy as jnp

from attnjax.typing import PyTree, compute_dtype


def zeros_of(tree: PyTree) -> PyTree:
    """Returns zeros to sum the gradients of floating leaves in, in float32 or float64."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, compute_dtype(x)), split(tree)[0])


def as_types_of(tree: PyTree, gradients: PyTree) -> PyTree:
    """Returns the gradients in the types of the leaves that they belong to."""
    return jax.tree.map(lambda x, gradient: gradient.astype(x.dtype), tree, gradients)


def split(tree: PyTree) -> tuple[PyTree, PyTree]:
    """Returns the tree with its floating leaves alone, and with the others alone; the rest are None."""
    floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: x if floating(x) else None, tree), jax.tree.map(
        lambda x: None if floating(x) else x, tree
    )


def merge(floats: PyTree, rest: PyTree) -> PyTree:
    """Returns the tree of which `split` made these."""
    return jax.tree.map(lambda a, b: b if a is None else a, floats, rest, is_leaf=lambda x: x is None)


def same_axes(tree: PyTree, like: PyTree) -> PyTree:
    """Returns `tree` plus a zero made from every leaf of `like`.

    Inside `jax.shard_map` it then varies over all mesh axes that `like` varies over, as loops demand of what they begin with;
    the transpose sums over devices. Elsewhere XLA drops the addition of a constant 0.
    """
    firsts = [leaf[(0,) * leaf.ndim] for leaf in jax.tree.leaves(like)]
    zero = sum((jnp.zeros_like(first, jnp.float32) for first in firsts), jnp.float32(0))
    return jax.tree.map(lambda leaf: leaf + zero.astype(leaf.dtype), tree)


def added(total: PyTree, part: PyTree) -> PyTree:
    """Returns the sums of the leaves, in the types of `total`."""
    return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, part)
