"""What a policy of positions adds to 0, 1, ... under each encoding, and whether it adds nothing where it cannot.

The protocol, with every threshold, is the docstring of configs/policy_placebo.py, written before the runs.
"""

from typing import Any

import pandas as pd
from scipy import stats

from attnjax.report.intervals import of_mean
from attnjax.report.significance import holm, sign_flip_above
from experiments.study import Frame, label, load, markdown, mean, untrained_rows

NAME, FIT = "policy_placebo", 0.99
POLICIES = ("arange", "offset", "randomized")
ENCODINGS = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5")
PLACEBO = {"offset": ("rope", "alibi", "t5", "nope"), "randomized": ("nope",)}
"""Encodings under which a policy must make no difference."""
PRIMARY = {"offset": ("learned", "sinusoidal")}
"""Those under which it is predicted to help, and tested."""
LOOKS = {"arange": ("#6e7781", "o"), "offset": ("#074a8d", "s"), "randomized": ("#9a3104", "D")}


def cells(frame: Frame) -> Frame:
    """Returns the mean exact match past training and within it, a row per (task, encoding, policy, seed)."""
    frame = frame[frame.metric == "exact_match"].assign(past=frame.length > frame.longest)
    frame = frame.rename(columns={"positions.policy": "policy"})
    found = frame.groupby(["task", "encoding", "policy", "seed", "past"]).value.mean().unstack()
    return found.rename(columns={True: "past", False: "within"})


def differences(cells: Frame) -> Frame:
    """Returns each policy less arange, a row per (task, encoding, policy): values by seed, fits, role, and Holm's p.

    Of a pair both runs fit where both answer 99 % within the trained lengths. A cell fits where half of its runs do.
    """
    fits: Frame = cells.within.round(12).unstack("seed") >= FIT
    fitted, past = fits.mean(axis=1) >= 0.5, cells.past.unstack("seed")
    rows = {}
    for task, encoding, policy in past.index:
        one, base = (task, encoding, policy), (task, encoding, "arange")
        if policy != "arange":
            known = (("placebo", PLACEBO), ("primary", PRIMARY))
            role = next((name for name, of in known if encoding in of.get(policy, ())), "other")
            both = fits.loc[one] & fits.loc[base]
            values = (past.loc[one] - past.loc[base]).to_numpy()
            rows[one] = {"values": values, "fits": both, "role": role, "fitted": fitted[one] and fitted[base]}
    found: Frame = pd.DataFrame.from_dict(rows, orient="index")
    found.index.names = ["task", "encoding", "policy"]
    tested = found[(found.role == "primary") & found.fitted]
    p = holm([sign_flip_above(values) for values in tested["values"]])
    return found.assign(p=pd.Series(p, tested.index, dtype=float)).sort_index(key=_place)


def _place(level: pd.Index) -> pd.Index:
    orders = {"encoding": ENCODINGS, "policy": POLICIES}
    return level.map(orders[level.name].index) if level.name in orders else level


def told(values: Any, fits: Any, digits: int = 3) -> str:
    """Returns the mean and its t interval; where not all runs fit their range, since a t interval covers too little there."""
    if fits.all():
        return mean(values, digits)
    low, high = (f"{end:.{digits}f}" for end in (values.min(), values.max()))
    return f"{values.mean():.{digits}f} (range {low} to {high}; {fits.sum()} of {len(fits)} fitted)"


def tables() -> dict[str, str]:
    """Returns the table of the page, and the numbers of its answer and its check."""
    known: Frame = cells(load(NAME))
    found: Frame = differences(known)
    rows = [
        (
            name[0],
            label(name[1]) + ("" if one.fitted else " (not fitted)"),
            name[2],
            told(one["values"], one.fits),
            "" if pd.isna(one.p) else f"{one.p:.3f}",
        )
        for name, one in found.iterrows()
    ]
    frame = pd.DataFrame(rows, columns=["task", "encoding", "policy", "less arange", "p (Holm)"])
    placebo = (found.role == "placebo").to_numpy()
    none = found[placebo & (found.index.get_level_values("encoding") == "nope")]
    rest = found[placebo & found.fitted.to_numpy() & (found.index.get_level_values("encoding") != "nope")]
    means = [of_mean(values) for values in rest["values"]]
    outside = sum(not one.low <= 0 <= one.high for one in means if one.kind != "none")
    chance = stats.binom.sf(outside - 1, len(rest), 0.05)
    differing = [(name, one) for name, one in rest.iterrows() if one["values"].any()]
    return {
        **{name: from_to(known, name) for name in ("sinusoidal", "learned", "rope")},
        "untrained": f"{untrained_rows(2 * 16 + 2)} of 32 on copy and {untrained_rows(2 * 8 + 2)} on unique_copy",
        "effects": markdown(frame[~placebo]),
        "zero": f"{sum(not values.any() for values in none['values'])} of {len(none)}",
        "equal": f"{len(rest) - len(differing)} of {len(rest)}",
        "differing": "; ".join(
            f"{label(name[1])} on {name[0]} {told(one['values'], one.fits)}" for name, one in differing
        ),
        "outside": f"{outside} of {len(rest)}",
        "chance": f"{chance:.3f}",
    }


def from_to(cells: Frame, encoding: str) -> str:
    """Returns the mean exact match of copying past training under arange, and that under a random start."""
    past = cells.past.groupby(["encoding", "task", "policy"]).mean()
    return " to ".join(f"{past[encoding, 'copy', policy]:.2f}" for policy in POLICIES[:2])


def random_start() -> str:
    """Returns the numbers of the first page."""
    known: Frame = cells(load(NAME))
    none = known.past["copy", "nope", "arange"].mean()
    return f"{from_to(known, 'sinusoidal')} (RoPE: {from_to(known, 'rope')}; no positions: {none:.2f})"


def figure() -> Any:
    """Returns a panel per task: dots are runs, markers their mean with its interval or range, policies beside each other."""
    from attnjax.report.drawing import FAINT, new_figure

    known = cells(load(NAME))
    tasks = known.index.unique("task")
    made, axes = new_figure(5.4 * len(tasks), 3.9, 1, len(tasks))
    for axis, task in zip(axes, tasks, strict=True):
        for (encoding, policy), one in known.loc[task].groupby(["encoding", "policy"]):
            x = ENCODINGS.index(encoding) + 0.24 * (POLICIES.index(policy) - 1)
            fits, found = one.within.round(12) >= FIT, of_mean(one.past.to_numpy())
            low, high = (found.low, found.high) if fits.all() else (one.past.min(), one.past.max())
            color, marker = LOOKS[policy]
            axis.plot([x + 0.08] * len(one), one.past, ".", color=FAINT, markersize=3, zorder=1)
            axis.vlines(x, low, high, color=color, linewidth=1.5)
            fill = color if fits.mean() >= 0.5 else "white"
            axis.plot([x], [found.value], marker, markersize=6, color=color, markerfacecolor=fill)
        axis.set_xticks(range(len(ENCODINGS)), [label(name) for name in ENCODINGS])
        axis.set(ylim=(-0.03, 1.03), title=task, ylabel="exact match past training")
    for policy, (color, marker) in LOOKS.items():
        axes[0].plot([], [], marker, color=color, label=policy)
    axes[0].legend(loc="lower left", bbox_to_anchor=(-0.02, 1.08), ncols=3)
    return made
