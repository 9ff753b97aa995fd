"""What n-gram models score on the windows of the table, and the best prediction of its Markov chains, at every tested length.

    python -m experiments.length_table.baselines        writes baselines.jsonl here; nothing is trained

The windows are those of every run of a task: they depend on no seed. Of a text they are those of the standard library of the
Python that runs this, whose version is in the file; the bigrams at the trained length must be those of records.jsonl.
"""

import argparse
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from attnjax.config import load
from attnjax.records import jsonl
from attnjax.sweep import plan
from attnjax.train.evaluate import Evaluator, ngram_levels
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer
from experiments import recorded
from experiments.length_table.records import BIGRAM, SUBJECT, Kept, parsed

HERE = pathlib.Path(__file__).parent
FILE = "baselines.jsonl"
TASKS = ("markov", "text")


def levels(task: str) -> dict[str, dict[str, dict[str, float]]]:
    """The losses by tested length, metric and name of the model; of Markov chains "bigram" is the best prediction."""
    loaded = load(f"length_table:{task}")
    assert loaded.sweep is not None
    run = plan(loaded.config, loaded.sweep())[0].config
    made = make_task(run)
    return ngram_levels(run, made, Evaluator(run, made, Trainer(run, made).model)) or {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file. Raises ValueError where the windows are not those of the records."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.length_table.baselines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=pathlib.Path, default=HERE, help="where the file is written")
    out = parser.parse_args(arguments).out
    known = recorded.read(HERE / recorded.RECORDS, SUBJECT, parsed)
    rows = [row for task in TASKS for row in rows_of(task, levels(task), known)]
    out.mkdir(parents=True, exist_ok=True)
    jsonl.replace(out / FILE, [{"kind": "made", **recorded.place()}, *rows])
    print(out / FILE)


def rows_of(task: str, found: Mapping[str, Any], known: list[Kept]) -> list[recorded.Record]:
    """A row for each tested length."""
    of_task = next(one for one in known if one.task == task)
    mine = found[str(of_task.longest)][of_task.metric][BIGRAM]
    if of_task.bigram is None or not math.isclose(mine, of_task.bigram, rel_tol=1e-9):
        raise ValueError(f"{task}: the bigrams of these windows have {mine}, those of the records {of_task.bigram}")
    about = {"kind": "baseline", "task": task, "metric": of_task.metric}
    return [{**about, "length": int(length), **models[of_task.metric]} for length, models in found.items()]


if __name__ == "__main__":
    main()
