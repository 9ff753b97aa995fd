"""What the table costs, from a small piece of it: processor seconds to compile, of a run's steps and of its tests, by encoding.

    python -m experiments.length_table.costs        measures what costs.jsonl lacks, and writes costs.md; it may be stopped

Measured are every encoding on copy, and RoPE on every task. The other cells are estimated: what RoPE takes on the task,
times what the encoding takes on copy over what RoPE does. A cell has 6 tuning runs and 10 runs, which are two populations:
training is compiled for both, and tests for each padded size, tuning runs being tested at one.
"""

import argparse
import dataclasses
import itertools
import pathlib
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from attnjax.config import RunConfig
from attnjax.config import load as load_config
from attnjax.records import jsonl
from attnjax.report.formatting import markdown_table
from attnjax.report.style import order, style
from attnjax.sweep import plan
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from experiments.length_table.page import called
from experiments.length_table.results import KINDS

MEMBERS, STEPS = 2, 12
TUNED, RUNS = 6, 10
MEASURED, REFERENCE = "copy", "rope"
DEAR = ("path", "cope", "dape", "fire", "transformer_xl", "stick_breaking", "fox", "cable")
FILE = "costs.jsonl"


class Cost(NamedTuple):
    """Processor seconds of one encoding on one task: to compile training and all tests, of a run's steps, of a run's tests."""

    task: str
    encoding: str
    compile_training: float
    compile_tests: float
    training: float
    tests: float

    @property
    def cell(self) -> float:
        """Of all runs of a cell and its tuning, which is tested at one length only."""
        compiling = 2 * self.compile_training + self.compile_tests * 4 / 3
        return compiling + (TUNED + RUNS) * self.training + RUNS * self.tests


def measure(run: RunConfig) -> Cost:
    """The costs of one cell, from a population of two equal runs, a few steps and one batch of each length, tested twice."""
    batches = -(-run.evaluate.count // run.evaluate.batch)
    run = dataclasses.replace(run, evaluate=dataclasses.replace(run.evaluate, count=run.evaluate.batch))
    start = processor()
    task = make_task(run)
    trainer, population = Trainer(run, task), members([run] * MEMBERS)
    state, _ = trainer.advance(trainer.start(population), population, 1)
    compiled = processor()
    state, _ = trainer.advance(state, population, STEPS)
    trained = processor()
    evaluator = Evaluator(run, task, trainer.model)
    ends = [trained]
    for _ in range(2):
        list(evaluator(state.params, ("test",)))
        ends.append(processor())
    first, second = ends[1] - ends[0], ends[2] - ends[1]
    training = (trained - compiled) / (STEPS * MEMBERS) * run.train.steps
    encoding = run.model.encodings[0].name
    return Cost(run.task.name, encoding, compiled - start, first - second, training, second * batches / MEMBERS)


def processor() -> float:
    """The processor seconds of this process so far, of all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def wanted() -> dict[tuple[str, str], RunConfig]:
    """The cells that are measured, by task and encoding: dear encodings and what all else is compared with first."""
    file = load_config("length_table:all")
    assert file.sweep is not None
    first = [one for one in file.sweep() if one["seed"] == 0]
    cells = {(run.config.task.name, run.config.model.encodings[0].name): run.config for run in plan(file.config, first)}
    chosen = [cell for cell in cells if cell[0] == MEASURED or cell[1] == REFERENCE]
    first_of_all = lambda cell: (cell != (MEASURED, REFERENCE), cell[1] not in DEAR)
    return {cell: cells[cell] for cell in sorted(chosen, key=first_of_all)}


def read(path: pathlib.Path) -> dict[tuple[str, str], Cost]:
    """What was measured. Raises ValueError where the file is damaged."""
    found = jsonl.read(path)
    if found.damaged:
        raise ValueError(f"{path} is damaged: {found.damaged[0]}")
    costs = [Cost(*(table[name] for name in Cost._fields)) for table in found.tables]
    return {(one.task, one.encoding): one for one in costs}


def estimates(costs: Mapping[tuple[str, str], Cost]) -> dict[tuple[str, str], float]:
    """Processor minutes of every cell that can be estimated."""
    base = costs.get((MEASURED, REFERENCE))
    found = {}
    for task, encoding in itertools.product(KINDS, (name for one, name in costs if one == MEASURED)):
        rope = costs.get((task, REFERENCE))
        if base and rope:
            found[task, encoding] = rope.cell * costs[MEASURED, encoding].cell / base.cell / 60
    return found


def page(costs: Mapping[tuple[str, str], Cost]) -> str:
    """costs.md: what was measured, and the estimate of every cell."""
    rows = [
        [called(one.task), style(one.encoding).label, *(f"{value:.1f}" for value in one[2:]), f"{one.cell / 60:.1f}"]
        for one in sorted(costs.values(), key=lambda one: (one.task != MEASURED, one.task, order(one.encoding)))
    ]
    header = [
        "task",
        "encoding",
        "compile training",
        "compile tests",
        "steps of a run",
        "tests of a run",
        "cell, minutes",
    ]
    minutes = estimates(costs)
    tasks = [task for task in KINDS if any(one == task for one, _ in minutes)]
    names = sorted({name for _, name in minutes}, key=order)
    cells = [[style(name).label, *(f"{minutes[task, name]:.1f}" for task in tasks)] for name in names]
    cells.append(["sum", *(f"{sum(minutes[task, name] for name in names):.0f}" for task in tasks)])
    return (
        f"# What the table costs\n\nProcessor seconds, measured with {MEMBERS} runs in one program and {STEPS} steps. A cell "
        f"is {TUNED} tuning runs and {RUNS} runs.\n\n{markdown_table(header, rows)}\nProcessor minutes of each cell: those of "
        "RoPE on the task, times what the encoding takes on copy over what RoPE does.\n\n"
        f"{markdown_table(['encoding', *map(called, tasks)], cells)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing and write costs.md; returns the exit status: 2 for a mistake of the user."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.length_table.costs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent, help="where costs.jsonl is")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    options = parser.parse_args(arguments)
    path = options.out / FILE
    try:
        there = read(path)
        for cell, run in ({} if options.render else wanted()).items():
            if cell not in there:
                there[cell] = measure(run)
                jsonl.append(path, there[cell]._asdict())
                print(*cell, *(f"{value:.1f}" for value in there[cell][2:]), flush=True)
        (options.out / "costs.md").write_text(page(there), encoding="utf-8")
    except (ValueError, KeyError, OSError) as error:
        print(f"costs: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
