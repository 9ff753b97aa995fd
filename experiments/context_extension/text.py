"""Measures methods on Python's source: loss by position and by context, and facts found, without and after fine-tuning."""

import itertools
import pathlib
from typing import NamedTuple

import numpy as np

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.tasks import Text
from attnjax.typing import Int
from experiments import ngrams
from experiments.context_extension import planting
from experiments.context_extension.methods import FREQUENCIES, METHODS
from experiments.context_extension.reading import (
    FACTOR,
    Losses,
    append,
    context_losses,
    decoder_of,
    factors_of,
    fine_tuned,
    measured,
    position_losses,
    read_by,
    scored,
)

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
SEARCHED = 4
"""Windows of validation text by which factors of LongRoPE are searched."""
ORDER = 5
"""The longest n-grams beside the models."""


class Plan(NamedTuple):
    """How much is measured: windows of the longest length, facts at each depth, and steps, bytes and rate of fine-tuning."""

    documents: int = 24
    needles: int = 16
    steps: int = 40
    bytes: int = 4096
    rate: float = 1e-3
    methods: tuple[str, ...] = METHODS


FULL = Plan()


def measure(runs: list[LoadedModel], path: pathlib.Path, plan: Plan = FULL, cap: int = planting.CAP) -> None:
    """Appends the records that are missing; `cap`: most bytes of text to tune on."""
    first = runs[0]
    assert first.run is not None
    assert isinstance(first.task, Text)
    trained = first.run.task.length_max
    lengths = tuple(trained << i for i in range(FACTOR.bit_length()))
    test, search = (np.asarray(Text(split=split).data) for split in ("test", "validation"))
    documents, there = windows(test, lengths[-1], plan.documents), measured(path)
    if ("", "unigram", "zero-shot") not in there:
        losses = ngrams.losses(np.asarray(first.task.data), ORDER)
        for name in ngrams.names(ORDER):
            one: Losses = lambda rows, name=name: losses(rows)[name]
            append(path, ("", -1, name, "zero-shot"), loss_rows(one, documents, lengths))
    for run in runs:
        assert run.run is not None
        model, factors = decoder_of(run), None
        for method, stage in itertools.product(plan.methods, ("zero-shot", "tuned")):
            skipped = stage == "tuned" and (method not in FREQUENCIES or not plan.steps)
            if skipped or (run.name, method, stage) in there:
                continue
            factors = factors or factors_of(model, windows(search, lengths[-1], SEARCHED), trained)
            read_so = read_by(method, model, trained, factors)
            if stage == "tuned":
                # DroPE is recalibrated at the trained length, as its authors do.
                length = trained if method == "drope" else lengths[-1]
                read_so = fine_tuned(read_so, batches(length, plan, cap), plan.rate)
            rows = loss_rows(lambda rows, model=read_so: scored(model, rows)[0], documents, lengths)
            for length, depth in itertools.product(lengths, DEPTHS):
                stack = planting.haystack(test, length, depth, plan.needles, lengths[-1])
                right = scored(read_so, stack.tokens)[1]
                rows.append(("found", length, depth, float((right * stack.counted).sum() / stack.counted.sum())))
            append(path, (run.name, run.run.seed, method, stage), rows)
            print(run.name, method, stage, flush=True)


def loss_rows(
    losses: Losses, documents: Int[np.ndarray, "B T+1"], lengths: tuple[int, ...]
) -> list[tuple[str, int, float, float]]:
    """Returns the loss at the end of windows, mean over documents, by context and, of the longest windows, by position."""
    by_context = context_losses(losses, documents, lengths, lengths[0] // 4)
    rows = [("context", length, 0, float(values.mean())) for length, values in by_context.items()]
    by_position = position_losses(losses, documents, lengths[0] // 2)
    return [*rows, *(("position", lengths[-1], place, value) for place, value in by_position.items())]


def windows(text: Int[np.ndarray, " n"], length: int, count: int) -> Int[np.ndarray, "B T+1"]:
    """Returns rows of `length` + 1 bytes, equally far apart in the text."""
    starts = np.linspace(0, len(text) - length - 1, count).astype(int)
    return text[starts[:, None] + np.arange(length + 1)].astype(np.int32)


def batches(length: int, plan: Plan, cap: int) -> Int[np.ndarray, "N B T+1"]:
    """Returns windows of training text with facts to tune on, the same for each method."""
    text = np.frombuffer(planting.plant(np.asarray(Text(cap=cap).data).tobytes(), length, seed=1), np.uint8)
    shape = (plan.steps, max(1, plan.bytes // length))
    starts = np.random.default_rng([planting.KEY, length]).integers(0, len(text) - length, shape)
    return text[starts[..., None] + np.arange(length + 1)].astype(np.int32)
