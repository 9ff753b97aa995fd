"""A folder of runs as three files that can be committed, read wherever a folder of runs is.

    runs.jsonl       the sweep and its first run in full on the first line, then one line a run: what differs from the first
    scores.csv.xz    run,step,length,split,metric,value,count: every measurement, with all digits
    examples.npz     "{run}/{split}/{length}/{metric}": scores of single examples, for intervals over examples; optional
    tuning.json      as in a folder of runs; optional

A run's config is rebuilt from the first line and what differs, and must have the hash that the run is named by. Training
curves are thinned; checkpoints, hosts and times of the clock are left out.
"""

import csv
import io
import json
import lzma
import pathlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnjax import safety
from attnjax.config.parse import cell_id, run_id_of
from attnjax.records import examples, files, jsonl, status
from attnjax.records.files import Problem, problem
from attnjax.records.runs import EXAMPLES, PACKED, RUN, SCORES, TUNING
from attnjax.records.typed import Result, Run, loss, result
from attnjax.records.values import as_dict, clean, printable, text, whole

COLUMNS = ("run", "step", "length", "split", "metric", "value", "count")
LARGEST = 2**28
"""Bytes of a file, or of what is packed in it, beyond which it is not read."""
KNOWN = (*status.STATES, "absent", "unknown")
SHARED = "all"
"""The name, in place of a run's, of scores that all runs of a task share: the documents of a text."""
COMPARED = ("exact_match", "loss_sliding")
"""Metrics whose differences have intervals over examples: the first that a run has."""
POINTS = 50
"""Most points of a training curve that are kept."""
OF_ONE_RUN = (
    "attempt_token cell end_time host memory_bytes name parameters_sha256 population process reason run schema start_time "
    "state steps wall_seconds chance baselines"
)
"""Fields of a manifest that are no property of a machine or a task: dropped, or kept in a place of their own."""


def pack(folder: str | pathlib.Path, out: str | pathlib.Path) -> list[pathlib.Path]:
    """Write the runs of a folder to `out` as packed files, and return these.

    Of scores of single examples those are kept that intervals of a report need: of tests past training.
    Raises ValueError where something in the folder is damaged or a run has no config: nothing is written then.
    """
    from attnjax.records import stored  # which reads packed folders by this module

    folder, out = pathlib.Path(folder), pathlib.Path(out)
    sweep = stored.read(folder)
    if sweep.skipped:
        raise ValueError(f"{folder / sweep.skipped[0].path} {sweep.skipped[0].reason}; nothing was packed")
    if bare := [run.id for run in sweep.runs if not run.config]:
        raise ValueError(f"run {bare[0]} of {folder} has no config; nothing was packed")
    out.mkdir(parents=True, exist_ok=True)
    jsonl.replace(out / PACKED, _lines(sweep.name, sweep.spec, sweep.runs))
    safety.write(out / SCORES, lzma.compress(_csv(sweep.runs).encode(), preset=9 | lzma.PRESET_EXTREME))
    made = [out / PACKED, out / SCORES]
    if arrays := _arrays(sweep.runs):
        data = io.BytesIO()
        np.savez_compressed(data, **arrays)
        safety.write(out / EXAMPLES, data.getvalue())
        made.append(out / EXAMPLES)
    if (folder / TUNING).is_file():
        table = files.read_table(folder / TUNING)
        safety.write(out / TUNING, (json.dumps(table, separators=(",", ":")) + "\n").encode())
        made.append(out / TUNING)
    return made


def _lines(name: str, spec: Mapping[str, Any], runs: Iterable[Run]) -> Iterable[dict[str, Any]]:
    runs = list(runs)
    base, levels = runs[0], []
    for run in runs:
        if (level := _levels(run)) not in levels:
            levels.append(level)
    yield {
        "name": name,
        "protocol": text(spec.get("protocol")),
        "config_file": text(spec.get("config_file")),
        "config": base.config,
        "manifest": _manifest(base),
        "levels": levels,
    }
    for run in runs:
        kept, first = _manifest(run), _manifest(base)
        yield {
            "run": run.id,
            "cell": run.cell,
            "state": run.state,
            "reason": run.reason,
            "step": run.manifest.get("steps"),
            "seconds": run.manifest.get("wall_seconds"),
            "parameters_sha256": run.manifest.get("parameters_sha256"),
            "config": difference(base.config, run.config),
            "manifest": {key: kept.get(key) for key in {**first, **kept} if kept.get(key) != first.get(key)},
            "levels": levels.index(_levels(run)),
            "losses": [list(run.losses[place]) for place in _thinned(len(run.losses))],
        }


def _manifest(run: Run) -> dict[str, Any]:
    left_out = OF_ONE_RUN.split()
    return {key: value for key, value in run.manifest.items() if key not in left_out}


def _levels(run: Run) -> dict[str, Any]:
    """What guessing and n-gram models score at the lengths of a run's task."""
    return {key: run.manifest[key] for key in ("chance", "baselines") if run.manifest.get(key)}


def _thinned(count: int) -> list[int]:
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, POINTS)).tolist()})


