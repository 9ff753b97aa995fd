"""Reads a run's folder and computes its data for the page: weights of every head on a few texts, and scores."""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.config import RunConfig, encoding_name, to_dict
from attnjax.evaluation.counts import POSITIONAL, HeadScores, stands_out
from attnjax.evaluation.heads import head_scores
from attnjax.evaluation.loaded_model import LoadedModel, load
from attnjax.explore.contents import Explored, HeadGrid, Shown, pack
from attnjax.explore.texts import Read, texts, token_names
from attnjax.records.runs import folder_of, read_manifest
from attnjax.report.formatting import lengths_of
from attnjax.tasks import Text
from attnjax.tasks.base import Task
from attnjax.train.loop import fingerprint

PATTERNS = (
    ("previous_token", "the token before the query"),
    ("next_token", "the token after the query"),
    ("first_token", "the first token"),
    ("same_token", "earlier occurrences of the query's own token"),
    ("separator", "earlier tokens that separate, such as white space"),
    ("induction", "the tokens that followed earlier occurrences of the query's own token"),
)
"""The targets of each pattern that is made from the tokens alone (`evaluation/counts.py`)."""
MEANS = (
    ("entropy", "Entropy of the attention in nats: 0 where a head looks at one token alone."),
    ("distance", "Mean distance between the query and the tokens that the head looks at, in tokens."),
    ("sink", "Share of the attention on the first token, by queries after it."),
)
"""What the means of `HeadOverview` are."""


def explore(directory: pathlib.Path, given: Sequence[bytes] = (), layer: int = 0, head: int = 0) -> Explored:
    """The data of a trained run, at its newest sound checkpoint, on the given texts or on held-out examples.

    A run's config may name any file as its text, and a page may be published. So the file is read only if the run's
    manifest has a digest of it, and shown only if the digest matches.

    Raises ValueError if the folder has no run or no checkpoint, the run has no such layer or head (counted from 0), no
    text is given and the run's own may not be shown, or a text is too long for a map or for the model; OSError if a file
    cannot be read.
    """
    subject = load(directory)
    run, task = subject.run, subject.task
    assert run is not None and task is not None
    for what, index, count in (("layer", layer, subject.layers), ("head", head, subject.heads)):
        if not 0 <= index < count:
            raise ValueError(f"{what} must be in 0..{count - 1} for {subject.name}, got {index}")
    manifest = read_manifest(folder_of(directory))
    refusal = unvouched(run, task, manifest)
    if refusal and not given:
        raise ValueError(f"{refusal}; give a text to show with --text")
    read = texts(run, task, given)
    causal = run.task.form == "decoder"
    maps = [pack(weights(subject, one), causal=causal) for one in read]
    named = [token_names(run, task, one.tokens) for one in read]
    grids, scored = ((), f"{subject.name}: no scores. {refusal}.") if refusal else head_grids(subject)
    return Explored(
        name=f"{encoding_name(run.model)} · {run.name} · {subject.name}",
        about=about(subject, fingerprint(nnx.to_pure_dict(subject.params))),
        config=json.dumps(to_dict(run), indent=1),
        layers=run.model.layers,
        heads=run.model.heads,
        causal=causal,
        spaced=not isinstance(task, Text),
        texts=tuple(Shown(one.title, names, packed) for one, names, packed in zip(read, named, maps, strict=True)),
        grids=grids,
        scored=scored,
    )


def weights(subject: LoadedModel, text: Read) -> np.ndarray:
    """Attention weights [L, N, T, T] of one text. Raises ValueError if an encoding has no such positions."""
    return np.asarray(subject.weights(jnp.asarray(text.tokens)[None], pos=text.positions)[:, 0], np.float32)


def unvouched(run: RunConfig, task: Task, manifest: Mapping[str, Any]) -> str:
    """Why the held-out text of a run may not be shown; "" if its manifest has its digest, or if the task draws examples."""
    if not isinstance(task, Text):
        return ""
    recorded = manifest.get("data_sha256")
    wanted = recorded.get("test") if isinstance(recorded, dict) else None
    path = "the standard library" if task.path is None else repr(task.path)
    if not isinstance(wanted, str) or manifest.get("data_path", task.path) != task.path:
        return f"The manifest of the run has no digest of its text, {path}"
    try:
        found = task.for_split("test").sha256
    except ValueError as error:
        return f"The text of the run cannot be read: {error}"
    if found == wanted:
        return ""
    return f"The text of the run, {path}, is another here: its sha256 is not that of the manifest"


def about(subject: LoadedModel, digest: str) -> tuple[tuple[str, str], ...]:
    """Names and values that describe the run and the shown weights. `digest` is that of the parameters."""
    run = subject.run
    assert run is not None
    model, task, steps = run.model, run.task, run.train.steps
    lengths = lengths_of(task.length_min, task.length_max)
    rows = [
        ("task", f"{task.name}, {task.form}"),
        ("encoding", encoding_name(model, options=True)),
        ("size", f"{model.layers} layers of {model.heads} heads, width {model.model}"),
        ("training", f"{lengths}, {subject.step:,} of {steps:,} steps"),
        ("parameters", f"of step {subject.step:,}, sha256 {digest}"),
    ]
    rows += [
        (f"step {step:,}", f"not shown, because its checkpoint is damaged: {reason}")
        for step, reason in subject.damaged
    ]
    return tuple(rows)


def head_grids(subject: LoadedModel) -> tuple[tuple[HeadGrid, ...], str]:
    """Returns a grid for each score that `head_scores` gives the heads of a trained run, and a sentence on what was read.

    Without grids the sentence says why there are none.
    """
    try:
        found = head_scores(subject)
    except ValueError as error:
        return (), f"{subject.name}: no scores. {str(error)[:1].upper()}{str(error)[1:]}."
    rows, length = found.tokens.shape
    scored = [_pattern(name, one) for name, one in found.patterns.items() if one.rows]
    plain = tuple((False,) * subject.heads for _ in range(subject.layers))
    means = [HeadGrid(name, about, name == "sink", _rounded(getattr(found, name)), plain) for name, about in MEANS]
    return (*scored, *means), f"Means over {rows} held-out sequences of {length} tokens."


def _pattern(name: str, found: HeadScores) -> HeadGrid:
    rule = (
        "its interval lies above 1/2"
        if name in POSITIONAL
        else "it is above the best fixed offset and above chance by more than the noise between documents"
    )
    offset = f"{found.baseline:.3f} for the best fixed offset (i - j = {found.offset}), "
    about = (
        f"Share of the attention on {dict(PATTERNS)[name]}, by {found.rows:,} queries that have such a token. For "
        f"comparison: {offset if math.isfinite(found.baseline) else ''}{found.chance:.3f} for equal attention to all visible "
        f"tokens. A star marks a head that stands out: {rule}."
    )
    return HeadGrid(name, about, True, _rounded(found.score), tuple(map(tuple, stands_out(name, found).tolist())))


def _rounded(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Returns rows of layers, to six decimals: the page shows three, and must not round a rounded number."""
    return tuple(tuple(round(float(value), 6) for value in row) for row in values)
