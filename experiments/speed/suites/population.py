"""Eight seeds times four learning rates: one compiled population against the same runs one after another.

    compilation included   what a sweep takes from nothing: one program, against one for each run
    steady state           the same steps once everything is compiled: the peer uses one program for all its runs

One after another, a run is trained by the same `Trainer`, as a population of one. Both start from the same numbers and draw
the same batches: the losses of all runs must agree before anything is timed.
"""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from attnjax.config import RunConfig, parse
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from experiments.speed.harness import Settings, agree, config_of, sizes_of
from experiments.speed.timing import cold, timed

RATES = (3e-4, 1e-3, 3e-3, 1e-2)


@dataclasses.dataclass(frozen=True)
class Size:
    """Of the runs: `seeds` times four of them, `chunks` of them together; of these chunks the first has a goal."""

    seeds: int = 8
    chunks: tuple[int, ...] = (32, 8)
    layers: int = 2
    model: int = 64
    batch: int = 32
    lengths: int = 16
    steps: int = 400
    stride: int = 10


SMOKE = Size(seeds=1, chunks=(4,), layers=1, model=16, batch=2, lengths=3, steps=20, stride=2)


def population(settings: Settings) -> None:
    """Two rows for each way to divide the runs into populations."""
    size = SMOKE if settings.smoke else Size()
    runs = grid(size)
    with cold(quick=settings.smoke):
        ways = {chunk: Way(runs, chunk) for chunk in (*size.chunks, 1)}
        first = {chunk: timed(way)() for chunk, way in ways.items()}
        alone = ways.pop(1)
        errors = {
            chunk: agree(f"populations of {chunk}", way.losses, alone.losses, 1e-3) for chunk, way in ways.items()
        }
        taken = settings.race({str(chunk): timed(way) for chunk, way in (*ways.items(), (1, alone))}, warm=0)
    theirs = taken["1"]
    common: dict[str, Any] = {"suite": "population", "peer": "one run after another"}
    common["sizes"] = sizes_of(runs[0], P=len(runs), B=size.batch, T=2 * size.lengths + 1)
    # The first stride of all runs holds one compilation and the strides of the others, which are timed by themselves.
    each = first[1] - statistics.median(theirs) * (len(runs) - 1) / len(runs)
    rest = size.steps // size.stride - 1
    for chunk, way in ways.items():
        mine = taken[str(chunk)]
        common |= {"ours": f"{len(runs) // chunk} x {chunk} runs together", "error": errors[chunk]}
        goal = None if chunk != size.chunks[0] else 2.0 if jax.default_backend() == "cpu" else 15.0
        case = f"{len(runs)} runs, {size.steps} steps each, compilation included"
        note = (
            f"first {size.stride} steps with compilation, measured once: ours {first[chunk]:.3g} s in all, the peer "
            f"{each:.3g} s a run; the other steps are those of every round, repeated"
        )
        totals = [first[chunk] + rest * t for t in mine], [each * len(runs) + rest * t for t in theirs]
        settings.row(*totals, case=case, goal=goal, note=note, **common)
        case = f"{len(runs)} runs, {size.stride} steps each, steady state"
        note = f"mean loss at the end of measuring {way.losses.mean():.4f}, the peer's {alone.losses.mean():.4f}"
        settings.row(mine, theirs, case=case, note=note, **common)


def grid(size: Size) -> list[RunConfig]:
    """The runs: all seeds at each learning rate."""
    train = {"batch": size.batch, "log_every": size.stride, "steps": size.steps}
    run = parse(config_of(size.layers, size.model, {"name": "copy", "length_max": size.lengths}, train=train))
    with_rate = lambda rate: dataclasses.replace(run.train, learning_rate=rate)
    return [
        dataclasses.replace(run, seed=seed, data_seed=seed, train=with_rate(rate))
        for rate in RATES
        for seed in range(size.seeds)
    ]


class Way:
    """Runs in training, `chunk` of them in one call of one program. Each call is one stride of all of them.

    `losses` [runs, stride] are those of the last call.
    """

    def __init__(self, runs: Sequence[RunConfig], chunk: int):
        self.losses = np.zeros(0)
        self._loop = self._strides(runs, chunk)

    def __call__(self) -> None:
        self.losses = next(self._loop)

    @staticmethod
    def _strides(runs: Sequence[RunConfig], chunk: int) -> Iterator[np.ndarray]:
        trainer = Trainer(runs[0], make_task(runs[0]))
        populations = [members(runs[i : i + chunk]) for i in range(0, len(runs), chunk)]
        states: list[Any] = [trainer.start(population) for population in populations]
        while True:
            losses = []
            for i, population in enumerate(populations):
                states[i], metrics = trainer.advance(states[i], population, runs[0].train.log_every)
                losses.append(np.asarray(metrics.loss))  # the next call waits for this one, as in training
            yield np.concatenate(losses)
