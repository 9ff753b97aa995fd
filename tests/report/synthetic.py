"""A made-up sweep on disk, as the experiment layer writes it: known scores, and every kind of ending."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnjax.records.examples import DOCUMENT, Examples
from attnjax.records.typed import Sweep

Values = Mapping[int, float]
EXAMPLES = 40
"""How many examples `with_examples` has."""
ENCODINGS = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5")
REACH = {"nope": 2.0, "sinusoidal": 0.6, "learned": 0.2, "rope": 1.2, "alibi": 3.5, "t5": 5.0}
"""How many training lengths an encoding lasts in these inventions."""


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def config(task: str, encoding: str, seed: int, /, length_max: int = 20, **changes: Any) -> dict[str, Any]:
    """A run's config; `changes` replace top-level fields."""
    fields = {
        "schema": 1,
        "name": "synthetic",
        "task": {"name": task, "options": {}, "form": "decoder", "length_min": 1, "length_max": length_max},
        "model": {"layers": 2, "model": 64, "heads": 4, "encoding": {"name": encoding, "options": {}}},
        "positions": {"policy": "arange", "maximum": None, "at_test": "arange"},
        "train": {"steps": 400, "batch": 32, "learning_rate": 1e-3},
        "evaluate": {"lengths": [20, 40, 80, 160], "validation_lengths": [30], "count": 512},
        "seed": seed,
        "data_seed": seed + 100,
    }
    return fields | changes


def run_id(fields: dict[str, Any]) -> str:
    return digest(fields)


def cell_id(fields: dict[str, Any]) -> str:
    return digest({key: value for key, value in fields.items() if key not in ("seed", "data_seed")})


def lines(rows: list[dict[str, Any]]) -> str:
    """Lines of a log."""
    return "".join(canonical({"schema": 1, **row}) + "\n" for row in rows)


def accuracy(encoding: str, ratio: float, rng: np.random.Generator) -> float:
    """512 examples of a made-up run at `ratio` training lengths."""
    right = 1 / (1 + np.exp(4 * np.log2(max(ratio, 0.1)) - 4 * np.log2(1 + REACH.get(encoding, 1.0)) + rng.normal()))
    return float(rng.binomial(512, min(right, 1.0)) / 512)


def measured(fields: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Results rows of one run, with what its task metrics."""
    trained, encoding = fields["task"].get("length_max", 20), fields["model"]["encoding"]["name"]
    rows = []
    offset = rng.normal() * 0.1
    for length in (trained // 4, trained // 2, trained, int(1.5 * trained), 2 * trained, 4 * trained, 8 * trained):
        split = "train" if length <= trained else "validation" if length == int(1.5 * trained) else "test"
        split = "test" if length == trained else split
        row = {"schema": 1, "run": run_id(fields), "step": 400, "length": length, "count": 512, "split": split}
        if fields["task"]["name"] == "text":
            growth = np.log1p(max(0.0, length / trained - 1) / REACH.get(encoding, 1.0))
            for metric, cost in (("loss_nonoverlapping", 0.0), ("loss_sliding", 0.06)):
                rows.append(row | {"metric": metric, "value": round(1.35 + growth + offset + cost, 4)})
        else:
            free = accuracy(encoding, length / trained, rng)
            for metric, value in (("exact_match", free), ("exact_match_oracle_length", min(1.0, free + 8 / 512))):
                rows.append(row | {"metric": metric, "value": value})
            rows.append(row | {"metric": "token_accuracy", "value": 1 - (1 - free) / 3})
    return rows


def write_run(root: Path, fields: dict[str, Any], state: str = "done", **files: str) -> str:
    """One run that has ended; `files` (names without their ending) replace what its folder would hold."""
    run = run_id(fields)
    rng = np.random.default_rng(int(run, 16))
    folder = root / run
    (folder / "result").mkdir(parents=True)
    text = fields["task"]["name"] == "text"
    lengths = {row["length"] for row in measured(fields, np.random.default_rng(0))}
    chance = {} if text else {str(length): {"token": 0.1, "exact": 0.1**length} for length in lengths}
    manifest = {
        "schema": 1,
        "python": "3.11",
        "jax": "0.10.2",
        "device": "cpu",
        "seed": fields["seed"],
        "chance": chance,
    }
    steps = range(0, 401 if state == "done" else 160, 20)
    noise = rng.normal(size=len(steps)) * 0.05
    losses = [0.2 + 2 * np.exp(-step / 120) + float(n) for step, n in zip(steps, noise, strict=True)]
    content = {
        "config": canonical(fields),
        "manifest": canonical(manifest),
        "status": canonical(
            {"schema": 1, "state": state, "step": 400, "reason": "nan at step 160" * (state == "failed")}
        ),
        "metrics": lines([{"schema": 1, "step": s, "loss": loss} for s, loss in zip(steps, losses, strict=True)]),
        "results": lines(measured(fields, rng)) if state == "done" else "",
    } | files
    for name, text in content.items():
        ending = "jsonl" if name in ("metrics", "results") else "json"
        place = folder if name == "config" else folder / "result"
        (place / f"{name}.{ending}").write_text(text, encoding="utf-8")
    return run


def write_spec(root: Path, configs: list[dict[str, Any]], **fields: Any) -> None:
    """sweep.json."""
    runs = [{"run": run_id(item), "cell": cell_id(item), "overrides": {"seed": item["seed"]}} for item in configs]
    spec = {
        "schema": 1,
        "name": "synthetic",
        "config": "configs/x.py",
        "runs": runs,
        "protocol": "Five seeds, no tuning.",
    }
    root.mkdir(parents=True, exist_ok=True)
    (root / "sweep.json").write_text(canonical(spec | fields), encoding="utf-8")


def write_sweep(
    root: Path, tasks: tuple[str, ...] = ("copy", "text"), encodings: tuple[str, ...] = ENCODINGS, seeds: int = 5
) -> list[dict[str, Any]]:
    """A whole sweep, in which one run of Learned on the first task has failed; returns the configs."""
    configs = [
        config(task, name, seed, 64 if task == "text" else 20)
        for task in tasks
        for name in encodings
        for seed in range(seeds)
    ]
    write_spec(root, configs)
    for item in configs:
        bad = item["task"]["name"] == tasks[0] and item["model"]["encoding"]["name"] == "learned" and item["seed"] == 1
        write_run(root, item, "failed" if bad else "done")
    return configs


def one_run(root: Path) -> str:
    """A sweep of one run and one metric, whose report is quickly made; returns the id of the run."""
    fields = config("copy", "rope", 0)
    row = {"run": run_id(fields), "step": 1, "metric": "exact_match", "value": 0.5, "split": "test"}
    write_spec(root, [fields])
    return write_run(root, fields, metrics="", results=lines([row | {"length": n} for n in (10, 20, 40)]))


def with_examples(
    sweep: Sweep, tables: Mapping[str, np.ndarray], length: int = 40, documents: np.ndarray | None = None
) -> Sweep:
    """The sweep with scores of examples [seeds, examples] of each encoding, and the results that are their means."""

    def filled(run: Any) -> Any:
        scores = tables[run.config["model"]["encoding"]["name"]][run.config["seed"]]
        known = {} if documents is None else {("test", length, DOCUMENT): documents}
        stored = Examples(400, {("test", length, "loss_sliding"): scores, **known})
        results = [dataclasses.replace(r, value=float(scores.mean())) if r.length == length else r for r in run.results]
        return dataclasses.replace(run, examples=stored, results=tuple(results))

    return dataclasses.replace(sweep, runs=tuple(map(filled, sweep.runs)))
