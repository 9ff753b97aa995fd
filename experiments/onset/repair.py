"""Mends the unseen codes alone of trained runs, without training: `python -m experiments.onset.repair --runs runs/onset`.

For each task and cell whose codes can be mended, three losses of every run at L, 4 L and 8 L, on the run's own test windows:

    trained    the model as it is
    repaired   T5, learned: unseen rows of the table are the last seen one. RoPE: pairs with a wavelength above L keep the angle
               of distance L - 1 from there on. Sinusoidal: waves longer than L stop at position L - 1
    control    as many seen codes, changed the same way: each of the last seen rows, at most half of them, is the one below it;
               the longest of the other waves stop, all where they are fewer

and `moved`, the attention that the unseen codes move, see configs/onset.py. Appends to OUT what it does not hold, cell by cell.
All kinds and runs of a cell are one population, and all cells of RoPE on a task share a program.
"""

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from attnjax.config import RunConfig
from attnjax.evaluation.loaded_model import restore
from attnjax.positions import Learned, PositionEncoding, RoPE, Sinusoidal, T5Bias
from attnjax.positions.angles import angles, exact, sine_cosine
from attnjax.positions.base import Params, Sizes, Tile
from attnjax.positions.projection import HIGHEST
from attnjax.positions.rope import RotaryFrequencies
from attnjax.positions.rotary import merge, rotate
from attnjax.positions.t5 import edges
from attnjax.sweep import load as load_sweep
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.model import build, encoding as encoding_of
from attnjax.typing import Array, ArrayLike, Float, Num, PyTree
from experiments.onset.predict import REPAIRED, cell_of, first_unseen, task_named, tokens

OUT = Path(__file__).parent / "repair.csv"
TIMES = (1, 4, 8)
"""Tested lengths over the trained one."""
COUNT, WINDOWS = 128, 32
"""Windows of a loss, and of `moved`."""
KINDS = ("trained", "repaired", "control")


def split(frequencies: Any, stopped: tuple[int, ...]) -> dict[str, Any]:
    """Returns the frequencies of the waves that go on, and of those that stop; the others are 0 in each."""
    stop = np.isin(np.arange(len(frequencies.radians)), stopped)
    parts = {"going": ~stop, "stopping": stop}
    return {name: exact(np.where(keep, frequencies.radians, 0.0)) for name, keep in parts.items()}


