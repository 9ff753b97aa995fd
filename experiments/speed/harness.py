"""What every suite is given and uses: how thorough to be, whether two results are the same, and the rows of their times."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config import RunConfig
from attnjax.typing import PyTree
from experiments.speed import suites
from experiments.speed.records import Row, compared
from experiments.speed.timing import interleaved

TOLERANCE = 1e-4
"""Largest difference of two contenders, relative to the largest entry of the array, in float32."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """`smoke`: the smallest sizes and few rounds, to check agreement, bytes and compilations rather than time.
    `torch`: the Python interpreter of an environment with PyTorch, or None. `emit` takes each row as it is made, `say`
    each line for the reader, `refuse` the line about a peer whose numbers are not ours, which is not measured.
    """

    emit: Callable[[Row], None]
    say: Callable[[str], None] = print
    smoke: bool = False
    torch: pathlib.Path | None = None
    rounds: int = 15
    seconds: float = 30.0
    refuse: Callable[[str], None] = print
    only: Sequence[int] | None = None

    def lengths(self, suite: str) -> Sequence[int]:
        """The lengths T at which a suite measures, by the table of suites; of these `only` some, where they are given."""
        every = suites.SUITES[suite].smoke if self.smoke else suites.SUITES[suite].lengths
        return every if self.only is None else [T for T in every if T in self.only]

    def race(self, contenders: Mapping[str, Callable[[], float]], *, warm: int = 1) -> dict[str, list[float]]:
        """Seconds of each contender in each round, see `interleaved`."""
        return interleaved(contenders, rounds=self.rounds, seconds=self.seconds, warm=warm)

    def row(self, mine: Sequence[float], theirs: Sequence[float], **fields: Any) -> None:
        """Emit the row of two contenders from their figures in each round; `fields` are those of `Row`."""
        self.emit(compared(mine, theirs, **fields))


def difference(ours: PyTree, theirs: PyTree) -> float:
    """The largest |ours - theirs| relative to the largest |theirs| of each array, or to a tenth of the largest of all
    arrays: a gradient that is zero in truth (of a constant added to all scores of a row) is rounding. What is not a finite
    number counts as infinite. Raises ValueError where the trees have different shapes.
    """
    a, b = (jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jax.device_get(tree)) for tree in (ours, theirs))
    shapes = [jax.tree.map(np.shape, tree) for tree in (a, b)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"ours has shapes {shapes[0]}, the peer {shapes[1]}")
    pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    if not all(np.isfinite(x).all() and np.isfinite(y).all() for x, y in pairs):
        return float("inf")
    least = max(0.1 * max((np.abs(y).max(initial=0.0) for _, y in pairs), default=0.0), 1e-30)
    errors = [np.abs(x - y).max(initial=0.0) / max(np.abs(y).max(initial=0.0), least) for x, y in pairs]
    return float(max(errors, default=0.0))


def agree(what: str, ours: PyTree, theirs: PyTree, tolerance: float = TOLERANCE) -> float:
    """The difference of two trees of arrays. Raises ValueError where it is above the tolerance, or the shapes differ."""
    try:
        error = difference(ours, theirs)
    except ValueError as problem:
        raise ValueError(f"{what}: {problem}") from None
    if error > tolerance:
        raise ValueError(f"{what}: ours and the peer differ by {error:.2g} of the largest entry, at most {tolerance:g}")
    return error


def random_parameters(shapes: PyTree, seed: int = 0) -> PyTree:
    """Parameters of these shapes that hide nothing: normal, of variance 1 / (first axis), and 0.1 for vectors."""
    generator = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        variance = 0.1 if len(leaf.shape) < 2 else 1 / leaf.shape[0]
        return jnp.asarray(generator.normal(0, variance**0.5, leaf.shape), leaf.dtype)

    return jax.tree.map(draw, shapes)


def config_of(layers: int, width: int, task: Mapping[str, Any], **parts: Any) -> dict[str, Any]:
    """The config of a run of this size: a rotary decoder with four heads, and a constant rate without checkpoints."""
    model = {"layers": layers, "model": width, "heads": 4, "hidden": 4 * width, "encoding": "rope"}
    train = {"schedule": "constant", "checkpoint_every": 0}
    return {"name": "bench", "task": task, **parts} | {
        "model": model | parts.get("model", {}),
        "train": train | parts.get("train", {}),
    }


def sizes_of(run: RunConfig, **more: Any) -> dict[str, Any]:
    """What a reader needs to repeat a row: the sizes of a run's model, and `more`."""
    model = run.model
    named = {"L": model.layers, "D": model.model, "N": model.heads, "F": model.hidden, **more}
    return {**named, "task": run.task.name, "encoding": getattr(model.encoding, "name", ""), "dtype": model.dtype}
