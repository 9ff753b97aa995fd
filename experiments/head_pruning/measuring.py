"""From trained runs to records: which heads go first, what is left without them, and what random orders leave.

Orders by importance are found on the validation split, at the trained length; loss and accuracy are measured on the test
split, at the trained length T and at 2 T. Windows end at the same bytes at both, and the last T - 1 bytes count: what differs
is how much stands before them. Nothing is trained again. N-gram models of the training bytes stand beside, on the same bytes.
"""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from attnjax.config import RunConfig, encoding_name
from attnjax.evaluation.loaded_model import LoadedModel, load
from attnjax.records import jsonl
from attnjax.sweep import load as load_sweep
from attnjax.tasks import Text
from attnjax.tasks.ngrams import NGrams
from attnjax.train.loop import make_task
from attnjax.typing import Int
from experiments import recorded
from experiments.head_pruning.importance import head_importance
from experiments.head_pruning.pruning import (
    ablation,
    every_head,
    importance_order,
    pruning_curves,
    random_orders,
    tenths,
)

Record = dict[str, Any]
Chosen = tuple[str, int | None, np.ndarray]
"""How an order was chosen, the seed of a random one, and the order."""

KEY = 1905_10650
"""Of the windows: the same bytes for every run of one text and one trained length."""
ONE_BY_ONE = 24
"""Most heads that are removed one by one; more go in steps of 10 %."""


def measure_sweep(
    runs: pathlib.Path, path: pathlib.Path, *, documents: int, orders: int, say: Callable[[str], None] = print
) -> None:
    """Append the records of every trained run that the file does not hold yet.

    Raises ValueError where the folder holds no sweep or nothing that was trained, where two cells have the same encoding,
    for runs that are no decoders of text, and where the file holds records of another protocol.
    """
    if documents < 1 or orders < 1:
        raise ValueError(f"--documents and --orders must be 1 or more, got {documents} and {orders}")
    store = load_sweep(runs)
    trained = [entry for entry in store.runs if store.status(entry.run).state == "done"]
    if not trained:
        raise ValueError(f"{runs} holds no run that is done; train the {len(store.runs)} runs of its sweep first")
    recorded.check_cells(store.root, ((encoding_name(store.config(one.run).model), one.cell) for one in trained))
    numbers = {"planned": len(store.runs), "documents": documents, "orders": orders}
    tables = recorded.begin(path, {"kind": "protocol", "sweep": store.name, **numbers})
    there = {record["run"] for record in tables if record.get("kind") == "run"}
    if not any(record.get("kind") == "ngrams" for record in tables):
        jsonl.append(path, *ngrams(load(store.directory(trained[0].run)), documents))
    for entry in trained:
        if entry.run not in there:
            jsonl.append(path, *of_run(load(store.directory(entry.run)), documents, orders))
            say(f"{entry}: measured")


def ngrams(subject: LoadedModel, documents: int) -> list[Record]:
    """What n-gram models of the bytes that a run was trained on lose at each length, the mean over the bytes that count."""
    run, task = _language_model(subject)
    longest, model = run.task.length_max, NGrams.of(np.asarray(task.data))
    long = windows(task.for_split("test"), 2 * longest, documents)
    found = []
    for length in (longest, 2 * longest):
        rows = long[:, -length:]
        nats = model.nats(rows[:, :-1], rows[:, 1:])
        means = {name: float(values[:, 1 - longest :].mean()) for name, values in nats.items()}
        found.append({"kind": "ngrams", "length": length, **means})
    return found


def of_run(subject: LoadedModel, documents: int, orders: int) -> list[Record]:
    """Everything about one run. Raises ValueError for one that is no decoder of text."""
    run, task = _language_model(subject)
    longest, total = run.task.length_max, subject.layers * subject.heads
    stops = every_head(total) if total <= ONE_BY_ONE else tenths(total)
    splits = [windows(task.for_split(split), 2 * longest, documents) for split in ("validation", "test")]
    seen = splits[0][:, -longest:]
    once, again = (importance_order(subject, seen, recompute=flag, stops=stops) for flag in (False, True))
    chosen: list[Chosen] = [("importance", None, once), ("recomputed", None, again)]
    chosen += [("random", seed, order) for seed, order in enumerate(random_orders(subject, range(orders)))]
    common = {"run": subject.name, "encoding": encoding_name(run.model), "seed": run.seed}
    found = []
    for length in (longest, 2 * longest):
        if reason := refusal(subject, length):
            found.append({"kind": "absent", **common, "length": length, "reason": reason})
            continue
        seen, test = (long[:, -length:] for long in splits)
        measured = _at_length(subject, seen, test, chosen, stops, longest - 1)
        found += [{"kind": kind, **common, "length": length, **numbers} for kind, numbers in measured]
    # At the end: a run whose records were cut off by a crash is measured again.
    return [*found, {"kind": "run", **common, **_about(run, task)}]


def refusal(subject: LoadedModel, length: int) -> str:
    """Why the model cannot read so many tokens, as one with a learned table that ends before; "" if it can."""
    try:
        jax.eval_shape(subject.logits, jax.ShapeDtypeStruct((1, length), np.int32))
    except ValueError as error:
        return str(error)
    return ""


def _at_length(
    subject: LoadedModel,
    seen: Int[np.ndarray, "B T"],
    test: Int[np.ndarray, "B T"],
    chosen: list[Chosen],
    stops: list[int],
    last: int,
) -> Iterator[tuple[str, Record]]:
    """The curve of each order, and of each head its importance (on `seen`) and what the loss rises by without it alone."""
    curves = pruning_curves(subject, test, [order for _, _, order in chosen], stops=stops, last=last)
    for (kind, seed, order), curve in zip(chosen, curves, strict=True):
        means = {"loss": curve.loss.mean(1).tolist(), "accuracy": curve.accuracy.mean(1).tolist()}
        yield "curve", {"order": kind, "order_seed": seed, "removed": order.tolist(), "kept": stops, **means}
    importance, alone = head_importance(subject, seen, last=last), ablation(subject, test, last).mean(0)
    scores = {"importance": importance.score, "normalized": importance.normalized, "ablation": alone}
    yield "heads", {name: score.tolist() for name, score in scores.items()}


def windows(text: Text, length: int, count: int, seed: int = KEY) -> Int[np.ndarray, "B T"]:
    """`count` random windows of the text, the same for every run."""
    lengths, key = [length] * count, jax.random.key(seed)
    draw = jax.jit(lambda *arrays: text.given(*arrays).sample(key, lengths, length).inputs)
    return np.asarray(draw(*text.arrays))


def text_name(text: Text) -> str:
    """What a page calls the text: a path stays with who measures."""
    return "the standard library of Python" if text.path is None else "a text of the user"


def _about(run: RunConfig, task: Text) -> Record:
    """What a reader needs to know of a run."""
    model = run.model
    return {
        **{"data_seed": run.data_seed, "trained": run.task.length_max, "steps": run.train.steps},
        **{"layers": model.layers, "heads": model.heads, "model": model.model, "hidden": model.hidden},
        "text": text_name(task),
        "sha256": {split: task.for_split(split).sha256 for split in ("validation", "test")},
    }


def _language_model(subject: LoadedModel) -> tuple[RunConfig, Text]:
    run = subject.run
    task = None if run is None else make_task(run)
    if run is None or not isinstance(task, Text) or run.task.form != "decoder":
        came = "no run" if run is None else f"task {run.task.name!r} in the form {run.task.form!r}"
        raise ValueError(f"{subject.name}: heads are pruned from decoders of text, got {came}")
    return run, task
