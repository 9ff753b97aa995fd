"""What a folder of runs carries: many workers on one folder, and how the time of each operation grows with its runs.

    python -m tests.engines.scale                                    about half an hour on two cores, and 4 GB of disk
    python -m tests.engines.scale --sizes 100 1000 --runs 50 --workers 2
    python -m tests.engines.scale --out tests/engines/records

First, 1,000 trainings of next to nothing by eight `attnjax work` processes on one folder. Then folders of 1,000, 10,000 and
100,000 runs of which all but the last have ended, written by this script and removed afterwards: their times are those of
the processor, in user and system code. The slope is that of log time over log runs between the smallest and the largest
folder: 1 is linear. The record names machine and versions.
"""

import argparse
import contextlib
import io
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

SWEEP = pathlib.Path(__file__).parents[1] / "sweep"
sys.path.insert(0, str(SWEEP))

from operations import counted  # noqa: E402 (beside the training functions that workers import)

from attnjax import cli  # noqa: E402
from attnjax.config import parse  # noqa: E402
from attnjax.records import inventory, jsonl, status  # noqa: E402
from attnjax.records.runs import MANIFEST, read_manifest  # noqa: E402
from attnjax.sweep import ExecutionConfig, Store, load, manifest, plan, prepare, run_here, scan, vary  # noqa: E402
from attnjax.sweep.execute import states  # noqa: E402

SIZES = (1_000, 10_000, 100_000)
CONFIG = {
    "name": "scale",
    "train": {"steps": 1, "checkpoint_every": 1},
    "task": {"name": "copy", "length_max": 8, "options": {"work": 1}},
    "evaluate": {"lengths": [8, 16]},
}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the record."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.scale", description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/engines"), help="folder of the record")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="runs of the simulated folders")
    parser.add_argument("--runs", type=int, default=1_000, help="runs that workers train; 0: none")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument(
        "--before", type=pathlib.Path, help="the record of an earlier version, to be kept beside this one"
    )
    chosen = parser.parse_args(arguments)
    machine = manifest.of_machine()
    record: dict[str, Any] = {
        "date": manifest.now()[:10],
        **{key: machine[key] for key in ("attnjax", "processor", "cores", "os", "python", "version_jax")},
        "load_average_before": round(os.getloadavg()[0], 1),
    }
    with tempfile.TemporaryDirectory() as name:
        if chosen.runs:
            record["workers"] = trained(pathlib.Path(name) / "trained", chosen.runs, chosen.workers)
        record["growth"] = growth(pathlib.Path(name), chosen.sizes)
    if chosen.before:
        earlier = json.loads(chosen.before.read_text())
        record["before"] = {name: earlier[name] for name in ("workers", "growth") if name in earlier}
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "scale.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))
    return 0


def trained(root: pathlib.Path, runs: int, workers: int) -> dict[str, Any]:
    """So many runs by so many processes: what each run costs beside its training, and how fast leases are claimed."""
    store = planned(root, runs)
    command = [sys.executable, "-m", "attnjax", "work", str(root), "--trainer", "fake_training:train"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SWEEP), *sys.path])}
    begin = time.monotonic()
    processes = [
        subprocess.Popen([*command, "--population", "1", "--wait"], env=environment, stdout=subprocess.DEVNULL)
        for _ in range(workers)
    ]
    until(lambda: any(root.glob("*/lease-000001")))
    first = time.monotonic()
    codes = [process.wait() for process in processes]
    end = time.monotonic()
    found = scan(root)
    assert set(codes) == {0}
    assert [run.status.state for run in found.runs if run.status] == ["done"] * runs
    leases = sum(len(list(run.directory.glob("lease-*"))) for run in found.runs)
    training = sum(read_manifest(store.directory(entry.run))["wall_seconds"] for entry in store.runs)
    return {
        "runs": runs,
        "workers": workers,
        "leases": leases,
        "seconds_until_the_first_lease": round(first - begin, 2),
        "seconds": round(end - first, 2),
        "runs_per_second": round(runs / (end - first), 1),
        "worker_seconds_per_run": round((end - first) * workers / runs, 4),
        "of_these_in_training": round(training / runs, 4),
    }


def growth(folder: pathlib.Path, sizes: list[int]) -> dict[str, Any]:
    """Seconds of the processor of each operation on folders of these sizes, file operations for each run, and slopes."""
    seconds: dict[str, list[float]] = {}
    files: dict[str, float] = {}
    for size in sizes:
        root = folder / str(size)
        runs = plan(parse(CONFIG), vary("seed", range(size)))
        seconds.setdefault("prepare", []).append(timed(lambda root=root, runs=runs: prepare(root, "scale", runs)))
        del runs
        store = load(root)
        for entry in store.runs[:-1]:
            end(store.directory(entry.run))
        for name, operation in operations(root, store).items():
            with counted() if size == sizes[0] else contextlib.nullcontext({}) as calls:
                seconds.setdefault(name, []).append(timed(operation))
            if calls:
                files[name] = round(sum(calls.values()) / size, 1)
            print(f"{size:>7} runs  {name:<8}{seconds[name][-1]:10.3f} s", file=sys.stderr, flush=True)
        shutil.rmtree(root)
    between = math.log(sizes[-1] / sizes[0]) if len(sizes) > 1 else math.inf
    return {
        "sizes": list(sizes),
        "seconds": {name: [round(one, 3) for one in found] for name, found in seconds.items()},
        "slope": {
            name: round(math.log(max(found[-1], 1e-9) / max(found[0], 1e-9)) / between, 2)
            for name, found in seconds.items()
        },
        "file_operations_per_run": files,
    }


def operations(root: pathlib.Path, store: Store) -> dict[str, Callable[[], Any]]:
    """What is measured: reading the plan, a part of it for a worker, all states, the list, and claiming the one run left."""
    names = [entry.run for entry in store.runs]
    one = ExecutionConfig(population=1)
    return {
        "load": lambda: load(root),
        "only": lambda: store.only(names),
        "states": lambda: states(store),
        "list": lambda: listed(root),
        "claim": lambda: run_here(store, lambda configs, directories, context: None, one),
    }


def planned(root: pathlib.Path, runs: int) -> Store:
    """A folder of so many runs that have not begun."""
    return prepare(root, "scale", plan(parse(CONFIG), vary("seed", range(runs))))


def end(run: pathlib.Path) -> None:
    """The files of a run that is done, as training leaves them."""
    jsonl.append(run / jsonl.METRICS, {"step": 1, "loss": 1.0})
    row = {"run": run.name, "step": 1, "metric": "exact_match", "value": 0.5, "count": 1}
    splits = ("train", "test")
    jsonl.append(run / jsonl.RESULTS, *({**row, "split": split, "length": 8 * 2**i} for i, split in enumerate(splits)))
    fields = {"schema": 1, "state": "done", "steps": 1, "population": [run.name], inventory.FIELD: inventory.take(run)}
    (run / MANIFEST).write_text(json.dumps(fields, indent=1) + "\n")
    (run / status.FILE).write_text(json.dumps({"schema": 1, **status.Status("done", 1)._asdict()}, indent=1) + "\n")


def listed(root: pathlib.Path) -> None:
    """`attnjax list runs`."""
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main(["list", "runs", str(root)]) == 0


def timed(operation: Callable[[], Any]) -> float:
    """Seconds of the processor that an operation takes: other processes of the machine matter little for them."""
    begin = time.process_time()
    operation()
    return time.process_time() - begin


def until(condition: Callable[[], bool]) -> None:
    """Look until a condition holds, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
