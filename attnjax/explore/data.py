"""From a run's folder to what the page shows of it: weights of every layer and head on a few texts, and loss by position."""

import json
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.analysis.heads import check_head
from attnjax.analysis.subject import load
from attnjax.config import RunConfig, encoding_name, to_dict
from attnjax.explore.losses import loss_by_position
from attnjax.explore.packing import pack, packed_size
from attnjax.explore.records import Explored, Shown
from attnjax.explore.texts import Read, texts
from attnjax.explore.vocabulary import token_names
from attnjax.report.style import color_class
from attnjax.report.words import lengths_of
from attnjax.tasks import Text
from attnjax.train.model import Model, build
from attnjax.typing import PyTree

MOST_BYTES = 2**26
"""Beyond this a page opens too slowly to play with."""


def explore(directory: pathlib.Path, given: Sequence[bytes] = (), layer: int = 0, head: int = 0) -> Explored:
    """A trained run, looked into at its newest sound checkpoint, on the texts given or on held-out examples.

    Raises ValueError where the folder has no run or no checkpoint, the run has no such layer or head (from 0), or a text is
    longer than a map or the model can take.
    """
    if (directory / "sweep.json").is_file():
        raise ValueError(f"{directory} is the folder of a sweep: give the folder of one of its runs, {directory}/ID")
    subject = load(directory)
    run, task = subject.run, subject.task
    assert run is not None and task is not None
    check_head(subject, layer, head)
    model, params = build(run, task), nnx.to_pure_dict(subject.params)
    read = texts(run, task, given)
    causal = run.task.form == "decoder"
    _check_size(subject.name, run, read, causal=causal)
    names, encoding = token_names(run, task), encoding_name(run.model)
    shown = [
        Shown(
            one.title,
            tuple(names[t] for t in one.tokens),
            pack(weights(subject.name, model, params, one), causal=causal),
        )
        for one in read
    ]
    return Explored(
        name=f"{encoding} · {run.name} · {subject.name}",
        about=about(run),
        config=json.dumps(to_dict(run), indent=1),
        look=color_class(encoding),
        layers=run.model.layers,
        heads=run.model.heads,
        causal=causal,
        spaced=not isinstance(task, Text),
        texts=tuple(shown),
        loss=loss_by_position(run, task, model, params),
    )


def weights(name: str, model: Model, params: PyTree, text: Read) -> np.ndarray:
    """Attention weights [L, N, T, T] of one text. Raises ValueError where an encoding has no room for its positions."""
    tokens = jnp.asarray(text.tokens)[None]
    call = jax.jit(lambda params, tokens: model.module(params).weights(tokens, pos=text.positions))
    try:
        return np.asarray(call(params, tokens)[:, 0], np.float32)
    except ValueError as error:
        count = len(text.tokens)
        raise ValueError(f"the text has {count} tokens, more than {name} can take: {error}") from error


def about(run: RunConfig) -> tuple[tuple[str, str], ...]:
    """What a reader needs to know of a run, by name."""
    model, task = run.model, run.task
    return (
        ("task", f"{task.name}, {task.form}"),
        ("encoding", encoding_name(model, options=True)),
        ("size", f"{model.layers} layers of {model.heads} heads, width {model.model}"),
        ("training", f"{lengths_of(task.length_min, task.length_max)}, {run.train.steps} steps"),
    )


def _check_size(name: str, run: RunConfig, read: Sequence[Read], *, causal: bool) -> None:
    model = run.model
    total = sum(packed_size(model.layers, model.heads, len(one.tokens), causal=causal) for one in read)
    if total > MOST_BYTES:
        raise ValueError(
            f"the maps of {name} take {total / 2**20:.0f} MiB, more than {MOST_BYTES >> 20}: give one shorter text"
        )
