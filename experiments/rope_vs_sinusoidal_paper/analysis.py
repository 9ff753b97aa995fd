"""Seven variants of encodings on three tasks, and RoPE less sinusoidal positions under every recipe that is committed here."""

from collections.abc import Iterator

import pandas as pd

from attnjax.report.metrics import metric
from attnjax.report.scores import length_factor
from experiments.study import Frame, baselines, curves, label, load, markdown, mean, median

NAME = "rope_vs_sinusoidal_paper"
METRICS = {"copy": "exact_match", "markov": "loss_sliding", "text": "loss_sliding"}
SAID = {"copy": "copying", "markov": "Markov chains", "text": "text"}
LONGEST = {"copy": 16, "markov": 64, "text": 64}
"""The longest trained length of each task."""
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


def by_variant(frame: Frame) -> Frame:
    """Returns the median past training of each variant on each task, and how far it holds in the median."""
    found = {}
    for task, key in METRICS.items():
        scores = curves(frame[frame.task == task], "variant", metric=key)
        factors = length_factor(scores, LONGEST[task], metric(key)).groupby("variant").median()
        found[SAID[task]] = {
            name: f"{median(past(frame, task)[name], 3)}; {factors[name]:.3g} L" for name in factors.index
        }
    names = past(frame, "copy").median().sort_values(ascending=False).index
    return pd.DataFrame(found).loc[names].reset_index(names="encoding")


def told(frame: Frame) -> dict[str, str]:
    """Returns the numbers within the sentences of the page."""
    copy, text = (curves(frame[frame.task == task], "variant", metric=METRICS[task]) for task in ("copy", "text"))
    at = lambda scores, name, length: scores.loc[name, length].median()
    gain = (copy.loc["RoPE"] - copy.loc["Sinusoidal"]).mean()
    table: Frame = curves(variants(load("length_table").query("task == 'copy'")), "variant", metric="exact_match")
    best = levels().set_index(["task", "length"])
    return {
        "copy20": f"{at(copy, 'RoPE', 20):.2f} and {at(copy, 'Sinusoidal', 20):.2f}",
        "text256": f"{at(text, 'RoPE', 256):.2f} and {at(text, 'Sinusoidal', 256):.2f}",
        "unigram": f"{best['unigram model']['text', 256]:.2f}",
        "at17": f"{100 * gain[17] / gain[gain.index > 16].sum():.0f} %",
        "alibi": f"{at(copy, 'ALiBi', 20):.2f} at the rate 1e-3 here, and {at(table, 'ALiBi', 20):.2f} in length_table at 3e-3",
        "trigram": f"{best['trigram model']['text', 64]:.3f}",
        "best": f"{best['bigram model']['markov', 64]:.3f} at 64 symbols and {best['bigram model']['markov', 512]:.3f} at 512",
    }


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
    row = [SAID[task], record, str(longest)]
    for last in (2 * longest, found.columns.max()):
        scores = found.loc[:, (found.columns > longest) & (found.columns <= last)].mean(axis=1).unstack(0)
        values = (scores.RoPE - scores.Sinusoidal).dropna().to_numpy()
        better = (values > 0).sum() if task == "copy" else (values < 0).sum()
        row += [mean(values, 3), f"{better} of {len(values)}"]
    return (*row,)


def answer(frame: Frame) -> Frame:
    """Returns the table of the first page: a row per variant, its median past training on each task.

    Of Markov chains only where half of the runs come within 0.05 nats of the best possible prediction at the trained length.
    """
    scores = {task: past(frame, task) for task in METRICS}
    names = scores["copy"].median().sort_values(ascending=False).index
    trained = curves(frame[frame.task == "markov"], "variant", metric="loss_sliding")[64].unstack(0)
    best = levels().set_index(["task", "length"])["bigram model"]["markov", 64]
    fitted = (trained <= best + 0.05).mean() >= 0.5

    def cell(task: str, name: str) -> str:
        number = f"{scores[task][name].median():.{2 if task == 'copy' else 3}f}"
        return "not fitted" if task == "markov" and not fitted[name] else number

    rows = [(name + UNTRAINED * (name == "T5 bias"), *(cell(task, name) for task in METRICS)) for name in names]
    units = [
        "copying past 16 tokens, exact answers ↑",
        "Markov chains past 64 symbols, nats ↓",
        "text past 64 bytes, nats ↓",
    ]
    return pd.DataFrame(rows, columns=["encoding", *units])


def levels() -> Frame:
    """Returns what n-gram models score; of Markov chains counting pairs is the best possible prediction."""
    found = baselines(NAME)
    wanted = [(task, n) for task in ("markov", "text") for n in (64, 256, 512)]
    found = found.set_index(["task", "length"]).loc[wanted].reset_index()
    return found.rename(columns={"unigram": "unigram model", "bigram": "bigram model", "trigram": "trigram model"})


def tables() -> dict[str, str]:
    """Returns the tables of the page."""
    frame = variants(load(NAME))
    columns = ["task", "record", "L", "up to 2 L", "RoPE better", "all tests past L", "RoPE better in"]
    found = pd.DataFrame([recipe(*one) for one in recipes()], columns=columns)
    return {"recipes": markdown(found), "variants": markdown(by_variant(frame)), **told(frame)}


def first_page() -> dict[str, str]:
    """Returns the table of the README of the repository."""
    return {"answer": markdown(answer(variants(load(NAME))))}
