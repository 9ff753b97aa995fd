"""Measures the heads of trained language models: patterns of their attention, pruning, and what is known of positions.

    attnjax run heads_lm --workers 2
    attnjax run heads_lm:prune --workers 2
    python -m experiments.heads runs/heads_lm runs/heads_lm_prune

Appends to --out what it does not hold yet, run by run; of runs at other than 128 bytes, pruning alone.
"""

import argparse
import pathlib
from collections.abc import Sequence

import jax
import numpy as np
import pandas as pd

from attnjax.config import encoding_name
from attnjax.evaluation.counts import best_head, count_heads, scores, stands_out
from attnjax.evaluation.loaded_model import LoadedModel, load
from attnjax.sweep import load as load_sweep
from attnjax.tasks import Text
from attnjax.train.model import build
from experiments import ngrams
from experiments.heads import positions, pruning, source

COLUMNS = ("run", "encoding", "seed", "length", "stage", "of", "measure", "place", "value")
LONG = 128
"""Bytes of the windows of which patterns and positions are measured."""
PATTERNS = ("previous_token", "first_token", "same_token", "induction", "bracket")
"""White space is left out: chance and the best offset find it equally often, and so do untrained heads."""
ORDER = 5
"""The longest n-grams beside the models."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the runs of sweeps that are done."""
    parser = argparse.ArgumentParser(prog="python -m experiments.heads", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=pathlib.Path, nargs="+", help="folders of sweeps over text")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/heads_measured/records.csv.xz"))
    chosen = parser.parse_args(arguments)
    for folder in chosen.runs:
        measure(folder, chosen.out)


def measure(folder: pathlib.Path, path: pathlib.Path, count: int = pruning.WINDOWS, files: int | None = None) -> None:
    """Appends the missing records of a sweep. Raises ValueError for runs that are no decoders of text."""
    store = load_sweep(folder)
    done = [entry.run for entry in store.runs if store.status(entry.run).state == "done"]
    held = pd.read_csv(path, keep_default_na=False) if path.is_file() else pd.DataFrame(columns=COLUMNS)
    for name in done:
        if name in set(held["run"]):
            continue
        subject = load(store.directory(name))
        run, text = subject.run, subject.task
        if run is None or not isinstance(text, Text) or run.task.form != "decoder":
            raise ValueError(f"{name} is no decoder of text")
        length, rows = run.task.length_max, pruning.measure(subject, text, run.task.length_max, count)
        if length == LONG:
            rows += patterns(subject, source.held_out(text, length, files=files))
            rows += positions.measure(subject, text, length, run.seed, 2 * count)
        if not ((held["length"] == length) & (held["of"] == "ngrams")).any():
            append(path, ("", "", -1, length), ngram_rows(text, length, count))
            held = pd.read_csv(path, keep_default_na=False)
        append(path, (name, encoding_name(run.model), run.seed, length), rows)
        print(name, encoding_name(run.model), run.seed, flush=True)


def ngram_rows(text: Text, length: int, count: int) -> list[tuple]:
    """Returns the losses of n-grams of the training bytes on the windows that pruning is measured on."""
    found = ngrams.losses(np.asarray(text.data), ORDER)(pruning.windows(text.for_split("test"), length, count))
    return [("trained", "ngrams", name, 0, float(nats.mean())) for name, nats in found.items()]


def patterns(subject: LoadedModel, windows: source.Windows) -> list[tuple]:
    """Returns rows (stage, of, measure, place, value) of each pattern, of the model and of its parameters before training.

    `best_head`, chosen and counted on different files; how many heads `stand_out`; `baseline`, that of the best fixed
    distance; `chance`; and how many `heads` there are.
    """
    rows = []
    for stage, model in (("trained", subject), ("untrained", untrained(subject))):
        counts = count_heads(model, windows.tokens, windows.document, {"bracket": windows.bracket})
        for name in PATTERNS:
            found = scores(counts[name])
            numbers = {"best_head": best_head(counts[name]), "stand_out": stands_out(name, found).sum()}
            numbers |= {"baseline": found.baseline, "chance": found.chance, "heads": found.score.size}
            rows += [(stage, name, measure, 0, float(value)) for measure, value in numbers.items()]
    return rows


def untrained(subject: LoadedModel) -> LoadedModel:
    """Returns the run's model as it was before the first step."""
    run = subject.run
    assert run is not None
    assert subject.task is not None
    model = build(run, subject.task)
    return LoadedModel(model.module(model.init(jax.random.key(np.uint32(run.seed)))))


def append(path: pathlib.Path, key: tuple[str, str, int, int], rows: list[tuple]) -> None:
    """Adds rows to the records of a run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame([(*key, *row) for row in rows], columns=COLUMNS)
    table.to_csv(path, mode="a", header=not path.is_file(), index=False, float_format="%.7g")


if __name__ == "__main__":
    main()
