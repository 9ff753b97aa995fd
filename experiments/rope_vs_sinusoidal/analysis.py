"""The numbers of `./run`: four encodings on two tasks, three seeds."""

import pandas as pd

from experiments.study import Frame, baselines, curves, label, load, markdown, median

NAME = "rope_vs_sinusoidal"
SHOWN = {"copy": (12, 13, 15, 18, 24), "markov": (32, 36, 64, 128, 256)}
"""Tested lengths in the tables; the first is the longest trained one."""


def by_length(frame: Frame, task: str) -> Frame:
    """Returns the medians of three runs and their range: a row per encoding, the best past training first."""
    metric, digits = ("exact_match", 2) if task == "copy" else ("loss_sliding", 3)
    found = curves(frame[frame.task == task], "encoding", metric=metric)
    past = found.loc[:, found.columns > SHOWN[task][0]].mean(axis=1).groupby("encoding").median()
    names = past.sort_values(ascending=task == "markov").index
    rows = [(label(name), *(median(found.loc[name, n], digits) for n in SHOWN[task])) for name in names]
    if task == "markov":
        best = baselines(NAME).set_index(["task", "length"]).bigram
        rows.append(("*best possible*", *(f"*{best[task, n]:.3f}*" for n in SHOWN[task])))
    table = pd.DataFrame(rows, columns=["encoding", *(f"at {n}" for n in SHOWN[task])])
    return table.map(lambda text: text.replace("(range ", "(").replace(" to ", ", "))


def tables() -> dict[str, str]:
    """Returns the tables of the page."""
    frame = load(NAME)
    return {task: markdown(by_length(frame, task)) for task in SHOWN}
