"""Two ways to do the same work, side by side: first whether they have the same result, then the row of their times."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config import RunConfig
from attnjax.typing import PyTree
from experiments.speed.rows import Row
from experiments.speed.timing import Spread, ratio


def agree(what: str, ours: PyTree, theirs: PyTree, tolerance: float = 1e-4) -> float:
    """The largest difference of two trees of arrays, relative to the largest entry of theirs.

    Raises ValueError where it is above the tolerance or not a number, and where the trees have different shapes.
    """
    a, b = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jax.device_get(tree)) for tree in (ours, theirs))
    shapes = [jax.tree.map(np.shape, tree) for tree in (a, b)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{what}: ours has shapes {shapes[0]}, the peer {shapes[1]}")
    leaves = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    # NumPy's maximum, unlike Python's, is NaN where one of its numbers is.
    difference = np.max([np.max(np.abs(x - y), initial=0.0) for x, y in leaves], initial=0.0)
    scale = np.max([np.max(np.abs(y), initial=0.0) for _, y in leaves], initial=0.0)
    error = float(difference / (scale or 1.0))
    if not error <= tolerance:
        raise ValueError(f"{what}: ours and the peer differ by {error:.2g} of the largest entry, at most {tolerance:g}")
    return error


def numbers(shapes: PyTree, seed: int = 0) -> PyTree:
    """Parameters of these shapes that hide nothing: normal, of variance 1 / (first axis), and 0.1 for vectors."""
    generator = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        variance = 0.1 if len(leaf.shape) < 2 else 1 / leaf.shape[0]
        return jnp.asarray(generator.normal(0, variance**0.5, leaf.shape), leaf.dtype)

    return jax.tree.map(draw, shapes)


def compare(mine: Sequence[float], theirs: Sequence[float], *, unit: str = "s", **fields: Any) -> Row:
    """The row of two contenders from their figures in each round; `fields` are those of `Row`."""
    figures = {"our_figure": Spread.of(mine), "peer_figure": Spread.of(theirs), "ratio": ratio(theirs, mine)}
    return Row(unit=unit, **figures, **fields)


def sizes(run: RunConfig, **more: Any) -> dict[str, Any]:
    """What a reader needs to repeat a row: the sizes of a run's model, and `more`."""
    model = run.model
    named = {"L": model.layers, "D": model.model, "N": model.heads, "F": model.hidden, **more}
    return {**named, "task": run.task.name, "encoding": getattr(model.encoding, "name", ""), "dtype": model.dtype}
