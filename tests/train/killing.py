"""A tiny run as a process of its own, to be killed at chosen moments, and what is left of it; a sweep whose workers are killed.

python -m tests.train.killing 24 12        a sweep of 24 runs whose workers are killed 12 times, beside an undisturbed one
"""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from attnjax.records.runs import folder_of
from attnjax.sweep import Event, ExecutionConfig, Run, plan, prepare, product, run_workers, scan, seeds, vary
from attnjax.sweep.claim import holder, is_running

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
    """`attnjax run` on `config.json` in `root`, made anew by whoever calls this first."""
    config = root / "config.json"
    if not config.exists():
        config.write_text(json.dumps(CONFIG))
    command = [sys.executable, "-m", "attnjax", "run", str(config), "--out", str(root / out), *arguments]
    return subprocess.Popen(
        command, env=environment(root / "cache"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What it printed; it must have ended well."""
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    return output


def the_run(folder: pathlib.Path) -> pathlib.Path | None:
    """The folder of the only run, once it is there."""
    return next(iter(folder.glob("*/config.json")), folder).parent if folder.is_dir() else None


def strike(process: subprocess.Popen[str], folder: pathlib.Path, phase: str, seed: int, number: int) -> str:
    """Send a signal at a random moment of a phase of this life; returns what the process had printed."""
    draw = random.Random(seed)
    if phase == "start-up":
        time.sleep(draw.uniform(0.2, 4.0))
    else:
        before, deadline = _counts(folder), time.monotonic() + PATIENCE
        while not _reached(phase, before, folder, draw.choice([1, 2])):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, f"no {phase} in {PATIENCE} s"
            time.sleep(0.002)
        time.sleep(draw.choice([0.0, 0.005, 0.02, 0.05]) * draw.random())
    assert process.poll() is None, "it ended before the signal: make the run longer"
    os.kill(process.pid, number)
    return process.communicate(timeout=PATIENCE)[0]


def _counts(folder: pathlib.Path) -> tuple[int, int, int]:
    """Newest step, lines of results, and how many half-written checkpoints there are."""
    run = the_run(folder)
    if run is None or not (folder_of(run) / "checkpoints").is_dir():
        return 0, 0, 0
    run = folder_of(run)
    names = [path.name for path in (run / "checkpoints").iterdir()]
    results = run / "results.jsonl"
    lines = results.read_text().count("\n") if results.exists() else 0
    return (
        max([0, *(int(name) for name in names if name.isdecimal())]),
        lines,
        sum(name.startswith("partial") for name in names),
    )


def _reached(phase: str, before: tuple[int, int, int], folder: pathlib.Path, more: int) -> bool:
    step, lines, partial = _counts(folder)
    if phase == "evaluation":
        return step > before[0] and lines > before[1]
    trained = step >= before[0] + 2 * more
    return trained and (phase == "training" or partial > 0)


def records(folder: pathlib.Path) -> tuple[list[dict], str, dict]:
    """Training log without the time, results as they stand in the file, and manifest of the only run."""
    run = the_run(folder)
    assert run is not None
    run = folder_of(run)
    log = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # The checksum of a line is one of its time too.
    log = [{name: value for name, value in record.items() if name not in ("seconds", "crc32")} for record in log]
    results = run / "results.jsonl"
    found = results.read_text() if results.exists() else ""
    return log, found, json.loads((run / "manifest.json").read_text())


def status(folder: pathlib.Path) -> dict:
    """How the only run stands."""
    run = the_run(folder)
    assert run is not None
    run = folder_of(run)
    return json.loads((run / "status.json").read_text())


def killed_sweep(root: pathlib.Path, runs: int, kills: int) -> str:
    """Train `runs` runs, a multiple of 4, in pairs on 3 workers, which are killed at random; returns a sentence.

    Raises AssertionError unless every run has one result, and records and parameters with the bits of an undisturbed sweep.
    """
    base = {**CONFIG, "train": {**CONFIG["train"], "steps": 20}}
    cells = product(
        vary("model.encoding", ["nope", "alibi"]), vary("train.learning_rate", [0.1, 0.01]), seeds(runs // 4)
    )
    found, victims, draw = {}, [], random.Random(0)
    for name in ("calm", "killed"):
        store = prepare(root / name, "tiny", plan(base, cells))
        moments = sorted(draw.sample(range(2 * runs, 18 * runs), kills)) if name == "killed" else []

        def strike(event: Event, store=store, moments=moments, seen=[]) -> None:  # noqa: B006 (one list for each sweep)
            seen.append(event)
            owner = holder(store.directory(event.run))
            if moments and len(seen) >= moments[0] and owner and is_running(owner.pid, owner.started):
                moments.pop(0)
                os.kill(owner.pid, signal.SIGKILL)
                victims.append((owner.pid, event.step))

        alone = ExecutionConfig(population=2)
        summary = run_workers(store, "attnjax.train:train", 3, alone, threads=1, progress=strike)
        assert set(summary.states.values()) == {"done"}, summary
        for entry in store.runs:
            assert sorted(path.name for path in store.directory(entry.run).iterdir()) == ["config.json", "result"]
        found[name] = {run.run: (run.manifest()["parameters_sha256"], logged(run)) for run in scan(store.root).runs}
    assert len(victims) == kills, victims
    assert found["calm"] == found["killed"]
    steps = ", ".join(str(step) for _, step in victims)
    return f"{runs} runs, {kills} kills at steps {steps}: one result each, parameters and records bit-equal"


def logged(run: Run) -> tuple[str, str]:
    """Records of a run without times; each result must be there once."""
    results = (run.folder / "results.jsonl").read_text()
    lines = [json.loads(line) for line in results.splitlines()]
    assert len({(one["step"], one["length"], one["metric"], one["split"]) for one in lines}) == len(lines)
    steps = [{name: value for name, value in record.items() if name != "seconds"} for record in run.metrics().tables]
    assert [record["step"] for record in steps] == list(range(2, run.config.train.steps + 1, 2))
    return results, json.dumps(steps)


EXIT = {signal.SIGKILL: -9, signal.SIGTERM: 130, signal.SIGINT: 130}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(environment(pathlib.Path(folder, "cache")))
        print(killed_sweep(pathlib.Path(folder), *map(int, sys.argv[1:])))
