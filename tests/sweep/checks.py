"""What a finished sweep over `fake_training` looks like, who trained together, commands, and waiting with a deadline."""

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import fake_training

from attnjax.records import jsonl
from attnjax.sweep import Store
from attnjax.sweep.plan import groups
from tests.runs import runs_in

HERE = pathlib.Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}


def command(*words: object, trainer="train", **options) -> subprocess.Popen[str]:
    """`attnjax` with a training function of `fake_training`, in a process of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    arguments = [sys.executable, "-m", "attnjax", *map(str, words), "--trainer", f"fake_training:{trainer}"]
    return subprocess.Popen(arguments, **{"env": ENVIRONMENT, "text": True, **pipes, **options})


def check_complete(store: Store, *, except_for=(), load=fake_training.load) -> None:
    """Every run ended once, with the state, the log and the results of an uninterrupted one."""
    for found in runs_in(store.root):
        if found.run in except_for:
            continue
        config = found.config
        step, state = load(found.folder)
        assert (found.status.state, found.status.step, step) == ("done", config.train.steps, config.train.steps)
        assert state == fake_training.expected(config)
        metrics, results = found.metrics(), found.results()
        assert [one["step"] for one in metrics] == list(range(1, config.train.steps + 1))
        assert [one["length"] for one in results] == list(config.evaluate.lengths)
        assert {one["value"] for one in results} == {int(state[:4], 16) / 65536}
        assert not any(jsonl.read(found.folder / name).problems for name in jsonl.FILES)
        assert not (found.folder / "traceback.txt").exists()


def check_populations(store: Store, size: int) -> int:
    """Runs were trained in the groups that the sweep is parted into, or in what was left of them; returns how many in a whole
    one of `size`.
    """
    parts = [{entry.run for entry in part} for part in groups(store.runs, lambda entry: entry.group, size)]
    together = {found.run: set(found.manifest()["population"]) for found in runs_in(store.root)}
    assert all(any({run} <= names <= part for part in parts) for run, names in together.items())
    return sum(len(names) == size for names in together.values())


def until(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    """Look fifty times a second until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
