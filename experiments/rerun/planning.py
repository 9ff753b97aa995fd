"""The runs of a committed cell again, with rates that differ in their last bits, so that every step rounds differently.

A rerun has the seeds, the data and the config of the cell. Its learning rate is that of the cell, moved by 0, 1, -1, 2, -2 ...
units in the last place of float32, which is what training computes with: a change of 6e-8 to 1e-6 of the rate, far below any
choice of a rate, and of the size of one rounding in each step. Rates are numbers of a population, so that all reruns are one
compiled program; its population is another than that of the committed runs, which is a change of rounding by itself.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from attnjax.config import RunConfig, cell_id, encoding_name
from attnjax.sweep import plan, product, scan
from attnjax.sweep.plan import Planned


def cell(records: pathlib.Path, task: str, encoding: str) -> list[RunConfig]:
    """The configs of the one cell of this task and encoding, in order of their seeds.

    Raises ValueError where the records have no such cell or several, or where a run of it is not done.
    """
    runs = [run for run in scan(records).runs if run.config is not None]
    here = [
        run
        for run in runs
        if run.config and (run.config.task.name, encoding_name(run.config.model)) == (task, encoding)
    ]
    if not here:
        known = sorted({f"{run.config.task.name} {encoding_name(run.config.model)}" for run in runs if run.config})
        raise ValueError(f"{records} has no run of {task} under {encoding}; it has: {', '.join(known) or 'none'}")
    cells = {cell_id(run.config) for run in here if run.config}
    if len(cells) > 1:
        raise ValueError(f"{records} has {len(cells)} cells of {task} under {encoding}; a rerun is of one")
    if late := [run.run for run in here if run.status is None or run.status.state != "done"]:
        raise ValueError(f"runs of the cell are not done: {', '.join(late)}")
    return sorted((run.config for run in here if run.config), key=lambda config: (config.seed, config.data_seed))


def nudges(count: int) -> list[int]:
    """0, 1, -1, 2, -2 ...: units in the last place, as many as there are reruns.

    Example:
      >>> nudges(4)
      [0, 1, -1, 2]
    """
    if not 1 <= count <= 200:
        raise ValueError(f"--reruns must be 1 .. 200, got {count}")
    return [(k + 1) // 2 * (1 if k % 2 else -1) for k in range(count)]


def nudged(rate: float, units: int) -> float:
    """The rate as float32, moved by units in its last place.

    Example:
      >>> nudged(0.5, 1) - 0.5 == 2**-24, nudged(0.003, 0) == float(np.float32(0.003))
      (True, True)
    """
    return float(np.float32(rate) + np.float32(units) * np.spacing(np.float32(rate)))


def reruns(configs: Sequence[RunConfig], count: int) -> list[Planned]:
    """All runs of all reruns: every config of the cell at every nudged rate; at nudge 0 these are the committed configs."""
    first = configs[0]
    seeds = [{"seed": config.seed, "data_seed": config.data_seed} for config in configs]
    return plan(first, product([rate_of(first, units) for units in nudges(count)], seeds))


def rate_of(config: RunConfig, units: int) -> dict[str, float]:
    """What a rerun changes in a config: nothing at nudge 0."""
    return {"train.learning_rate": nudged(config.train.learning_rate, units)} if units else {}
