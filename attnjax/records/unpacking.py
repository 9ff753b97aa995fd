"""Reads packed folders of runs, see `attnjax.records.packed`."""

import csv
import io
import json
import lzma
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnjax import safety
from attnjax.config.parse import run_id_of
from attnjax.records import examples, jsonl, status
from attnjax.records.files import Problem, problem
from attnjax.records.runs import EXAMPLES, PACKED, RUN, SCORES
from attnjax.records.values import as_dict, text, whole

COLUMNS = ("run", "step", "length", "split", "metric", "value", "count")
LARGEST = 2**28
"""Bytes of a file, or of what is packed in it, beyond which it is not read."""
KNOWN = (*status.STATES, "absent", "unknown")
SHARED = "all"
"""The name, in place of a run's, of scores that all runs of a task share: the documents of a text."""


class Packed(NamedTuple):
    """What a packed folder holds: one table a run, its rows, its scores of examples, and what was not used."""

    spec: dict[str, Any]
    runs: list[dict[str, Any]]
    scores: dict[str, list[dict[str, Any]]]
    examples: dict[str, dict[examples.Key, np.ndarray]]
    problems: list[Problem]


def is_packed(folder: pathlib.Path) -> bool:
    """Return whether a folder holds packed runs."""
    return (folder / PACKED).is_file()


def read(folder: pathlib.Path) -> Packed:
    """Return what a packed folder holds. A line that is no run of the folder is a problem, and is left out.

    Raises ValueError where the first line cannot be read or no run is left, or a newer version wrote it.
    """
    lines = jsonl.read_rows(folder / PACKED, lambda table: table)
    if not lines.rows or "config" not in lines.rows[0] or "run" in lines.rows[0]:
        raise ValueError(f"{folder / PACKED} is damaged: its first line does not describe a sweep")
    first, problems, runs = lines.rows[0], list(lines.problems), []
    for number, line in enumerate(lines.rows[1:], 2):
        try:
            runs.append(_run(first, line))
        except ValueError as error:
            problems.append(Problem(folder / PACKED, str(error), number))
    if not runs:
        raise ValueError(f"{folder / PACKED} holds no run to report")
    spec = {key: first[key] for key in ("name", "protocol", "config_file") if text(first.get(key))}
    spec["runs"] = [{"run": run["run"]} for run in runs]
    found, more = _scores(folder / SCORES)
    arrays, damage = _examples(folder, runs)
    return Packed(spec, runs, found, arrays, problems + more + damage)


def _run(first: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """One run with its whole config. Raises ValueError where a part is missing or the config is not that of the run's id."""
    name, levels = text(line.get("run")), first.get("levels")
    config = applied(as_dict(first["config"]), as_dict(line.get("config")))
    if not RUN.fullmatch(name) or run_id_of(config) != name:
        raise ValueError(f"is no run: its config does not have the hash {name[:16]!r}")
    place, losses = line.get("levels"), line.get("losses")
    known = isinstance(levels, list) and whole(place) and place < len(levels)
    moved = {"wall_seconds": "seconds", "parameters_sha256": "parameters_sha256", "steps": "step"}
    manifest = {**as_dict(first.get("manifest")), **as_dict(line.get("manifest"))}
    manifest |= {key: line[old] for key, old in moved.items() if line.get(old) is not None}
    manifest |= as_dict(levels[place]) if known else {}
    pairs = [pair for pair in losses if isinstance(pair, list) and len(pair) == 2] if isinstance(losses, list) else []
    return {
        "run": name,
        "state": line["state"] if line.get("state") in KNOWN else "unknown",
        "reason": text(line.get("reason")),
        "config": config,
        "manifest": manifest,
        "losses": [{"step": step, "loss": loss} for step, loss in pairs],
    }


def applied(first: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table that `difference` was made from. Raises ValueError where a key leads nowhere."""
    table = json.loads(json.dumps(first))
    for key, value in changes.items():
        if not key:
            return as_dict(value)
        *way, last = key.split(".")
        place = table
        for name in way:
            place = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise ValueError(f"no table {'.'.join(way)[:100]!r} in the config of the first run")
        place[last] = value
    return table


def _scores(path: pathlib.Path) -> tuple[dict[str, list[dict[str, Any]]], list[Problem]]:
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        unpacking = lzma.LZMADecompressor()
        content = unpacking.decompress(safety.read(path, LARGEST), LARGEST)
        if not unpacking.eof:
            raise ValueError(f"{path} is damaged: it is cut, or more than {LARGEST // 2**20} MiB are packed in it")
        rows = csv.reader(io.StringIO(content.decode()))
        if next(rows, None) != list(COLUMNS):
            raise ValueError(f"{path} is damaged: its columns are not {','.join(COLUMNS)}")
        for run, step, length, split, metric, value, count in rows:
            row = {"step": int(step), "length": int(length), "split": split, "metric": metric}
            found.setdefault(run, []).append({**row, "value": float(value), "count": int(count)})
    except (OSError, ValueError, lzma.LZMAError, csv.Error) as error:
        return {}, [problem(path, error)]
    return found, []


def _examples(
    folder: pathlib.Path, runs: list[dict[str, Any]]
) -> tuple[dict[str, dict[examples.Key, np.ndarray]], list[Problem]]:
    path, found = folder / EXAMPLES, {run["run"]: {} for run in runs}
    texts = [run["run"] for run in runs if as_dict(run["config"].get("task")).get("name") == "text"]
    try:
        arrays = examples.load(path)
    except FileNotFoundError:
        return found, []
    except (OSError, ValueError) as error:
        return found, [problem(path, error)]
    wrong = []
    for name, array in arrays.items():
        run, _, rest = name.partition("/")
        if (run != SHARED and run not in found) or (key := examples.key(rest, array)) is None:
            wrong.append(Problem(path, f"holds {name[:80]!r}, which is no list of scores of its runs"))
            continue
        for one in texts if run == SHARED else [run]:
            found[one][key] = array.astype(np.float64)
    return found, wrong[: jsonl.TOLD]