def difference(first: Any, other: Any, prefix: str = "") -> dict[str, Any]:
    """Return the dotted keys at which a table differs from the first, with its values; tables of other keys are whole.

    Example:
      >>> difference({"seed": 0, "task": {"name": "copy"}}, {"seed": 1, "task": {"name": "text", "tail": True}})
      {'seed': 1, 'task': {'name': 'text', 'tail': True}}
    """
    if json.dumps(first, sort_keys=True) == json.dumps(other, sort_keys=True):  # 1, 1.0 and true are three values
        return {}
    if isinstance(first, dict) and isinstance(other, dict) and first.keys() == other.keys():
        parts = [difference(first[key], other[key], f"{prefix}.{key}" if prefix else key) for key in other]
        return {key: value for part in parts for key, value in part.items()}
    return {prefix: other}


def _csv(runs: Iterable[Run]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        for row in run.results:
            writer.writerow([run.id, row.step, row.length, row.split, row.metric, repr(row.value), row.count])
    return file.getvalue()


def _past_training(run: Run, split: str, length: int, metric: str) -> bool:
    """Whether these are scores of the first metric that a report compares, or documents, of tests past training."""
    longest = as_dict(run.config.get("task")).get("length_max")
    measured = {row.metric for row in run.final}
    first = next((name for name in COMPARED if name in measured), metric)
    return split == "test" and whole(longest) and length > longest and metric in (first, examples.DOCUMENT)


def _arrays(runs: Iterable[Run]) -> dict[str, Any]:
    """The wanted scores by name, in 8 or 16 bits; documents of a text once, where all runs have the same."""
    found: dict[str, np.ndarray] = {}
    documents: dict[str, list[tuple[str, np.ndarray]]] = {}
    for run in runs:
        if run.examples is None or not run.final or run.examples.step != run.final[0].step:
            continue
        for (split, length, metric), scores in run.examples.scores.items():
            if not _past_training(run, split, length, metric):
                continue
            if metric == examples.DOCUMENT:
                documents.setdefault(f"{split}/{length}/{metric}", []).append((run.id, scores.astype(np.uint32)))
            else:
                real = np.float16 if np.abs(scores).max() < 60_000 else np.float32
                found[f"{run.id}/{split}/{length}/{metric}"] = examples.small(scores, real)
    for name, each in documents.items():
        same = all(np.array_equal(each[0][1], scores) for _, scores in each)
        found |= {f"{SHARED}/{name}": each[0][1]} if same else {f"{run}/{name}": scores for run, scores in each}
    return found


class Content(NamedTuple):
    """What a folder holds: the name and spec of its sweep, its runs, and what was not used."""

    name: str
    spec: dict[str, Any]
    runs: list[Run]
    problems: list[Problem]


def is_packed(folder: pathlib.Path) -> bool:
    """Return whether a folder holds packed runs."""
    return (folder / PACKED).is_file()


def unpack(folder: pathlib.Path) -> Content:
    """Return what a packed folder holds. A line that is no run of the folder is a problem, and is left out.

    Raises ValueError where the first line cannot be read or no run is left, or a newer version wrote it.
    """
    lines = jsonl.read(folder / PACKED)
    if not lines.rows or "config" not in lines.rows[0] or "run" in lines.rows[0]:
        raise ValueError(f"{folder / PACKED} is damaged: its first line does not describe a sweep")
    first, problems, runs = lines.rows[0], lines.problems, []
    scores, more = _scores(folder / SCORES)
    for number, line in enumerate(lines.rows[1:], 2):
        try:
            runs.append(_run(first, line, scores))
        except ValueError as error:
            problems.append(Problem(folder / PACKED, str(error), number))
    if not runs:
        raise ValueError(f"{folder / PACKED} holds no run to report")
    spec = {key: first[key] for key in ("name", "protocol", "config_file") if text(first.get(key))}
    spec = clean({**spec, "runs": [{"run": run.id} for run in runs]})
    arrays, damage = _examples(folder, runs)
    for place, run in enumerate(runs):
        if arrays[run.id] and run.final:
            runs[place] = replace(run, examples=examples.Examples(run.final[0].step, arrays[run.id]))
    return Content(text(spec.get("name")), spec, runs, problems + more + damage)


def _run(first: Mapping[str, Any], line: Mapping[str, Any], scores: Mapping[str, list[dict[str, Any]]]) -> Run:
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
    curve = [loss({"step": step, "loss": value}) for step, value in pairs]
    results = [result(row, name) for row in scores.get(name, ())]
    return Run(
        id=name,
        cell=cell_id(config),
        config=clean(config),
        manifest=clean(manifest),
        state=line["state"] if line.get("state") in KNOWN else "unknown",
        step=line["step"] if whole(line.get("step")) else 0,
        reason=printable(text(line.get("reason"))),
        results=tuple(one for one in results if isinstance(one, Result)),
        losses=tuple(one for one in curve if isinstance(one, tuple)),
    )


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
        decompressor = lzma.LZMADecompressor()
        content = decompressor.decompress(safety.read(path, LARGEST), LARGEST)
        if not decompressor.eof:
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


def _examples(folder: pathlib.Path, runs: list[Run]) -> tuple[dict[str, dict[examples.Key, np.ndarray]], list[Problem]]:
    path, found = folder / EXAMPLES, {run.id: {} for run in runs}
    texts = [run.id for run in runs if as_dict(run.config.get("task")).get("name") == "text"]
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
