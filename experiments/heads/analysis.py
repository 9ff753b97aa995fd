"""Tables and figure of README.md from records.csv.xz: `python -m experiments.study heads`."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnjax.report.intervals import Estimate, of_mean
from attnjax.report.significance import holm, sign_flip
from experiments.study import label, markdown

RECORDS = Path(__file__).with_name("records.csv.xz")
ENCODINGS = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5")
TITLES = {
    "previous_token": "previous byte",
    "same_token": "equal byte",
    "induction": "induction",
    "bracket": "bracket match",
}
LONG, SHORT = 128, 64
"""Bytes of the windows of `heads_lm` and of `heads_lm:prune`."""
INK, PALE, COLOUR = "#24292f", "#b6bdc5", "#c43e00"


def read() -> pd.DataFrame:
    """Returns the records."""
    return pd.read_csv(RECORDS, keep_default_na=False, dtype={"of": str})


def by_seed(records: pd.DataFrame, encoding: str, of: str, measure: str, place: float = 0, **more: Any) -> np.ndarray:
    """Returns one value a run, by seed; `more` are columns with their value, `stage` is "trained" unless given."""
    wanted = {
        "encoding": encoding,
        "of": of,
        "measure": measure,
        "place": place,
        "length": LONG,
        "stage": "trained",
        **more,
    }
    own = records[np.logical_and.reduce([records[column] == value for column, value in wanted.items()])]
    return own.sort_values("seed")["value"].to_numpy()


def interval(found: Estimate, digits: int = 2) -> str:
    """Returns a mean with its 95 % interval, or alone where all runs are equal."""
    text, low, high = (f"{round(one, digits) + 0.0:.{digits}f}" for one in (found.value, found.low, found.high))
    return text if found.kind == "none" else f"{text} [{low}, {high}]"


def tables() -> dict[str, str]:
    """Returns the marked places of README.md."""
    records = read()
    return {**of_patterns(records), **of_pruning(records), **of_positions(records)}


def of_patterns(records: pd.DataFrame) -> dict[str, str]:
    """Returns the best head and the heads that stand out, and the planned comparison."""
    rows = []
    for pattern, title in TITLES.items():
        beside = [f"{by_seed(records, 'rope', pattern, name)[0]:.2f}" for name in ("baseline", "chance")]
        cells = []
        for encoding in ENCODINGS:
            best = by_seed(records, encoding, pattern, "best_head").mean()
            counts = [by_seed(records, encoding, pattern, "stand_out", stage=s).sum() for s in ("trained", "untrained")]
            cells.append(f"{best:.2f}; {counts[0]:.0f} ({counts[1]:.0f})")
        rows.append([title, *beside, *cells])
    best = {encoding: by_seed(records, encoding, "previous_token", "best_head") for encoding in ENCODINGS}
    others = [encoding for encoding in ENCODINGS if encoding != "rope"]
    p = holm([sign_flip(best["rope"] - best[one]) for one in others])
    differences = sorted((of_mean(best["rope"] - best[one]).value, one) for one in others)
    least, most = (
        f"{interval(of_mean(best['rope'] - best[one]))} ({label(one)})" for _, one in differences[:: len(p) - 1]
    )
    planned = f"{least} to {most}, p = {max(p):.3f} at most after Holm's correction"
    table = markdown(pd.DataFrame(rows, columns=["pattern", "best offset", "chance", *map(label, ENCODINGS)]))
    return {"patterns": table, "planned": planned}


def of_pruning(records: pd.DataFrame) -> dict[str, str]:
    """Returns the loss of models at 64 bytes, its rise without heads, and what models and n-grams have at both lengths."""
    grams = records[records["of"] == "ngrams"].set_index(["measure", "length"])["value"]
    best = min(by_seed(records, encoding, "importance", "loss", 8).mean() for encoding in ENCODINGS)
    loss = lambda of, kept: by_seed(records, "rope", of, "loss", kept, length=SHORT)
    whole = loss("importance", 8)
    ordered, random = (loss(of, 4) - whole for of in ("importance", "random"))
    told = lambda values, digits=2: interval(of_mean(values), digits)
    return {
        "whole": told(whole, 3),
        "fivegram": f"{grams['5-gram', SHORT]:.3f}",
        "weak": f"the best have {best:.3f} nats a byte, a 4-gram {grams['4-gram', LONG]:.3f}",
        "first": told(100 * (loss("importance", 7) / whole - 1), 0),
        "half": f"{told(ordered)} by importance, {told(random)} in random orders, difference {told(ordered - random)}",
    }


def of_positions(records: pd.DataFrame) -> dict[str, str]:
    """Returns R2 of probes."""
    columns = {
        "input of layer 1": (1, "within", "trained"),
        "features": (2, "within", "trained"),
        "features, untrained": (2, "within", "untrained"),
        "input of layer 1, beyond": (1, "beyond", "trained"),
    }
    rows = [
        [
            label(e),
            *(interval(of_mean(by_seed(records, e, of, "R2", at, stage=stage))) for at, of, stage in columns.values()),
        ]
        for e in ENCODINGS
    ]
    return {"positions": markdown(pd.DataFrame(rows, columns=["encoding", *columns]))}


def figure() -> Any:
    """Draws the best head for the previous byte, the loss of pruned models, and R2 of the position."""
    from matplotlib.figure import Figure

    made, records = Figure(figsize=(12, 4), layout="constrained"), read()
    best, pruned, probed = made.subplots(1, 3)
    for x, encoding in enumerate(ENCODINGS):
        seeds = by_seed(records, encoding, "previous_token", "best_head")
        best.plot(np.full(len(seeds), x), seeds, "o", color=COLOUR if encoding == "rope" else PALE, markersize=4)
        r2 = [by_seed(records, encoding, "within", "R2", layer).mean() for layer in range(3)]
        probed.plot(range(3), r2, color=PALE)
        probed.text(
            2.05, r2[-1] + {"t5": 0.02, "alibi": 0.0, "rope": -0.05}.get(encoding, 0), label(encoding), va="center"
        )
    best.set_xticks(range(len(ENCODINGS)), [label(name) for name in ENCODINGS], rotation=30)
    best.set(ylim=(0, 0.7), title="Attention of the best head\nto the previous byte")
    length = SHORT if len(records[records["length"] == SHORT]) else LONG
    for of, colour in (("importance", COLOUR), ("random", PALE)):
        losses = [by_seed(records, "rope", of, "loss", kept, length=length).mean() for kept in range(9)]
        pruned.plot(range(9), losses, color=colour, linewidth=2)
        words = {"importance": "least important first", "random": "random order"}[of]
        place = (4.4, losses[6]) if of == "importance" else (7.8, losses[3])
        pruned.text(*place, words, color=colour)
    pruned.invert_xaxis()
    pruned.set(
        xlabel="heads left of 8", ylabel="nats per byte (lower is better)", title=f"RoPE without heads, {length} bytes"
    )
    probed.set_xticks(range(3), ["input of\nlayer 0", "input of\nlayer 1", "features"])
    probed.set(xlim=(-0.1, 2.9), ylim=(-0.1, 1.05), title="R2 of a linear map\nto the position")
    for axis in (best, pruned, probed):
        axis.spines[["top", "right"]].set_visible(False)
    return made
