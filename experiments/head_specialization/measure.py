"""Scores of all heads of all runs of a sweep, on windows of held-out files, as rows that JSON can hold."""

import hashlib
import math
import pathlib
import platform
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from attnjax.config import SCHEMA, RunConfig, cell_id, encoding_name
from attnjax.evaluation.counts import HeadScores, best_head, count_heads, scores, stands_out
from attnjax.evaluation.loaded_model import LoadedModel, load
from attnjax.evaluation.weights import POSITIONAL
from attnjax.records import files, jsonl
from attnjax.sweep import scan
from attnjax.tasks import Text
from attnjax.train.loop import make_task
from attnjax.train.model import build
from experiments import recorded
from experiments.head_specialization.corpus import Sources, Windows, cut, read_sources

LEFT_OUT = ("separator",)
"""Patterns that are not scored. Of 144 untrained heads 13 stood out for white space, and none for any other pattern: chance and
the best offset find it as often, so that a head needs only to prefer some bytes to others, as random parameters do."""


class Results(NamedTuple):
    """A row per run, pattern and head; a row per run and pattern; and what was measured on."""

    heads: list[dict[str, Any]]
    patterns: list[dict[str, Any]]
    protocol: dict[str, Any]


def measure(runs: pathlib.Path, files: int | None = None, per_file: int = 8) -> Results:
    """Score every trained run of a sweep, and the same run before training.

    Raises ValueError where no run of the folder is done, or the runs are not of one text, one length and one cell of each
    encoding.
    """
    trained = [run for run in scan(runs).runs if run.status is not None and run.status.state == "done" and run.config]
    if not trained:
        raise ValueError(f"{runs} holds no run that is done")
    settings = {(run.config.task, run.config.task.length_max) for run in trained if run.config is not None}
    if len(settings) > 1 or trained[0].config is None or trained[0].config.task.name != "text":
        raise ValueError(f"the runs of {runs} must be language models of one text and one length")
    recorded.check_cells(
        runs, ((encoding_name(one.config.model), cell_id(one.config)) for one in trained if one.config)
    )
    config = trained[0].config
    text, length = Text(**config.task.options), config.task.length_max
    sources = held_out_sources(text, files)
    windows = cut(sources.sources, length, per_file)
    heads, patterns = [], []
    for run in trained:
        subject = load(run.directory)
        for stage, one in (("trained", subject), ("untrained", untrained(subject))):
            found, best = scored(one, windows)
            labels = {"run": run.run, **described(subject.run), "stage": stage}
            heads += [row for name, scores in found.items() for row in head_rows(labels, name, scores)]
            patterns += [pattern_row(labels, name, scores, best[name]) for name, scores in found.items()]
        print(f"{run.run} {labels['encoding']} seed {labels['seed']}", flush=True)
    return Results(heads, patterns, protocol(text, sources, windows, length))


def held_out_sources(text: Text, files: int | None) -> Sources:
    """The files of both splits that are never trained on, the first `files` of each."""
    parts = [read_sources(text, split, files) for split in ("validation", "test")]
    return Sources(*(first + second for first, second in zip(*parts, strict=True)))


def scored(subject: LoadedModel, windows: Windows) -> tuple[dict[str, HeadScores], dict[str, float]]:
    """Scores of every pattern, and the score of the best head, chosen and counted on different documents."""
    linked = {"bracket": windows.bracket, "name": windows.name}
    counts = count_heads(subject, windows.tokens, windows.document, linked)
    counts = {name: one for name, one in counts.items() if name not in LEFT_OUT}
    return {name: scores(one) for name, one in counts.items()}, {name: best_head(one) for name, one in counts.items()}


def untrained(subject: LoadedModel) -> LoadedModel:
    """The run's model as it was before the first step."""
    run = subject.run
    assert run is not None
    model = build(run, make_task(run))
    return LoadedModel(model.module(model.init(jax.random.key(np.uint32(run.seed)))), f"{subject.name}, untrained", run)


def described(run: RunConfig | None) -> dict[str, Any]:
    """What tells runs apart."""
    assert run is not None
    return {"encoding": encoding_name(run.model), "seed": run.seed}


def head_rows(labels: Mapping[str, Any], name: str, scores: HeadScores) -> Iterable[dict[str, Any]]:
    """A row for each head, layers and heads counted from 1."""
    marked = stands_out(name, scores)
    for layer, head in np.ndindex(*scores.score.shape):
        numbers = {key: number(getattr(scores, key)[layer, head]) for key in ("score", "low", "high", "gain")}
        place = {"pattern": name, "layer": layer + 1, "head": head + 1}
        yield {**labels, **place, **numbers, "stands_out": bool(marked[layer, head])}


def pattern_row(labels: Mapping[str, Any], name: str, scores: HeadScores, best: float) -> dict[str, Any]:
    """What a pattern's heads are compared with, the best head, and how many heads stand out."""
    beside = {"baseline": number(scores.baseline), "offset": scores.offset, "chance": number(scores.chance)}
    size = {"rows": scores.rows, "documents": scores.documents, "heads": scores.score.size}
    kind = "offset" if name in POSITIONAL else "content"
    marked = int(stands_out(name, scores).sum())
    return {**labels, "pattern": name, "kind": kind, "best_head": number(best), "stand_out": marked, **beside, **size}


def number(value: float) -> float | None:
    """A number as JSON holds it: 9 digits, None for NaN."""
    return None if math.isnan(value) else float(f"{value:.9g}")


def protocol(text: Text, sources: Sources, windows: Windows, length: int) -> dict[str, Any]:
    """What the heads were scored on, and with which versions."""
    digest = hashlib.sha256(windows.tokens.astype(np.uint8).tobytes()).hexdigest()
    counts = {"files": len(sources.sources), "windows": len(windows.tokens), "length": length, "sha256": digest}
    counts |= {"bracket_links": int(windows.bracket.sum()), "name_rows": int(windows.name.any(-1).sum())}
    source = "the standard library" if text.path is None else text.path
    versions = {"python": platform.python_version(), "jax": jax.__version__}
    return {"source": source, **counts, "skipped": dict(sources.skipped), **versions}


def write(results: Results, out: pathlib.Path) -> None:
    """heads.jsonl, patterns.jsonl, protocol.json. Raises ValueError where the folder cannot be written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        jsonl.replace(out / "heads.jsonl", results.heads)
        jsonl.replace(out / "patterns.jsonl", results.patterns)
        files.write_table(out / "protocol.json", {"schema": SCHEMA, **results.protocol})
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror or error}") from error


def read(folder: pathlib.Path) -> Results:
    """What `write` wrote. Raises ValueError where a file is missing or damaged."""
    return Results(_rows(folder / "heads.jsonl"), _rows(folder / "patterns.jsonl"), _plain(_table(folder)))


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
    found = jsonl.read(path)
    if found.damaged or not found.tables:
        raise ValueError(f"{path} is {f'damaged: {found.damaged[0]}' if found.damaged else 'missing or empty'}")
    return [_plain(table) for table in found.tables]


def _table(folder: pathlib.Path) -> dict[str, Any]:
    try:
        return files.read_table(folder / "protocol.json")
    except OSError as error:
        raise ValueError(f"{folder / 'protocol.json'} cannot be read: {error.strerror or error}") from None


def _plain(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != "schema"}
