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
from typing import Any

import numpy as np

from attnjax import safety
from attnjax.records import examples, files, jsonl, stored
from attnjax.records.runs import EXAMPLES, PACKED, SCORES, TUNING
from attnjax.records.stored import Run
from attnjax.records.unpacking import COLUMNS, SHARED
from attnjax.records.values import as_dict, text, whole

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
