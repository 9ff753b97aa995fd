"""Times contenders in turns, compares their results, and writes the ratios into a table."""

import csv
import pathlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from attnjax.sweep import manifest
from attnjax.typing import PyTree

COLUMNS = (
    "run",
    "suite",
    "case",
    "T",
    "ours",
    "peer",
    "unit",
    "figure",
    "peer_figure",
    "ratio",
    "low",
    "high",
    "error",
)
RUN_COLUMNS = ("run", "date", "commit", "processor", "cores", "device", "python", "jax", "command")
SHORT = 10.0


def timed(function: Callable[..., Any], *args: Any) -> Callable[[], float]:
    """Returns a contender: each call runs the function, waits for the result, and returns the seconds that it took."""

    def run() -> float:
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        return time.perf_counter() - start

    return run


def interleaved(contenders: Mapping[str, Callable[[], float]], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Returns the seconds of each contender in each round: 3 rounds at least, `rounds` at most, none begun after `seconds`.

    The order rotates from round to round, so that other load of the machine strikes all alike. One call of each comes first and
    does not count. A contender that takes less than 10 seconds runs twice in a round and the second run counts: a program gives
    its memory back after its result is there, and the next one would wait for that.
    """
    seen = {name: run() for name, run in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order, start = list(contenders), time.perf_counter()
    for i in range(rounds):
        if i >= 3 and time.perf_counter() - start > seconds:
            break
        for name in order:
            once = contenders[name]()
            taken[name].append(contenders[name]() if seen[name] < SHORT else once)
        order = [*order[1:], order[0]]
    return taken


def difference(ours: PyTree, theirs: PyTree) -> float:
    """Returns the largest |ours - theirs| of all arrays, relative to the largest |theirs| of the array.

    The unit is at least a tenth of the largest number of all arrays, because some gradients are 0 but for rounding. A result
    that is not finite differs by infinity.
    """
    pairs = jax.tree.map(lambda a, b: (np.asarray(a, np.float64), np.asarray(b, np.float64)), ours, theirs)
    flat = jax.tree.leaves(pairs, is_leaf=lambda x: isinstance(x, tuple) and isinstance(x[0], np.ndarray))
    if not all(np.isfinite(a).all() and np.isfinite(b).all() for a, b in flat):
        return float("inf")
    least = max(0.1 * max(np.abs(b).max(initial=0.0) for _, b in flat), 1e-30)
    return float(max(np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), least) for a, b in flat))


class Table(NamedTuple):
    """Where the rows of one run of the command go, and how thorough it is."""

    folder: pathlib.Path
    run: str
    rounds: int = 15
    seconds: float = 30.0
    smoke: bool = False

    @classmethod
    def begin(cls, folder: pathlib.Path, command: str, **options: Any) -> "Table":
        """Describes this machine in runs.csv, and returns the table."""
        here, backend, now = manifest.of_machine(), manifest.of_jax(), manifest.now()
        about = {"run": now[:19], "date": now[:10], "python": platform.python_version(), "jax": jax.__version__}
        about |= {"device": backend["device_kind"], "command": f"python -m experiments.speed {command}"}
        about |= {"commit": (here["commit"] or "")[:7], "processor": here["processor"], "cores": here["threads"]}
        folder.mkdir(parents=True, exist_ok=True)
        _append(folder / "runs.csv", RUN_COLUMNS, about)
        return cls(folder, now[:19], **options)

    def race(self, contenders: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
        """Returns `interleaved` with the rounds and seconds of this run."""
        return interleaved(contenders, self.rounds, self.seconds)

    def add(self, mine: Sequence[float], theirs: Sequence[float], *, unit: str = "s", **fields: Any) -> None:
        """Appends the row of two contenders, whose ratio (theirs over ours) is taken inside each round, and prints it."""
        low, median, high = np.quantile([b / a for a, b in zip(mine, theirs, strict=True)], (0.25, 0.5, 0.75))
        row = {"run": self.run, "unit": unit, "ratio": median, "low": low, "high": high, **fields}
        row |= {"figure": np.median(mine), "peer_figure": np.median(theirs)}
        row = {name: f"{x:.6g}" if isinstance(x := row.get(name, ""), float) else x for name in COLUMNS}
        _append(self.folder / "records.csv", COLUMNS, row)
        print("  ".join(f"{row[name]}" for name in ("suite", "case", "T", "ours", "peer", "ratio")), flush=True)


def _append(path: pathlib.Path, columns: Sequence[str], row: Mapping[str, Any]) -> None:
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
