"""A whole sweep that was trained again, on another machine or with other versions, beside the committed one.

Runs are the same where their ids are: an id is the digest of a config with its seeds. Of every cell the median of its runs is
compared with the committed range (the 95 % interval from 6 runs on), past training, within, and at each tested length.
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from attnjax.records import jsonl
from attnjax.records.values import text
from attnjax.report.formatting import decimal, interval, markdown, markdown_table
from attnjax.report.metrics import metric
from attnjax.report.records import Sweep, read as read_sweep
from experiments import recorded
from experiments.rerun.results import COMMITTED, RERUN, Quantity, measured, quantities

HEADER = ("task", "encoding", "metric", "past training, committed", "again", "inside, of the lengths")

PAGE = """# {name}, trained again on another machine

**Result.** {claim}

| | committed | again |
|---|---|---|
{machines}
Median of the runs of a cell past training, and at how many of the tested lengths the median lies within the range of the
committed runs (from 6 runs on: their 95 % interval):

{table}
{outside}
{missing}All numbers are in [records.jsonl](records.jsonl); the committed runs are those of `{records}`.

    python -m experiments.rerun --compare FOLDER     # FOLDER has the runs of the same sweep, made by you
    python -m experiments.rerun --render FOLDER      # this page from records.jsonl alone
