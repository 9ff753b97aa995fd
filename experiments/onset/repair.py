"""Mends the unseen codes alone of trained runs, without training: `python -m experiments.onset.repair --runs runs/onset`.

For each task and cell whose codes can be mended, three losses of every run at L, 4 L and 8 L, on the run's own test windows:

    trained    the model as it is
    repaired   T5, learned: unseen rows of the table are the last seen one. RoPE: pairs with a wavelength above L keep the angle
               of distance L - 1 from there on. Sinusoidal: waves longer than L stop at position L - 1
    control    as many seen codes, changed the same way: each of the last seen rows, at most half of them, is the one below it;
               the longest of the other waves stop, all where they are fewer

and `moved`, the attention that the unseen codes move, see configs/onset.py. Appends to OUT what it does not hold, cell by cell.
"""

import argparse
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
from attnjax.tasks.base import Task
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.model import Model, build, encoding as encoding_of
from attnjax.typing import Array, ArrayLike, Float, Int, Num, PyTree
from configs.onset import CELLS, TASKS
from experiments.onset.predict import REPAIRED, first_unseen, tokens

OUT = Path(__file__).parent / "repair.csv"
TIMES = (1, 4, 8)
"""Tested lengths over the trained one."""
COUNT, WINDOWS = 256, 32
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
        turned = lambda x, angle: rotate(x, angle, self.layout, p["gain"])
        product = lambda q, k: jnp.matmul(q, k.T, precision=HIGHEST)
        going = lambda pos: angles(pos, p["going"])
        kept = angles(jnp.full_like(tile.q_pos, self.last), p["stopping"])
        near = product(*(turned(x, angles(pos, p["frequencies"])) for x, pos in zip(tile[1:3], tile[3:5], strict=True)))
        far = product(turned(tile.q, going(tile.q_pos) + kept), turned(tile.k, going(tile.k_pos)))
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


def stopped(encoding: RoPE | Sinusoidal, sizes: Sizes, trained: int, kind: str) -> PositionEncoding:
    """Returns the encoding whose unseen waves stop, or for the control as many of the others."""
    wavelengths = 2 * np.pi / encoding.constants(sizes)["frequencies"].radians
    unseen, seen = np.flatnonzero(wavelengths > trained), np.flatnonzero(wavelengths <= trained)
    waves = unseen if kind == "repaired" else seen[-len(unseen) :]
    cls: Any = StoppedRoPE if isinstance(encoding, RoPE) else StoppedSinusoidal
    own = {field.name: getattr(encoding, field.name) for field in dataclasses.fields(encoding)}
    return cls(**own, last=trained - 1, stopped=tuple(waves.tolist()))


