"""Reads a folder of runs, live, finished or packed, into typed records: the one reader of stored runs.

Whatever is torn, foreign or missing is listed in `Sweep.skipped`; a run that the sweep lists and the folder lacks is kept,
with the state "absent".
"""

import pathlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from attnjax.config import cell_id
from attnjax.config.files import SWEEP_FILE
from attnjax.records import examples, files, jsonl, packed, runs, status
from attnjax.records.files import Problem, VersionError
from attnjax.records.typed import Run, Sweep, encoding_names, loss, result
from attnjax.records.values import as_dict, clean, printable, text

T = TypeVar("T")


def read(directory: str | pathlib.Path) -> Sweep:
    """Return the records in a folder of runs or a packed folder. The folder may be a link; no link in it is followed.

    Raises:
        ValueError: it holds no run, or a record has a newer schema.
        OSError: there is no such folder, or it cannot be read.
    """
    root = files.real(pathlib.Path(directory))
    name, spec, found, problems = packed.unpack(root) if packed.is_packed(root) else _folder(root)
    told = [
        Problem(pathlib.Path(printable(str(one.path.relative_to(root)))), printable(one.reason), one.line)
        for one in problems
    ]
    return Sweep(name or printable(root.resolve().name), spec, tuple(found), tuple(told))


def _folder(root: pathlib.Path) -> packed.Content:
    there, plan, problems = runs.entries(root), {}, []
    try:
        plan = clean(runs.read_plan(root))
    except VersionError:
        raise
    except (OSError, ValueError) as error:
        problems.append(files.problem(root / SWEEP_FILE, error))
    listed = {entry["run"]: text(entry.get("cell")) for entry in plan.get("runs", ())}
    problems += [Problem(root / name, runs.LINK) for name in there.links]
    problems += [Problem(root / name, "is not part of a sweep") for name in there.foreign]
    found = []
    for name in sorted({*there.runs, *listed}):
        run, more = _run(root / name, listed.get(name, "")) if name in there.runs else (Run(name, listed[name]), [])
        found.append(run)
        problems += more
    if not any(run.config for run in found):
        raise ValueError(f"{root} holds no run: no folder named by 16 hex digits has a readable config.json")
    return packed.Content(text(plan.get("name")), plan, found, problems)


def _run(directory: pathlib.Path, cell: str) -> tuple[Run, list[Problem]]:
    """Return one folder of records, and its problems. `cell` is what sweep.json says, for where the config cannot be read."""
    problems: list[Problem] = []

    def attempt(path: pathlib.Path, function: Callable[[], T], otherwise: T, *, optional: bool = False) -> T:
        """Return what a function reads; `otherwise` where it raises, which is a problem of that path."""
        try:
            return function()
        except VersionError:
            raise
        except (OSError, ValueError) as error:
            if not (optional and isinstance(error, FileNotFoundError)):
                problems.append(files.problem(path, error))
            return otherwise

    config = clean(attempt(directory / runs.CONFIG, lambda: runs.config_table(directory), {}))
    if reason := config and unusable(config):
        problems.append(Problem(directory / runs.CONFIG, reason))
        config = {}
    run = Run(directory.name, cell_id(config) if config else cell, config, state="unknown")
    folder = attempt(directory / runs.RESULT, lambda: runs.folder_of(directory), None)
    if folder is None:
        return run, problems
    path = folder / runs.MANIFEST
    run = replace(run, manifest=clean(attempt(path, lambda: files.read_table(path), {}, optional=True)))
    if found := attempt(folder / status.FILE, lambda: runs.status_in(folder), None):
        run = replace(run, state=found.state, step=found.step, reason=printable(found.reason))
    scores = attempt(folder / examples.FILE, lambda: examples.read(folder), None, optional=True)
    results = jsonl.read(folder / jsonl.RESULTS, lambda row: result(clean(row), run.id))
    losses = jsonl.read(folder / jsonl.METRICS, loss)
    curve = tuple(sorted(dict(losses.rows).items()))
    run = replace(run, results=tuple(results.rows), losses=curve, examples=scores)
    return run, [*problems, *results.problems, *losses.problems]


def unusable(config: Mapping[str, Any]) -> str:
    """Return why a config cannot be that of a run, "" where it can."""
    if not (text(as_dict(config.get("task")).get("name")) and encoding_names(config)):
        return "names no task or no encoding"
    try:
        cell_id(config)
    except ValueError:
        return "holds NaN or infinity, which JSON has not"
    return ""
