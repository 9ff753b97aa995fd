"""N-gram models of bytes of any order, as a bar for language models: what a text tells without long context.

    python -m experiments.ngrams rope_vs_sinusoidal_paper length_table    writes experiments/NAME/ngrams.csv

    P_k(c | h) = (C(h c) + T(h) P_{k-1}(c | h')) / (C(h) + T(h)),        P_0(c) = 1 / 256

as in `attnjax.tasks.ngrams` (Witten and Bell 1991, method C), which stops at 3 bytes.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pandas as pd

from attnjax.config import RunConfig, parse
from attnjax.records import stored
from attnjax.tasks import Task
from attnjax.tasks.text import Text
from attnjax.train.streams import branch, stream
from attnjax.typing import Float, Int

HERE = Path(__file__).parent
BITS, BYTES = 8, 256
ORDER = 5
"""Of the longest models beside a record."""
NAMES = ("unigram", "bigram", "trigram")


def names(order: int) -> tuple[str, ...]:
    """Returns the names of the models up to an order.

    Example:
      >>> names(4)
      ('unigram', 'bigram', 'trigram', '4-gram')
    """
    return (*NAMES, *(f"{k}-gram" for k in range(4, order + 1)))[:order]


def losses(
    training: Int[np.ndarray, " n"], order: int
) -> Callable[[Int[np.ndarray, "B T+1"]], dict[str, Float[np.ndarray, "B T"]]]:
    """Returns the function of rows of bytes to the loss in nats of each byte but the first, by name.

    A byte with fewer than k - 1 bytes before it in its row has the loss of the next shorter model.

    Example:
      >>> of = losses(np.frombuffer(b"abababac", np.uint8), 3)
      >>> {name: [round(float(np.exp(-x)), 3) for x in row[0]] for name, row in of(np.array([[98, 97, 98]])).items()}
      {'unigram': [0.365, 0.274], 'bigram': [0.841, 0.591], 'trigram': [0.841, 0.637]}
    """
    text = np.asarray(training, np.int64)
    counted = [np.unique(_codes(text, k), return_counts=True) for k in range(1, order + 1)]

    def of(rows: Int[np.ndarray, "B T+1"]) -> dict[str, Float[np.ndarray, "B T"]]:
        rows = np.asarray(rows, np.int64)
        p, found = np.full((len(rows), rows.shape[1] - 1), 1 / BYTES), {}
        for k, name in enumerate(names(order), 1):
            codes, times = counted[k - 1]
            contexts, first, kinds = np.unique(codes >> BITS, return_index=True, return_counts=True)
            full = _codes(rows, k)[:, int(k == 1) :]
            seen = _look_up(contexts, np.add.reduceat(times, first), full >> BITS)
            different = _look_up(contexts, kinds, full >> BITS)
            shorter = p[:, max(k - 2, 0) :]
            longer = (_look_up(codes, times, full) + different * shorter) / np.maximum(seen + different, 1)
            p = p.copy()
            p[:, max(k - 2, 0) :] = np.where(seen > 0, longer, shorter)
            found[name] = -np.log(p)
        return found

    return of


def _codes(text: Int[np.ndarray, "*B n"], k: int) -> Int[np.ndarray, "*B n-k+1"]:
    """Returns each sequence of k bytes as one number, the first byte in the highest bits."""
    n = text.shape[-1] - k + 1
    return sum((text[..., i : i + n] << BITS * (k - 1 - i) for i in range(k)), np.zeros((), np.int64))


def _look_up(keys: Int[np.ndarray, " N"], values: Int[np.ndarray, " N"], wanted: Int[np.ndarray, "B T"]):
    """Returns the values of keys, which ascend; 0 for those that are not there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def of_record(name: str) -> pd.Series:
    """Returns what each model loses at the bytes that `loss_sliding` counts in the test windows of experiments/NAME.

    Windows of every length end at the same bytes, and hold all that the models see: one number a model.

    Raises:
      ValueError: the windows here are not those of the runs, since Python's library differs between versions.
    """
    record = next(run for run in stored.read(HERE / name).runs if run.config["task"]["name"] == "text")
    run, text = parse(record.config), Text(**record.config["task"]["options"])
    of, known = losses(np.asarray(text.data), ORDER), record.manifest["baselines"]
    for before in (False, True):
        nats = of(windows(run, text.for_split("test"), before=before))
        means = {model: rows[:, -run.evaluate.sliding_stride :].mean() for model, rows in nats.items()}
        if abs(means["trigram"] - known[str(run.evaluate.lengths[-1])]["loss_sliding"]["trigram"]) < 1e-6:
            return pd.Series(means, name="nats")
    raise ValueError(f"the text of {name} is not that of this Python")


def windows(run: RunConfig, text: Task, *, before: bool) -> Int[np.ndarray, "B T+1"]:
    """Returns the test windows of a run with the byte after each, by the keys of version 0.2.0 if `before`."""
    key, rows = jax.random.key(1) if before else stream(0, "test"), []
    size = run.evaluate.bucket_sizes[0]
    for start in range(0, run.evaluate.count, run.evaluate.batch):
        draw = jax.random.fold_in(key, start)
        content = jax.random.split(draw)[0] if before else branch(draw, "content")
        made = text.sample(content, [size] * run.evaluate.batch, size)
        rows.append(np.concatenate([made.inputs, made.targets[:, -1:]], axis=1))
    return np.concatenate(rows)[: run.evaluate.count]


if __name__ == "__main__":
    for record in sys.argv[1:]:
        of_record(record).to_csv(HERE / record / "ngrams.csv", index_label="model", float_format="%.6f")
