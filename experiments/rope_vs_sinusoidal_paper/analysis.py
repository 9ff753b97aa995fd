"""Seven variants of encodings on three tasks, and RoPE less sinusoidal positions under every recipe that is committed here."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from attnjax.report.intervals import of_runs_and_examples
from attnjax.report.metrics import metric
from attnjax.report.scores import RISE, length_factor
from experiments.policy_placebo import analysis as policy_placebo
from experiments.study import (
    HERE,
    Frame,
    baselines,
    curves,
    label,
    load,
    markdown,
    mean,
    median,
    ngrams,
    untrained_rows,
)

NAME = "rope_vs_sinusoidal_paper"
METRICS = {"copy": "exact_match", "markov": "loss_sliding", "text": "loss_sliding"}
SAID = {"copy": "copying", "markov": "Markov chains", "text": "text"}
LONGEST = {"copy": 16, "markov": 64, "text": 64}
"""The longest trained length of each task."""
UNTRAINED = untrained_rows(2 * LONGEST["copy"] + 1), untrained_rows(LONGEST["text"])
"""Rows of T5's table that no training distance reaches: on copying (prompt, separator and answer), and on the others."""
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


def fitted(frame: Frame) -> Frame:
    """Returns for each variant whether half of its runs on Markov chains are near the best prediction at L."""
    trained = curves(frame[frame.task == "markov"], "variant", metric="loss_sliding")[64].unstack(0)
    best = levels().set_index(["task", "length"])["bigram model"]["markov", 64]
    return (trained <= best + RISE).mean() >= 0.5


def by_variant(frame: Frame) -> Frame:
    """Returns the median past training of each variant on each task, and how far it holds in the median."""
    found, fit = {}, fitted(frame)
    for task, key in METRICS.items():
        scores = curves(frame[frame.task == task], "variant", metric=key)
        factors = length_factor(scores, LONGEST[task], metric(key)).groupby("variant").median()
        found[SAID[task]] = {
            name: f"{median(past(frame, task)[name], 3)}; "
            + ("not fitted" if task == "markov" and not fit[name] else f"{factors[name]:.3g} L")
            for name in factors.index
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
    given = curves(frame[(frame.task == "copy") & (frame.length > 16)], "variant", metric="exact_match_oracle_length")
    led = given.loc["Sinusoidal"].mean(axis=1) - given.loc["RoPE"].mean(axis=1)
    return {
        "given": f"{mean(led, 2)}, in {(led > 0).sum()} of {len(led)} pairs",
        "copy20": f"{at(copy, 'RoPE', 20):.2f} and {at(copy, 'Sinusoidal', 20):.2f}",
        "text256": f"{at(text, 'RoPE', 256):.2f} and {at(text, 'Sinusoidal', 256):.2f}",
        "unigram": f"{best['unigram model']['text', 256]:.2f}",
        "at17": f"{100 * gain[17] / gain[gain.index > 16].sum():.0f} %",
        "alibi": f"{at(copy, 'ALiBi', 20):.2f} at the rate 1e-3 here, and {at(table, 'ALiBi', 20):.2f} in length_table at 3e-3",
        "grams": ", ".join(f"{name} {loss:.3f}" for name, loss in ngrams(NAME)[2:].items()),
        "text64": f"RoPE {at(text, 'RoPE', 64):.3f} and ALiBi {at(text, 'ALiBi', 64):.3f}",
        "untrained": f"{UNTRAINED[0]} of 32 on copying and {UNTRAINED[1]} on the others",
        "files": over_files(frame),
        "best": f"{best['bigram model']['markov', 64]:.3f} at 64 symbols and {best['bigram model']['markov', 512]:.3f} at 512",
    }


def over_files(frame: Frame) -> str:
    """Returns ALiBi's mean loss of text past training, with its interval over runs and that over runs and files."""
    own = frame[(frame.task == "text") & (frame.variant == "ALiBi") & (frame.length > LONGEST["text"])]
    with np.load(HERE / NAME / "examples.npz") as examples:
        losses = [[examples[f"{run}/test/{n}/loss_sliding"] for n in own.length.unique()] for run in own.run.unique()]
        files = of_runs_and_examples(np.mean(losses, axis=1), examples[f"all/test/{own.length.max()}/document"])
    assert files is not None
    return f"{mean(past(frame, 'text')['ALiBi'], 3)} over runs, and [{files.low:.3f}, {files.high:.3f}] over files, too"


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

    Of Markov chains only those that fit.
    """
    scores = {task: past(frame, task) for task in METRICS}
    names = scores["copy"].median().sort_values(ascending=False).index
    fit = fitted(frame)

    def cell(task: str, name: str) -> str:
        number = f"{scores[task][name].median():.{2 if task == 'copy' else 3}f}"
        return "not fitted" if task == "markov" and not fit[name] else number

    note = f" ({UNTRAINED[0]} of 32 rows of its table untrained on copying, {UNTRAINED[1]} on the others)"
    rows = [(name + note * (name == "T5 bias"), *(cell(task, name) for task in METRICS)) for name in names]
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
    """Returns the table and the numbers of the README of the repository."""
    return {
        "answer": markdown(answer(variants(load(NAME)))),
        "grams": f"{ngrams(NAME)['5-gram']:.3f}",
        "random_start": policy_placebo.random_start(),
    }
