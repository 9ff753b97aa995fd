"""A sequence that is spread over an axis of a mesh, see `ring.py`: what each device knows, and what cannot be spread."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.attention.masks import Mask
from attnjax.positions.base import PositionEncoding, Trait
from attnjax.typing import ArrayLike, Int


class SequenceAxis(NamedTuple):
    """An axis of a mesh over which a sequence is spread: its name, its size P, and how many keys each device holds.

    `default_index`, `default_pos`, `all_valid`: indices of the keys follow from the number of a device, their positions do,
    and every key is valid; such arrays need not travel.
    """

    name: str
    size: int
    keys: int
    default_index: bool
    default_pos: bool
    all_valid: bool


def indices_of_device(axis_name: str | None, n: int) -> Int[ArrayLike, " n"]:
    """The indices of the n tokens of this device, where devices hold n tokens each, in their order; NumPy on one device."""
    own = np.arange(n, dtype=np.int32)
    return own if axis_name is None else jax.lax.axis_index(axis_name) * n + jnp.asarray(own)


def sequence_axis(
    axis_name: Any, encoding: PositionEncoding, mask: Mask, S: int, *, default_pos: bool, drops: bool
) -> SequenceAxis:
    """The axis of the mesh. Raises ValueError for what cannot be spread over it."""
    if not isinstance(axis_name, str):
        raise ValueError(f"axis_name must be the name of one axis of a mesh, got {axis_name!r}")
    try:
        size = jax.lax.axis_size(axis_name)
    except NameError:
        raise ValueError(
            f"axis_name={axis_name!r} is no axis of a mesh here: call attend inside jax.shard_map over that axis"
        ) from None
    if mask.allowed is not None:
        raise ValueError("mask.allowed is a table of all queries and keys, which no device holds with axis_name")
    if drops:
        raise ValueError("attention dropout is not served with axis_name; drop in the feed-forward layers")
    if Trait.CARRY in encoding.traits and (
        not mask.span.causal or mask.k_index is not None or mask.q_index is not None
    ):
        raise ValueError(
            f"{encoding} reads the keys in their order, from the last to the first: with axis_name it needs a causal mask "
            "and contiguous blocks, that is, no q_index and k_index"
        )
    default_index = mask.k_index is None
    return SequenceAxis(axis_name, size, S, default_index, default_pos and default_index, mask.k_valid is None)
