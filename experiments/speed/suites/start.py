"""From the start of a process to the first step of a sweep: with an empty compilation cache, and with a full one.

    python -m experiments.speed.suites.start LAYERS WIDTH FOLDER

prepares a sweep of 4 runs, trains its first step and tells the losses. It is started again and again as a process of its
own, with JAX's persistent cache in a private folder that is thrown away afterwards. The first start checks the runs and
prepares their folders; it is killed at the first step, and the second finds the runs prepared, as `attnjax sweep` does, and
goes on. The clock runs from before the process starts until it tells the losses, so importing and tracing count.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax.monitoring

from attnjax.sweep import Event, plan, prepare, product, run_here, seeds, vary
from attnjax.sweep.plan import Planned
from attnjax.train.check import check
from attnjax.train.loop import train
from experiments.speed.harness import Settings, agree, config_of, sizes_of

FOUND, MADE = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"
ROOT = pathlib.Path(__file__).parents[3]
LIMIT = 1200.0
"""Seconds after which a start counts as failed."""


class Start(NamedTuple):
    """Of one process: seconds to the first step, the losses of that step, and programs found in the cache, and made."""

    seconds: float
    losses: list[float]
    found: int
    made: int


def start(settings: Settings) -> None:
    """A row for each size of model."""
    for layers, width in ((1, 16),) if settings.smoke else ((2, 64), (4, 128)):
        colds, warms = rounds(settings, layers, width)
        error = agree("start", [one.losses for one in warms], [one.losses for one in colds])
        cold, warm = colds[-1], warms[-1]
        run = sweep(layers, width)[0].config
        settings.row(
            [one.seconds for one in warms],
            [one.seconds for one in colds],
            suite="start",
            case=f"{layers} layers, d {width}, process to first step",
            ours="second start",
            peer="first start",
            goal=4.0,
            error=error,
            sizes=sizes_of(run, P=4, B=run.train.batch, T=run.task.length_max + 2),
            note=f"the first makes {cold.made} programs; the second finds {warm.found} and makes {warm.made}",
        )


def rounds(settings: Settings, layers: int, width: int) -> tuple[list[Start], list[Start]]:
    """Starts with an empty cache, each followed by one with the cache that it left; at least 3 of both, 1 for smoke."""
    colds, warms, begin = [], [], time.perf_counter()
    for i in range(settings.rounds):
        if i >= (1 if settings.smoke else 3) and time.perf_counter() - begin > settings.seconds:
            break
        with tempfile.TemporaryDirectory(prefix="attnjax-bench-") as folder:
            colds.append(once(folder, layers, width, quick=settings.smoke))
            warms.append(once(folder, layers, width, quick=settings.smoke))
    return colds, warms


def once(folder: str, layers: int, width: int, *, quick: bool = False) -> Start:
    """Start a process with the cache and the runs of this folder, and wait for its first step.

    Raises ValueError with the last line that it printed where it fails.
    """
    cache, runs = (os.path.join(folder, name) for name in ("programs", "runs"))
    command = [sys.executable, "-m", "experiments.speed.suites.start", str(layers), str(width), runs]
    begin = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, cwd=ROOT, env=environment(cache, quick=quick), stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        told = process.stdout.readline()
        seconds = time.perf_counter() - begin
        try:
            status = process.wait(LIMIT)
        finally:
            process.kill()
        errors.seek(0)
        last = (errors.read().strip() or "it said nothing").splitlines()[-1]
    if status or not told:
        raise ValueError(f"a process that was to train a first step ended with status {status}: {last}")
    return Start(seconds, **json.loads(told))


def environment(cache: str, *, quick: bool) -> dict[str, str]:
    """Of the processes: JAX keeps every program, however small, in the folder `cache`."""
    settings = {
        "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": str(quick).lower(),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # on a GPU, the memory that is left is shared
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    return {**os.environ, **settings}


def sweep(layers: int, width: int) -> list[Planned]:
    """Two seeds at two learning rates."""
    task = {"name": "missing_duplicate_string", "length_max": 40}
    config = config_of(layers, width, task, train={"batch": 32, "steps": 1000, "log_every": 1})
    return plan(config, product(seeds(2), vary("train.learning_rate", (1e-3, 3e-3))))


class FirstStep:
    """News of a sweep until each of its runs has done its first step: the losses then go to standard output, and the
    process ends as if it were killed there, so that nothing is saved.
    """

    def __init__(self, runs: int):
        self.runs = runs
        self.losses: list[float] = []
        self.events: list[str] = []
        jax.monitoring.register_event_listener(lambda event, **details: self.events.append(event))

    def __call__(self, event: Event) -> None:
        """Take notice of one event. Raises ValueError where a run failed."""
        if event.state == "failed":
            raise ValueError(event.reason)
        self.losses += [event.numbers["loss"]] if "loss" in event.numbers else []
        if len(self.losses) == self.runs:
            counts = {"found": self.events.count(FOUND), "made": self.events.count(MADE)}
            print(json.dumps({"losses": self.losses, **counts}), flush=True)
            os._exit(0)


def main(arguments: Sequence[str]) -> None:
    """What the process does: what `attnjax sweep` does until the first step. Runs are checked before they are prepared."""
    layers, width = map(int, arguments[:2])
    root, runs = pathlib.Path(arguments[2]), sweep(layers, width)
    first = FirstStep(len(runs))
    if not root.exists():
        check(runs[0].config)
    run_here(prepare(root, "bench", runs), train, progress=first)


if __name__ == "__main__":
    main(sys.argv[1:])
