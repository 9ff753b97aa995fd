"""Folders of runs that nobody trained, with the first state of training as their checkpoint."""

import pathlib
from typing import Any

import jax

from attnjax.config import RunConfig, canonical_json, run_id
from attnjax.train import checkpoint
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members


def started(run: RunConfig) -> Any:
    """The first state of a run, on the host."""
    state = Trainer(run, make_task(run)).start(members([run]))
    return jax.tree.map(lambda leaf: leaf[0], jax.device_get(state))


def stored(root: pathlib.Path, run: RunConfig, state: Any = None, *steps: int) -> pathlib.Path:
    """The folder of a run with this state as the checkpoint of these steps, by default of step 3; without a state, of none."""
    folder = root / run_id(run)
    (folder / "result").mkdir(parents=True)
    (folder / "config.json").write_text(canonical_json(run))
    for step in (steps or (3,)) if state is not None else ():
        checkpoint.save(folder / "result" / "checkpoints", step, state)
    return folder