def rows(count: int, seen: int, kind: str) -> np.ndarray:
    """Returns which row each of `count` rows takes, of which the first `seen` were trained.

    Example:
      >>> rows(8, 6, "repaired").tolist(), rows(8, 6, "control").tolist()
      ([0, 1, 2, 3, 4, 5, 5, 5], [0, 1, 2, 3, 3, 4, 6, 7])
    """
    index = np.arange(count)
    if kind == "repaired":
        return np.minimum(index, seen - 1)
    changed = min(count - seen, seen // 2)
    return np.where((index >= seen - changed) & (index < seen), index - 1, index)


def changed(run: RunConfig, task: Task, model: Model, params: PyTree, kind: str) -> tuple[Model, PyTree]:
    """Returns the model and the parameters [P, ...] of its runs with the unseen codes repaired, or with the control."""
    if kind == "trained":
        return model, params
    trained, encoding = tokens(name_of(run), run.task.length_max), encoding_of(run.model.encodings[0])
    if isinstance(encoding, RoPE | Sinusoidal):
        return build(run, task, stopped(encoding, model.config.sizes, trained, kind)), params
    if isinstance(encoding, T5Bias):
        seen = 1 + np.count_nonzero(edges(encoding.buckets, encoding.max_distance) < trained)
        index, axis = rows(encoding.buckets, int(seen), kind), -1
    else:
        assert isinstance(encoding, Learned)
        index, axis = rows(encoding.length, trained, kind), -2
    mend = lambda path, leaf: jnp.take(leaf, index, axis) if path[-1].key == "table" else leaf
    return model, params | {"stack": jax.tree.map_with_path(mend, params["stack"])}


def moved(models: Sequence[tuple[Model, PyTree]], windows: Int[Array, "B T"], gap: int) -> Float[np.ndarray, " P"]:
    """Returns half the sum over keys of |A - B|, with A and B the attention of two models: the mean over layers, heads and
    queries of the second half of the windows, which stands `gap` further on.
    """
    half = windows.shape[1] // 2
    pos = jnp.arange(windows.shape[1], dtype=jnp.int32)
    pos = jnp.where(pos < half, pos, pos + gap)

    def attention(model: Model, params: PyTree) -> Float[np.ndarray, "P L B N t T"]:
        """Returns the weights of the second half."""
        one = jax.jit(lambda params: model.module(params).weights(windows, pos=pos)[..., half:, :])
        count = jax.tree.leaves(params)[0].shape[0]
        return np.stack([one(jax.tree.map(lambda leaf, p=p: leaf[p], params)) for p in range(count)])

    one, other = (attention(*each) for each in models)
    return np.abs(one - other).sum(-1).mean((1, 2, 3, 4)) / 2


def measure(run: RunConfig, params: PyTree) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yields (kind, tested length, values of the runs [P]) of a cell, from the parameters [P, ...] of its runs."""
    length = run.task.length_max
    lengths = tuple(length * times for times in TIMES)
    evaluate = dataclasses.replace(
        run.evaluate, lengths=lengths, validation_lengths=(), count=COUNT, bucket_sizes=lengths
    )
    run = dataclasses.replace(run, evaluate=dataclasses.replace(evaluate, batch=min(evaluate.batch, COUNT)))
    task = make_task(run)
    own = build(run, task)
    models = {kind: changed(run, task, own, params, kind) for kind in KINDS}
    for kind, (model, mine) in models.items():
        found = Evaluator(run, task, model).measure(mine, ("test",))
        for length, members in zip(lengths, found, strict=True):
            values = [one["value"] for each in members for one in each.records if one["metric"] == "loss_sliding"]
            yield kind, length, np.array(values)
    _, examples, _ = next(iter(Evaluator(run, task, own).batches(lengths[0], "train")))
    windows = examples.tokens[:WINDOWS]
    gap = tokens(name_of(run), lengths[1]) - tokens(name_of(run), lengths[0])
    yield "moved", lengths[0], moved([models["trained"], models["repaired"]], windows, gap)


def name_of(run: RunConfig) -> str:
    """Returns the name of a run's task in configs/onset.py."""
    return next(name for name, changes in TASKS.items() if changes["task"]["name"] == run.task.name)


def cell_of(run: RunConfig) -> str:
    """Returns the name of a run's cell in configs/onset.py."""
    (own,) = run.model.encodings
    mine = (own.name, dict(own.options), run.positions.policy)

    def of(changes: Any) -> tuple[str, dict, str]:
        """Returns the same of a cell."""
        encoding = changes["model.encoding"]
        return encoding["name"], encoding["options"], changes.get("positions.policy", "arange")

    return next(name for name, changes in CELLS.items() if of(changes) == mine)


def can_be_repaired(run: RunConfig) -> bool:
    """Returns whether a run has unseen codes, and an encoding of those that are mended."""
    (own,) = run.model.encodings
    trained, starts = tokens(name_of(run), run.task.length_max), run.positions.policy != "arange"
    return own.name in REPAIRED and math.isfinite(first_unseen(own.name, own.options, trained, starts=starts))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what OUT does not hold; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.onset.repair", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/onset"), help="the folder of the sweep")
    parser.add_argument("--out", type=Path, default=OUT, help="the records; rows of other cells stay")
    chosen = parser.parse_args(arguments)
    store = load_sweep(chosen.runs)
    done = [entry.run for entry in store.runs if store.status(entry.run).state == "done"]
    runs = [(run, store.config(run)) for run in done]
    runs = [(name_of(run), cell_of(run), name, run) for name, run in runs if can_be_repaired(run)]
    there = pd.read_csv(chosen.out) if chosen.out.is_file() else pd.DataFrame(columns=["task", "cell"])
    known = set(zip(there.task, there.cell, strict=True))
    by_cell = lambda row: row[:2]
    for (task, cell), group in itertools.groupby(sorted(runs, key=by_cell), key=by_cell):
        if (task, cell) in known:
            continue
        members = list(group)
        states = [restore(store.directory(name))[1].state.params for _, _, name, _ in members]
        params = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *states)
        seeds = [run.seed for *_, run in members]
        found = [
            (task, cell, seed, kind, length, value)
            for kind, length, values in measure(members[0][3], params)
            for seed, value in zip(seeds, values, strict=True)
        ]
        table = pd.DataFrame(found, columns=["task", "cell", "seed", "kind", "length", "value"])
        table.to_csv(chosen.out, mode="a", header=not chosen.out.is_file(), index=False, float_format="%.6g")
        print(task, cell, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
