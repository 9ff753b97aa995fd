"""All that can be read in a folder of runs, sound or not: nothing found there is fatal, and nothing is passed over."""

import pathlib
from typing import Any, NamedTuple

from attnjax.config import RunConfig
from attnjax.config.files import SWEEP_FILE
from attnjax.folder import enter
from attnjax.sweep import files, inventory, records, status, store

OURS = (SWEEP_FILE, "index.sqlite", store.LOGS, "report", "README.md")


class Run(NamedTuple):
    """One run's folder. `config` and `status` are None where they are damaged; `problems` says what is."""

    run: str
    directory: pathlib.Path
    config: RunConfig | None
    status: status.Status | None
    problems: list[str]

    def metrics(self) -> records.Records:
        """The training log. Raises ValueError where a newer version wrote it."""
        return records.read(self.directory / "metrics.jsonl")

    def results(self) -> records.Records:
        """The evaluations, each measurement once. Raises ValueError where a newer version wrote them."""
        found = records.read(self.directory / "results.jsonl")
        unique = {records.identity(record): record for record in reversed(found.tables)}
        return found._replace(tables=list(unique.values())[::-1])

    def manifest(self) -> dict[str, Any]:
        """The manifest; {} where it is missing, damaged or cannot be read."""
        try:
            return _manifest(self.directory)
        except (OSError, ValueError):
            return {}

    def unchecked(self) -> int:
        """How many lines of its records end without a checksum, because an earlier version wrote them."""
        return sum(records.unchecked(self.directory / name) for name in records.FILES)


class Found(NamedTuple):
    """The runs, names of what does not belong to a sweep, and what is damaged."""

    runs: list[Run]
    foreign: list[str]
    problems: list[str]

    def without_checksums(self) -> str:
        """A sentence about lines without a checksum, "" where there are none."""
        counts = [count for run in self.runs if (count := run.unchecked())]
        if not counts:
            return ""
        return (
            f"{sum(counts)} lines in the records of {len(counts)} of {len(self.runs)} runs have no checksum: they are of an "
            "earlier version, and what has changed in them since cannot be told"
        )


def scan(root: pathlib.Path) -> Found:
    """Everything in a folder of runs, in the order of its plan; the folder itself may be a link, nothing in it.

    Raises ValueError where the folder cannot be read.
    """
    root = files.real(root)
    try:
        with enter(root) as folder:
            kinds = {name: folder.kind(name) for name in folder.names()}
    except OSError as error:
        raise ValueError(f"{root} cannot be read: {error.strerror or error}") from None
    order, problems = _planned(root)
    runs, foreign = [], []
    for name, kind in kinds.items():
        if store.RUN.fullmatch(name) and kind == "folder":
            runs.append(_run(root / name))
        elif kind == "link" or (name not in OURS and not name.startswith((".", "index.sqlite-"))):
            foreign.append(name)
            problems += [f"{root / name} is a link, which is not followed"] * (kind == "link")
    runs.sort(key=lambda run: (order.get(run.run, len(order)), run.run))
    problems += [problem for run in runs for problem in run.problems]
    problems += [f"{root / run.run} is not in the plan" for run in runs if order and run.run not in order]
    return Found(runs, foreign, problems)


def _planned(root: pathlib.Path) -> tuple[dict[str, int], list[str]]:
    try:
        return {entry.run: number for number, entry in enumerate(store.load(root).runs)}, []
    except (OSError, ValueError) as error:
        return {}, [str(error)]


def _manifest(directory: pathlib.Path) -> dict[str, Any]:
    return files.read_table(directory / "manifest.json")


def _run(directory: pathlib.Path) -> Run:
    problems: list[str] = []

    def attempt(read: Any) -> Any:
        try:
            return read(directory)
        except (ValueError, OSError) as error:
            problems.append(str(error))
            return None

    config, state = attempt(store.read_config), attempt(status.read)
    if state is not None:
        manifest = attempt(_manifest) if state.state in inventory.ENDED else None
        different = inventory.differences(directory, state.state, manifest or {})
        problems += [f"{directory / name} {text}" for name, text in different.items()]
    return Run(directory.name, directory, config, state, problems)
