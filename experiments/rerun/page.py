"""README.md of the reruns of one cell, from its records alone."""

import pathlib

from attnjax.report.formatting import decimal, interval, markdown, markdown_table
from attnjax.report.metrics import metric
from experiments import recorded
from experiments.rerun.results import Quantity, Results, read

HEADER = ("length", "committed", "reruns: lowest", "highest", "inside", "std. over roundings", "std. over seeds")

PAGE = """# The same cell again: {task} under {encoding}

**Result.** {claim}

{seeds} runs that differ in their seeds were trained again {count} times with the same seeds and data, each time with a
learning rate that is 0, 1 or some more units in the last place of float32 away (up to {most}), so that every step rounds
differently, and in a larger population. The committed runs are those of cell {cell} in `{records}`.

{metric}; median of the {seeds} runs:

{table}
*Inside*: reruns whose median lies within the {kind} of the committed runs. *Std. over roundings*: of one seed over the reruns,
root mean square over seeds. *Std. over seeds*: of the means over reruns. All numbers are in [records.jsonl](records.jsonl).

    python -m experiments.rerun --task {task} --encoding {encoding} --reruns {planned}
    python -m experiments.rerun --render FOLDER      # this page from the records alone

Made on {date} with Python {python} and jax {jax} on {processor}.
"""


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md from the records in a folder. Raises ValueError where they are missing or damaged."""
    return recorded.render(folder, read, {"README.md": page}, lambda results, place: [])


def page(results: Results) -> str:
    """The text of README.md."""
    about, first = results.about, results.quantities[0]
    return PAGE.format(
        claim=claim(results),
        table=markdown_table(HEADER, [row(one, results.reruns) for one in results.quantities]),
        seeds=len(first.committed),
        count=results.reruns,
        metric=markdown(metric(about["metric"]).of_task(about["task"]).label),
        kind=kind(first),
        planned=about["reruns"],
        **{name: markdown(str(about[name])) for name in ("processor",)},
        **{name: about[name] for name in ("task", "encoding", "cell", "records", "most", "date", "python", "jax")},
    )


def claim(results: Results) -> str:
    """How often the reruns lie inside the committed range, past training and within, and which spread is larger."""
    past, within = results.quantities[:2]
    larger = "larger" if past.by_rounding > past.by_seed else "no larger"
    return (
        f"Past training {past.inside} of {results.reruns} reruns lie within the committed {kind(past)} "
        f"({interval(past.estimate)}), within training {within.inside}. Rounding alone moves a run past training by "
        f"{decimal(past.by_rounding)} (standard deviation), {larger} than its seed does ({decimal(past.by_seed)})."
    )


def kind(quantity: Quantity) -> str:
    """What the ends of the committed estimate are."""
    return {"95 %": "95 % interval", "range": "range"}.get(quantity.estimate.kind, "single value")


def row(quantity: Quantity, reruns: int) -> list[str]:
    """A length, or a mean over lengths."""
    ends = [decimal(float(end)) for end in (quantity.medians.min(), quantity.medians.max())]
    spreads = [decimal(quantity.by_rounding), decimal(quantity.by_seed)]
    return [quantity.name, interval(quantity.estimate), *ends, f"{quantity.inside} of {reruns}", *spreads]
