"""Seven variants of encodings on three tasks, and RoPE less sinusoidal positions under every recipe that is committed here."""

from collections.abc import Iterator

import pandas as pd

from attnjax.report.metrics import metric
from attnjax.report.scores import length_factor
from experiments.study import Frame, baselines, curves, label, load, markdown, mean, median

NAME = "rope_vs_sinusoidal_paper"
METRICS = {"copy": "exact_match", "markov": "loss_sliding", "text": "loss_sliding"}
SHOWN = {
    "copy": (16, 17, 18, 20, 24, 32),
    "markov": (64, 72, 128, 256, 512),
    "text": (64, 72, 96, 128, 256, 512),
}
UNTRAINED = " (5 of 32 rows of its table untrained)"
"""Rows of distances that no window of 64 tokens has; `max_distance` is 128."""
RECORDS = ("rope_vs_sinusoidal_paper", "rope_vs_sinusoidal", "length_table", "policy_placebo", "published/press")
"""Folders that have runs of both encodings on one of the tasks."""


def variants(frame: Frame) -> Frame:
    """Returns the scores with the name of each variant as people say it."""
    unscaled = ~frame.get("model.embed_scale", pd.Series(True, frame.index)).astype(bool)
    names = frame.encoding.map(label) + unscaled.map({True: ", embeddings not scaled", False: ""})
    return frame.assign(variant=names)


def past(frame: Frame, task: str) -> Frame:
    """Returns the mean score of each run over the tested lengths past training: a row per seed, a column per variant."""
    longest = frame[frame.task == task].longest.max()
    found = curves(frame[(frame.task == task) & (frame.length > longest)], "variant", metric=METRICS[task])
    return found.mean(axis=1).unstack(0)


def by_length(frame: Frame, task: str) -> Frame:
    """Returns the medians at the lengths that the page shows, and past training."""
    found = curves(frame[frame.task == task], "variant", metric=METRICS[task])
    digits = 2 if task == "copy" else 3
    rows = []
    for variant, scores in found.groupby("variant", sort=False):
        longest = SHOWN[task][0]
        beyond = scores.loc[:, scores.columns > longest].mean(axis=1)
        rows.append((variant, *(median(scores[n], digits) for n in SHOWN[task]), median(beyond, 3), beyond.median()))
    names = ["encoding", *(f"at {n}" for n in SHOWN[task]), "past training", "order"]
    table = pd.DataFrame(rows, columns=names).sort_values("order", ascending=task != "copy")
    return table.drop(columns="order")


def recipes() -> Iterator[tuple[str, str, Frame]]:
    """Yields (task, record, scores) of every committed sweep with RoPE and sinusoidal positions on one of the tasks."""
    for task in METRICS:
        for record in RECORDS:
            frame = load(record)
            policy = frame.get("positions.policy", pd.Series("arange", frame.index))
            frame = variants(frame[(frame.get("task", task) == task) & (policy == "arange")])
            if {"RoPE", "Sinusoidal"} <= set(frame.variant):
                yield task, record, frame


def recipe(task: str, record: str, frame: Frame) -> tuple[str, ...]:
    """Returns a row of the table of recipes: RoPE less sinusoidal positions, paired by seed."""
    longest = frame.longest.max()
    found = curves(frame, "variant", metric=METRICS[task])
    row = [task, record, str(longest)]
    for last in (2 * longest, found.columns.max()):
        scores = found.loc[:, (found.columns > longest) & (found.columns <= last)].mean(axis=1).unstack(0)
        values = (scores.RoPE - scores.Sinusoidal).dropna().to_numpy()
        better = (values > 0).sum() if task == "copy" else (values < 0).sum()
        row += [mean(values, 3), f"{better} of {len(values)}"]
    return (*row,)


def factors(frame: Frame) -> Frame:
    """Returns the median length factor of each variant on each task."""
    found = {}
    for task, key in METRICS.items():
        scores = curves(frame[frame.task == task], "variant", metric=key)
        found[task] = length_factor(scores, SHOWN[task][0], metric(key)).groupby("variant").median()
    return pd.DataFrame(found).reset_index(names="encoding")


def answer(frame: Frame) -> Frame:
    """Returns the table of the first page: a row per variant, its median past training on each task.

    Of Markov chains only where half of the runs come within 0.05 nats of the best possible prediction at the trained length.
    """
    scores = {task: past(frame, task) for task in METRICS}
    names = scores["copy"].median().sort_values(ascending=False).index
    trained = curves(frame[frame.task == "markov"], "variant", metric="loss_sliding")[64].unstack(0)
    best = levels().set_index(["task", "length"])["bigram model"]["markov", 64]
    fitted = (trained <= best + 0.05).mean() >= 0.5

    def told(task: str, name: str) -> str:
        number = f"{scores[task][name].median():.{2 if task == 'copy' else 3}f}"
        return "not fitted" if task == "markov" and not fitted[name] else number

    rows = [(name + UNTRAINED * (name == "T5 bias"), *(told(task, name) for task in METRICS)) for name in names]
    units = [
        "copying past 16 tokens, exact answers ↑",
        "Markov chains past 64 symbols, nats ↓",
        "text past 64 bytes, nats ↓",
    ]
    return pd.DataFrame(rows, columns=["encoding", *units])


def levels() -> Frame:
    """Returns what n-gram models score; of Markov chains counting pairs is the best possible prediction."""
    found = baselines(NAME)
    wanted = [(task, n) for task in ("markov", "text") for n in (64, 128, 512)]
    found = found.set_index(["task", "length"]).loc[wanted].reset_index()
    return found.rename(columns={"unigram": "unigram model", "bigram": "bigram model", "trigram": "trigram model"})


def tables() -> dict[str, str]:
    """Returns the tables of the page."""
    frame = variants(load(NAME))
    columns = ["task", "record", "L", "up to 2 L", "RoPE better", "all tests past L", "RoPE better in"]
    found = {task: markdown(by_length(frame, task)) for task in METRICS}
    found["recipes"] = markdown(pd.DataFrame([recipe(*one) for one in recipes()], columns=columns))
    return {**found, "factors": markdown(factors(frame), "{:.2f}".format), "levels": markdown(levels())}


def first_page() -> dict[str, str]:
    """Returns the table of the README of the repository."""
    return {"answer": markdown(answer(variants(load(NAME))))}