@dataclasses.dataclass(frozen=True)
class StoppedRoPE(RotaryFrequencies):
    """RoPE some of whose pairs keep their angle of distance `last` from there on."""

    last: int = 63
    stopped: tuple[int, ...] = ()

    causal_only = "maps distances to the past"
    replaces_logits = True

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns those of RoPE, and the frequencies of both kinds of pairs."""
        known = super().constants(sizes, length)
        return known | split(known["frequencies"], self.stopped)

    def score(self, p: Params, tile: Tile) -> Float[Array, "t s"]:
        """Returns scale * q . k, at the distance of both, or with the stopped pairs at `last`."""
        _, q, k, i, j, _, _ = tile
        turned = lambda x, angle: rotate(x, angle, self.layout, p["gain"])
        product = lambda q, k: jnp.matmul(q, k.T, precision=HIGHEST)
        near = product(turned(q, angles(i, p["frequencies"])), turned(k, angles(j, p["frequencies"])))
        kept = angles(jnp.full_like(i, self.last), p["stopping"])
        far = product(turned(q, angles(i, p["going"]) + kept), turned(k, angles(j, p["going"])))
        return tile.scale * jnp.where(tile.distance > self.last, far, near)


@dataclasses.dataclass(frozen=True)
class StoppedSinusoidal(Sinusoidal):
    """Sinusoidal positions some of whose waves stop at position `last`."""

    last: int = 63
    stopped: tuple[int, ...] = ()

    def constants(self, sizes: Sizes, length: int | None = None) -> dict:
        """Returns those of sinusoidal positions, and the frequencies of both kinds of waves."""
        known = super().constants(sizes, length)
        return known | split(known["frequencies"], self.stopped)

    def embed(self, p: Params, x: Float[Array, "T D"], pos: Num[ArrayLike, " T"]) -> Float[Array, "T D"]:
        """Returns x + PE(pos), with the stopped waves at `last` at most."""
        angle = angles(pos, p["going"]) + angles(jnp.minimum(pos, self.last), p["stopping"])
        sin, cos = sine_cosine(angle)
        return x + merge(sin, cos, "half" if self.order == "concatenated" else "interleaved")


def stopped(encoding: PositionEncoding, sizes: Sizes, trained: int, kind: str) -> PositionEncoding:
    """Returns the encoding in which the unseen waves stop, or as many of the others (control), or none.

    Tables are repaired by their rows, and stay.
    """
    if not isinstance(encoding, RoPE | Sinusoidal):
        return encoding
    wavelengths = 2 * np.pi / encoding.constants(sizes)["frequencies"].radians
    unseen, seen = np.flatnonzero(wavelengths > trained), np.flatnonzero(wavelengths <= trained)
    waves = {"trained": unseen[:0], "repaired": unseen, "control": seen[-len(unseen) :]}[kind]
    own = {field.name: getattr(encoding, field.name) for field in dataclasses.fields(encoding)}
    cls: Any = StoppedRoPE if isinstance(encoding, RoPE) else StoppedSinusoidal
    return cls(**own, last=trained - 1, stopped=tuple(waves.tolist()))


def rows(count: int, seen: int, kind: str) -> np.ndarray:
    """Returns which row each of `count` rows takes, of which the first `seen` were trained.

    Example:
      >>> rows(8, 6, "repaired").tolist(), rows(8, 6, "control").tolist()
      ([0, 1, 2, 3, 4, 5, 5, 5], [0, 1, 2, 3, 3, 4, 6, 7])
    """
    index = np.arange(count)
    if kind != "control":
        return np.minimum(index, seen - 1) if kind == "repaired" else index
    changed = min(count - seen, seen // 2)
    return np.where((index >= seen - changed) & (index < seen), index - 1, index)


def mended(encoding: PositionEncoding, params: PyTree, trained: int, kind: str) -> PyTree:
    """Returns the parameters, of one run or of several, whose table has other rows; those of an encoding without one stay."""
    if isinstance(encoding, T5Bias):
        seen = 1 + np.count_nonzero(edges(encoding.buckets, encoding.max_distance) < trained)
        index, axis = rows(encoding.buckets, int(seen), kind), -1
    elif isinstance(encoding, Learned):
        index, axis = rows(encoding.length, trained, kind), -2
    else:
        return params
    other = lambda path, leaf: jnp.take(leaf, index, axis) if path[-1].key == "table" else leaf
    return params | {"stack": jax.tree.map_with_path(other, params["stack"])}


class Cell(NamedTuple):
    """The runs of a cell: their config, which differs in seeds alone, seeds, and parameters [P, ...]."""

    name: str
    run: RunConfig
    seeds: tuple[int, ...]
    params: PyTree


class Measure:
    """Measures cells that share a program: the same task, and the same encoding up to the waves that stop."""

    def __init__(self, run: RunConfig):
        length, times = run.task.length_max, TIMES
        self.lengths = tuple(length * one for one in times)
        of_lengths = {"lengths": self.lengths, "validation_lengths": (), "bucket_sizes": self.lengths}
        evaluate = dataclasses.replace(run.evaluate, **of_lengths, count=COUNT, batch=min(run.evaluate.batch, COUNT))
        run = dataclasses.replace(run, evaluate=evaluate)
        task, self.trained = make_task(run), tokens(name_of(run), length)
        own = build(run, task)
        self.sizes = own.config.sizes
        self.model = build(run, task, stopped(encoding_of(run.model.encodings[0]), self.sizes, self.trained, "trained"))
        self.evaluator = Evaluator(run, task, self.model)
        _, examples, _ = next(iter(self.evaluator.batches(length, "train")))
        self.windows = examples.tokens[:WINDOWS]
        half, far = self.windows.shape[1] // 2, tokens(name_of(run), self.lengths[1]) - self.trained
        pos = jnp.arange(self.windows.shape[1], dtype=jnp.int32)
        self.pos, self.half = jnp.where(pos < half, pos, pos + far), half
        self.attention = jax.jit(self._attention)

    def _attention(self, params: PyTree, numbers: PyTree) -> Float[Array, "L B N t T"]:
        """Returns the weights of the second half of the windows, which stands further on."""
        return self.model.module(params, numbers).weights(self.windows, pos=self.pos)[..., self.half :, :]

    def of_cell(self, cell: Cell) -> list[tuple[int, str, int, float]]:
        """Returns (seed, kind, tested length, value) of each run."""
        encoding, count = encoding_of(cell.run.model.encodings[0]), len(cell.seeds)
        params = [mended(encoding, cell.params, self.trained, kind) for kind in KINDS]
        numbers = [stopped(encoding, self.sizes, self.trained, kind).constants(self.sizes) for kind in KINDS]
        every = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *params)
        constants = jax.tree.map(lambda *leaves: jnp.repeat(jnp.stack(leaves), count, axis=0), *numbers)
        members = [(seed, kind) for kind in KINDS for seed in cell.seeds]
        found = []
        for length, row in zip(self.lengths, self.evaluator.measure(every, ("test",), constants), strict=True):
            values = [one["value"] for each in row for one in each.records if one["metric"] == "loss_sliding"]
            found += [(seed, kind, length, value) for (seed, kind), value in zip(members, values, strict=True)]
        member = lambda p: jax.tree.map(lambda leaf: leaf[p], (every, constants))
        for p, seed in enumerate(cell.seeds):
            trained, repaired = (np.asarray(self.attention(*member(at))) for at in (p, p + count))
            found.append((seed, "moved", self.lengths[0], float(moved(trained, repaired))))
        return found


def moved(one: Float[np.ndarray, "*axes T"], other: Float[np.ndarray, "*axes T"]) -> float:
    """Returns half the sum over keys of the differences of two arrays of weights, the mean over all rows.

    Example:
      >>> float(moved(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[0.5, 0.5], [0.5, 0.5]])))
      0.25
    """
    return np.abs(one - other).sum(-1).mean() / 2


def name_of(run: RunConfig) -> str:
    """Returns the name of a run's task in configs/onset.py."""
    return task_named(run.task.name)


