"""All that can be read in a folder of runs, sound or not: nothing found there is fatal, and nothing is passed over."""

import pathlib
from typing import Any, NamedTuple

from attnjax.config import RunConfig
from attnjax.config.files import SWEEP_FILE
from attnjax.sweep import files, records, status, store

OURS = (SWEEP_FILE, "index.sqlite", store.LOGS, "report", "README.md")


class Run(NamedTuple):
    """One run's folder. `config` and `status` are None where they are damaged; `problems` says what is."""

    run: str
    directory: pathlib.Path
    config: RunConfig | None
    status: status.Status | None
    problems: list[str]

    def metrics(self) -> records.Records:
        """The training log."""
        return records.read(self.directory / "metrics.jsonl")

    def results(self) -> records.Records:
        """The evaluations, each measurement once."""
        found = records.read(self.directory / "results.jsonl")
        unique = {records.identity(record): record for record in reversed(found.tables)}
        return records.Records(list(unique.values())[::-1], found.damaged)

    def manifest(self) -> dict[str, Any]:
        """The manifest; {} where it is missing or damaged."""
        try:
            return files.read_table(self.directory / "manifest.json")
        except ValueError:
            return {}


class Found(NamedTuple):
    """The runs, names of what does not belong to a sweep, and what is damaged."""

    runs: list[Run]
    foreign: list[str]
    problems: list[str]


def scan(root: pathlib.Path) -> Found:
    """Everything in a folder of runs, in the order of its plan. Raises ValueError where the folder cannot be read."""
    try:
        names = sorted(path.name for path in root.iterdir())
    except OSError as error:
        raise ValueError(f"{root} cannot be read: {error.strerror or error}") from None
    order, problems = _planned(root)
    runs, foreign = [], []
    for name in names:
        if store.RUN.fullmatch(name) and (root / name).is_dir() and not (root / name).is_symlink():
            runs.append(_run(root / name))
        elif name not in OURS and not name.startswith((".", "index.sqlite-")):
            foreign.append(name)
    runs.sort(key=lambda run: (order.get(run.run, len(order)), run.run))
    problems += [problem for run in runs for problem in run.problems]
    problems += [f"{root / run.run} is not in the plan" for run in runs if order and run.run not in order]
    return Found(runs, foreign, problems)


def _planned(root: pathlib.Path) -> tuple[dict[str, int], list[str]]:
    try:
        return {entry.run: number for number, entry in enumerate(store.load(root).runs)}, []
    except ValueError as error:
        return {}, [str(error)]


def _run(directory: pathlib.Path) -> Run:
    problems: list[str] = []

    def attempt(read: Any) -> Any:
        try:
            return read(directory)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            return None

    return Run(directory.name, directory, attempt(store.read_config), attempt(status.read), problems)
