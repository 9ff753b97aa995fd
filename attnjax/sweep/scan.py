"""Reads everything in a folder of runs, sound or damaged. No damage is fatal, and all of it is reported."""

import pathlib
from typing import Any, NamedTuple

from attnjax.config import RunConfig, parse
from attnjax.records import files, jsonl, runs, status
from attnjax.records.remote import local
from attnjax.sweep import store


class Run(NamedTuple):
    """One run's folder. `config` and `status` are None where they are damaged; `problems` says what is."""

    run: str
    directory: pathlib.Path
    config: RunConfig | None
    status: status.Status | None
    problems: list[str]

    def metrics(self) -> jsonl.Records:
        """The training log. Raises ValueError where a newer version wrote it."""
        return jsonl.read(self.directory / jsonl.METRICS)

    def results(self) -> jsonl.Records:
        """The evaluations, each measurement once. Raises ValueError where a newer version wrote them."""
        found = jsonl.read(self.directory / jsonl.RESULTS)
        unique = {jsonl.identity(record): record for record in reversed(found.tables)}
        return found._replace(tables=list(unique.values())[::-1])

    def manifest(self) -> dict[str, Any]:
        """The manifest; {} where it is missing, damaged or cannot be read."""
        try:
            return runs.read_manifest(self.directory)
        except OSError:
            return {}

    def unchecked(self) -> int:
        """How many lines of its records end without a checksum, because an earlier version wrote them."""
        return sum(jsonl.unchecked(self.directory / name) for name in jsonl.FILES)


class Found(NamedTuple):
    """The runs, names of what does not belong to a sweep, and what is damaged."""

    runs: list[Run]
    foreign: list[str]
    problems: list[str]

    def without_checksums(self) -> str:
        """A sentence about lines without a checksum; "" if there are none."""
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
    root = files.real(local(root, store.MIRRORED))
    try:
        there = runs.entries(root)
    except OSError as error:
        raise ValueError(f"{root} cannot be read: {error.strerror or error}") from None
    order, problems = _planned(root)
    problems += [f"{root / name} {runs.LINK}" for name in there.links]
    found = sorted(
        (read_run(root / name) for name in there.runs), key=lambda run: (order.get(run.run, len(order)), run.run)
    )
    problems += [problem for run in found for problem in run.problems]
    problems += [f"{root / run.run} is not in the plan" for run in found if order and run.run not in order]
    return Found(found, sorted(there.links + there.foreign), problems)


def _planned(root: pathlib.Path) -> tuple[dict[str, int], list[str]]:
    try:
        return {entry.run: number for number, entry in enumerate(store.load(root).runs)}, []
    except (OSError, ValueError) as error:
        return {}, [str(error)]


def read_run(directory: pathlib.Path) -> Run:
    """One run, from its folder. Without a status it has not begun: a sweep writes it right after the config."""
    found = runs.read(directory)
    problems, state = found.problems + found.different, found.status
    if new := [one for one in problems if (one.path.name, one.kind) == (status.FILE, "missing")]:
        problems, state = [one for one in problems if one not in new], status.Status()
    sentences, config = [str(one) for one in problems], None
    if found.config:
        try:
            config = parse(found.config)
        except ValueError as error:
            sentences.append(f"{directory / runs.CONFIG}: {error}")
    return Run(directory.name, directory, config, state, sentences)
