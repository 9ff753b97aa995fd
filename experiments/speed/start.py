"""From a command to its end: one step of a run from an empty compilation cache and from a full one, and the whole main job.

The clock runs from before the process starts until it ends, so importing, tracing, compiling and writing count. CPU-seconds are
those of the process and its workers.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from experiments.speed.timing import Table

ROOT = pathlib.Path(__file__).parents[2]
RUN = {
    "name": "start",
    "task": {"name": "copy", "length_max": 16},
    "train": {"steps": 1, "warmup": 1, "batch": 32},
    "evaluate": {"count": 4, "batch": 4, "lengths": [16], "validation_lengths": []},
}
"""One step, and an evaluation of four examples."""


def measure(table: Table, lengths: Sequence[int] | None) -> int:
    """Adds the second start beside the first, and the main job, where not in a smoke run; returns 0."""
    if lengths:
        raise ValueError("start has no lengths: leave out --lengths")
    firsts, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        config = place / "start.json"
        config.write_text(json.dumps(RUN), encoding="utf-8")
        for i in range(1 if table.smoke else 3):
            cache = place / f"programs-{i}"
            for j, taken in enumerate((firsts, seconds)):
                taken.append(command(cache, place / f"runs-{i}-{j}", "run", str(config))[0])
        case, names = "process to the end of one step", {"ours": "full cache", "peer": "empty cache"}
        table.add(seconds, firsts, suite="start", case=case, **names)
        if not table.smoke:
            wall, cpu = command(place / "programs", place / "runs", "sweep", "rope_vs_sinusoidal")
            table.add([wall], [cpu], suite="start", case="main job", ours="wall", peer="CPU")
    return 0


def command(cache: pathlib.Path, runs: pathlib.Path, verb: str, config: str) -> tuple[float, float]:
    """Returns the seconds and CPU-seconds of `attnjax VERB CONFIG`, with JAX's cache of programs in a folder of its own.

    Raises ValueError with its last line where it fails.
    """
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    line = [sys.executable, "-m", "attnjax", verb, config, "--out", str(runs)]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise ValueError(f"attnjax {verb} ended with status {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
