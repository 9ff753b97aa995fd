"""What committed results say of an encoding: its rows of the length table, as Markdown."""

from experiments.length_table.analysis import summary
from experiments.study import markdown

LEGEND = (
    "The length factor is the largest tested multiple of the longest trained length up to which a run holds: exact match of at "
    "least 0.9, or a loss at most 0.05 nats above that at the trained length. *Fitted* is the number of runs that learned the "
    "trained lengths; where fewer than half did, the factor says nothing."
)
LINK = "[length table](../experiments/length_table/README.md)"


def section(name: str) -> str:
    """Return the text below "What our tables say" on the page of an encoding."""
    found = summary().reset_index()
    found = found[found.encoding == name]
    if found.empty:
        return f"The {LINK} has no runs of this encoding."
    ends = [
        f" ({low:.2f} to {high:.2f})" if low < high else "" for low, high in zip(found.low, found.high, strict=True)
    ]
    table = found.assign(
        factor=[f"{value:.2f}{end}" for value, end in zip(found.factor, ends, strict=True)],
        fitted=[f"{fitted} of {runs}" for fitted, runs in zip(found.fitted, found.runs, strict=True)],
        rank=["" if rank != rank else f"{rank:g}" for rank in found["rank"]],
    )[["task", "factor", "fitted", "rank"]]
    table = table.rename(columns={"factor": "length factor, 95 % interval"})
    return f"In the {LINK}, with tuned learning rates:\n\n{markdown(table)}\n\n{LEGEND}"