def can_be_repaired(run: RunConfig) -> bool:
    """Returns whether a run has unseen codes, and an encoding of those that are mended."""
    (own,) = run.model.encodings
    trained, starts = tokens(name_of(run), run.task.length_max), run.positions.policy != "arange"
    return own.name in REPAIRED and math.isfinite(first_unseen(own.name, own.options, trained, starts=starts))


def cells_of(folder: Path) -> Iterator[tuple[str, Cell]]:
    """Yields the task and the runs of each cell that can be repaired, cells that share a program after each other."""
    store = load_sweep(folder)
    done = [entry.run for entry in store.runs if store.status(entry.run).state == "done"]
    runs = [(store.config(name), name) for name in done]
    runs = [(run, name) for run, name in runs if can_be_repaired(run)]
    cell = lambda run: cell_of(run.model.encoding.name, run.model.encoding.options, run.positions.policy)
    key = lambda row: (name_of(row[0]), cell(row[0]))
    for (task, name), group in itertools.groupby(sorted(runs, key=key), key=key):
        members = list(group)
        states = [restore(store.directory(one))[1].state.params for _, one in members]
        params = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *states)
        yield task, Cell(name, members[0][0], tuple(run.seed for run, _ in members), params)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what OUT does not hold; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.onset.repair", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/onset"), help="the folder of the sweep")
    parser.add_argument("--out", type=Path, default=OUT, help="the records; rows of other cells stay")
    chosen = parser.parse_args(arguments)
    there = pd.read_csv(chosen.out) if chosen.out.is_file() else pd.DataFrame(columns=["task", "cell"])
    known = set(zip(there.task, there.cell, strict=True))
    shared: dict[Any, Measure] = {}
    for task, cell in cells_of(chosen.runs):
        if (task, cell.name) in known:
            continue
        encoding = cell.run.model.encodings[0]
        program = (task, encoding.name, None if encoding.name == "rope" else encoding.options)
        if program not in shared:
            shared = {program: Measure(cell.run)}
        rows = [(task, cell.name, *row) for row in shared[program].of_cell(cell)]
        table = pd.DataFrame(rows, columns=["task", "cell", "seed", "kind", "length", "value"])
        table.to_csv(chosen.out, mode="a", header=not chosen.out.is_file(), index=False, float_format="%.6g")
        print(task, cell.name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
