"""A tiny run as a process of its own, to be killed at chosen moments, and what is left of it; a sweep whose workers are killed.

python -m tests.train.killing 24 12        a sweep of 24 runs whose workers are killed 12 times, beside an undisturbed one
"""

import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from attnjax.records.runs import folder_of
from attnjax.sweep import ExecutionConfig, Store, plan, prepare, product, run_workers, seeds, vary
from attnjax.sweep.claim import holder
from tests.runs import Found, runs_in

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = {
    "name": "tiny",
    "task": {"name": "bucket_sort", "length_min": 1, "length_max": 4},
    "model": {"layers": 1, "model": 8, "heads": 1, "hidden": 8, "encoding": {"name": "nope"}},
    "train": {"steps": 60, "batch": 2, "log_every": 2, "checkpoint_every": 2},
    "evaluate": {"lengths": [2, 6], "validation_lengths": [4], "count": 4, "batch": 4, "bucket_sizes": [6], "every": 6},
}
PATIENCE = 300.0


def environment(cache: pathlib.Path) -> dict[str, str]:
    """Programs are optimised little and kept in `cache`, since each process would spend most of its time on that."""
    keep = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    keep["JAX_ENABLE_COMPILATION_CACHE"] = "true"
    quick = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_COMPILATION_CACHE_DIR": str(cache)}
    return {**os.environ, **quick, **keep, "NPROC": "1", "PYTHONPATH": str(ROOT)}


def start(root: pathlib.Path, out: str, *arguments: str) -> subprocess.Popen[str]:
    """`attnjax run` on the config, with its programs in `root/cache`."""
    config = root / "config.json"
    config.write_text(json.dumps(CONFIG))
    command = [sys.executable, "-m", "attnjax", "run", str(config), "--out", str(root / out), *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment(root / "cache"), **pipes)


def finish(process: subprocess.Popen[str]) -> str:
    """What it printed; it must have ended well."""
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    return output


def the_run(out: pathlib.Path) -> pathlib.Path | None:
    """The folder of the only run, once it is there."""
    return next((config.parent for config in out.glob("*/config.json")), None)


def strike(process: subprocess.Popen[str], out: pathlib.Path, phase: str, seed: int, number: int) -> str:
    """Send a signal at a random moment of a phase of this life; returns what the process had printed."""
    draw = random.Random(seed)
    if phase == "start-up":
        time.sleep(draw.uniform(0.2, 4.0))
    else:
        before, deadline = _counts(out), time.monotonic() + PATIENCE
        while not _reached(phase, before, _counts(out), draw.choice([1, 2])):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, f"no {phase} in {PATIENCE} s"
            time.sleep(0.002)
        time.sleep(draw.choice([0.0, 0.005, 0.02, 0.05]) * draw.random())
    assert process.poll() is None, "it ended before the signal: make the run longer"
    os.kill(process.pid, number)
    return process.communicate(timeout=PATIENCE)[0]


def _counts(out: pathlib.Path) -> tuple[int, int, int]:
    """Newest step, lines of results, and how many half-written checkpoints there are."""
    run = the_run(out)
    if run is None or not (folder_of(run) / "checkpoints").is_dir():
        return 0, 0, 0
    results, names = (
        folder_of(run) / "results.jsonl",
        [path.name for path in (folder_of(run) / "checkpoints").iterdir()],
    )
    lines = results.read_text().count("\n") if results.exists() else 0
    partial = sum(name.startswith("partial") for name in names)
    return max([0, *(int(name) for name in names if name.isdecimal())]), lines, partial


def _reached(phase: str, before: tuple[int, int, int], now: tuple[int, int, int], more: int) -> bool:
    if phase == "evaluation":
        return now[0] > before[0] and now[1] > before[1]
    return now[0] >= before[0] + 2 * more and (phase == "training" or now[2] > 0)


@contextlib.contextmanager
def killer(store: Store, kills: int, seconds: float) -> Iterator[list[tuple[int, int]]]:
    """Kill workers that hold a run at random moments, `seconds` apart on average; yields number and step of each victim."""
    draw, ended, victims = random.Random(0), threading.Event(), []

    def strike() -> None:
        while len(victims) < kills and not ended.wait(draw.uniform(0, 2 * seconds)):
            found = [(run.run, owner) for run in store.runs if (owner := holder(store.directory(run.run)))]
            dead = {pid for pid, _ in victims}
            living = [(run, owner) for run, owner in found if not owner.ended and owner.pid not in dead]
            if living:
                run, owner = draw.choice(living)
                step = store.status(run).step
                os.kill(owner.pid, signal.SIGKILL)
                victims.append((owner.pid, step))

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield victims
    finally:
        ended.set()
        thread.join()


def killed_sweep(root: pathlib.Path, runs: int, kills: int) -> str:
    """Train `runs` runs, a multiple of 4, in pairs on 3 workers, which are killed at random; returns a sentence.

    Raises AssertionError unless every run has one result, and records and parameters with the bits of an undisturbed sweep.
    """
    base = {**CONFIG, "train": {**CONFIG["train"], "steps": 20}}
    cells = product(
        vary("model.encoding", ["nope", "alibi"]), vary("train.learning_rate", [0.1, 0.01]), seeds(runs // 4)
    )
    found = {}
    for name in ("calm", "killed"):
        store = prepare(root / name, "tiny", plan(base, cells))
        with killer(store, kills if name == "killed" else 0, 1.0) as victims:
            summary = run_workers(store, "attnjax.train:train", 3, ExecutionConfig(population=2), threads=1)
        assert set(summary.states.values()) == {"done"}, summary
        for entry in store.runs:
            assert sorted(path.name for path in store.directory(entry.run).iterdir()) == ["config.json", "result"]
        found[name] = {run.run: records(run) for run in runs_in(store.root)}
    assert len(victims) == kills, victims
    assert found["calm"] == found["killed"]
    steps = ", ".join(str(step) for _, step in victims)
    return f"{runs} runs, {kills} kills at steps {steps}: one result each, parameters and records bit-equal"


def records(run: Found) -> tuple[str, str, list[dict]]:
    """The digest of a run's parameters, its results and its log without times; each result must be there once."""
    results = (run.folder / "results.jsonl").read_text()
    lines = [json.loads(line) for line in results.splitlines()]
    assert len({(one["step"], one["length"], one["metric"], one["split"]) for one in lines}) == len(lines)
    steps = [{name: value for name, value in record.items() if name != "seconds"} for record in run.metrics()]
    assert [record["step"] for record in steps] == list(range(2, run.config.train.steps + 1, 2))
    return run.manifest()["parameters_sha256"], results, steps


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(environment(pathlib.Path(folder, "cache")))
        print(killed_sweep(pathlib.Path(folder), *map(int, sys.argv[1:])))