"""

MACHINE = {"processor": "processor", "cores": "cores", "threads": "threads of a worker", "python": "Python"}
MACHINE |= {f"version_{name}": name for name in ("jax", "jaxlib", "flax", "optax", "numpy")}


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """One cell, and its quantities: past training, within, and each length."""

    task: str
    variant: str
    metric: str
    quantities: list[Quantity]


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """All cells, the machines of both sweeps, and the protocol of the comparison."""

    cells: list[Cell]
    machines: Mapping[str, Mapping[str, str]]
    about: Mapping[str, Any]


def compare(committed: pathlib.Path, again: pathlib.Path) -> list[dict[str, Any]]:
    """The records of a comparison: both machines, then every run that has ended in both sweeps, as committed and again.

    A cell is compared where all of its committed runs have. Raises ValueError where there is none.
    """
    sweeps = {COMMITTED: read_sweep(committed), RERUN: read_sweep(again)}
    scores = {COMMITTED: {one["run"]: one for one in measured(sweeps[COMMITTED])}}
    shown = {one["metric"] for one in scores[COMMITTED].values()}
    again_by = [one for metric in sorted(shown) for one in measured(sweeps[RERUN], key=metric)]
    scores[RERUN] = {
        one["run"]: one for one in again_by if one["metric"] == scores[COMMITTED].get(one["run"], one)["metric"]
    }
    cell_of = lambda run: (scores[COMMITTED][run]["task"], scores[COMMITTED][run]["variant"])
    lacking = {cell_of(run) for run in scores[COMMITTED] if run not in scores[RERUN]}
    both = [run for run in scores[COMMITTED] if cell_of(run) not in lacking]
    if not both:
        there = f"{sum(run in scores[RERUN] for run in scores[COMMITTED])} of {len(scores[COMMITTED])} runs are there"
        raise ValueError(
            f"no cell of {committed} has all of its runs in {again} too: {there}; is it another sweep, one of other "
            "versions, or not trained to its end?"
        )
    cells = {run: {key: scores[COMMITTED][run][key] for key in ("task", "variant", "metric")} for run in both}
    name = text(sweeps[COMMITTED].spec.get("name"))
    counts = {"committed": len(scores[COMMITTED]), "both": len(both)}
    places = [{"kind": "machine", "of": of, **_machine(sweep, both)} for of, sweep in sweeps.items()]
    # What a variant is called depends on what else is in a sweep.
    runs = [{"kind": "run", "of": of, **found[run], **cells[run]} for run in both for of, found in scores.items()]
    return [{"kind": "protocol", "records": committed.as_posix(), "name": name, **counts}, *places, *runs]


def write(committed: pathlib.Path, again: pathlib.Path, folder: pathlib.Path) -> None:
    """Write the records of a comparison into a folder, in place of those that are there."""
    rows = compare(committed, again)
    folder.mkdir(parents=True, exist_ok=True)
    jsonl.replace(folder / recorded.RECORDS, rows)


def holds(path: pathlib.Path) -> bool:
    """Are these the records of a comparison of two sweeps?"""
    return path.is_file() and any(row.get("kind") == "machine" for row in jsonl.read(path).tables[:2])


def read(path: pathlib.Path) -> Results:
    """The numbers of a file of records. Raises ValueError where it is damaged or holds others."""
    return recorded.read(path, "a sweep that was trained again", _results)


def render(folder: pathlib.Path) -> list[pathlib.Path]:
    """Write README.md from the records in a folder. Raises ValueError where they are missing or damaged."""
    return recorded.render(folder, read, {"README.md": page}, lambda results, place: [])


def page(results: Results) -> str:
    """The text of README.md."""
    machines = [
        (name, *(results.machines[of].get(key, "") for of in (COMMITTED, RERUN))) for key, name in MACHINE.items()
    ]
    about = results.about
    absent = about["committed"] - about["both"]
    return PAGE.format(
        name=markdown(about["name"]),
        claim=claim(results),
        machines="".join(f"| {' | '.join(map(markdown, row))} |\n" for row in machines),
        table=markdown_table(HEADER, map(row, results.cells)),
        outside=outside(results),
        missing=f"{absent} of {about['committed']} committed runs are of cells that were not trained again to the end.\n"
        if absent
        else "",
        records=about["records"],
    )


def claim(results: Results) -> str:
    """How many of the printed medians lie within the committed range."""
    past = [cell.quantities[0] for cell in results.cells]
    lengths = [one for cell in results.cells for one in cell.quantities[2:]]
    return (
        f"{results.about['both']} runs were trained again with the same seeds. Of {len(past)} medians past training "
        f"{inside(past)} lie within the committed range, of {len(lengths)} medians at single lengths {inside(lengths)}."
    )


def inside(quantities: Iterable[Quantity]) -> int:
    """How many of these medians lie within the committed range."""
    return sum(one.inside for one in quantities)


def outside(results: Results) -> str:
    """A line for each number that is outside, or that none is."""
    found = [(cell, one) for cell in results.cells for one in cell.quantities if not one.inside]
    place = lambda cell, one: f"{markdown(cell.task)} under {markdown(cell.variant)}, {one.name}"
    lines = [
        f"* {place(cell, one)}: {decimal(float(one.medians[0]))} beside {interval(one.estimate)}\n"
        for cell, one in found
    ]
    return f"Outside:\n\n{''.join(lines)}" if lines else "No median is outside.\n"


def row(cell: Cell) -> list[str]:
    """A cell: past training as committed and again, and how many lengths are inside."""
    past, lengths = cell.quantities[0], cell.quantities[2:]
    numbers = [interval(past.estimate), decimal(float(past.medians[0])), f"{inside(lengths)} of {len(lengths)}"]
    return [
        markdown(cell.task),
        markdown(cell.variant),
        markdown(metric(cell.metric).of_task(cell.task.split()[0]).label),
        *numbers,
    ]


def _machine(sweep: Sweep, runs: Iterable[str]) -> dict[str, str]:
    """What the manifests of these runs say of machine and versions; several values where they differ."""
    wanted = set(runs)
    manifests = [run.manifest for run in sweep.runs if run.id in wanted]
    said = lambda key: sorted({str(manifest[key]) for manifest in manifests if manifest.get(key) is not None})
    return {key: ", ".join(said(key)) for key in MACHINE}


def _results(found: list[dict[str, Any]]) -> Results:
    runs = [one for one in found if one["kind"] == "run"]
    cells: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = {}
    for one in runs:
        place = cells.setdefault((one["task"], one["variant"], one["metric"]), {})
        place.setdefault(one["of"], []).append(one)
    made = [Cell(*key, quantities(place[COMMITTED], [place[RERUN]])) for key, place in cells.items()]
    machines = {one["of"]: one for one in found if one["kind"] == "machine"}
    return Results(made, machines, recorded.about(found))
