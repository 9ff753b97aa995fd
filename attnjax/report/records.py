"""The stored records of a sweep, from which every number of a report is computed.

`attnjax.records` reads the folders; here their content becomes typed. Whatever is torn, foreign or missing is listed in
`Sweep.skipped`; a run that the sweep lists and the directory lacks is kept, with the state "absent".
"""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnjax.config import cell_id
from attnjax.config.files import SWEEP_FILE
from attnjax.records import examples, files, jsonl, runs
from attnjax.records.examples import Examples
from attnjax.records.files import NewerError, Problem
from attnjax.records.remote import mirrored
from attnjax.records.values import LARGEST, as_dict, clean, number, printable, text, whole
from attnjax.report.metrics import metric

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Result:
    """One line of results.jsonl: the value of a metric at a length, over `count` examples, after `step` steps."""

    step: int
    length: int
    metric: str
    value: float
    count: int
    split: str


@dataclass(frozen=True)
class Skipped:
    """Something in the directory that was not used: a path relative to it, a line (None for a whole file), and why."""

    path: str
    line: int | None
    reason: str


@dataclass(frozen=True)
class Run:
    """One training: its id, its cell (the config without seeds), and everything it recorded.

    `state` is one of `status.STATES`, "absent" where the sweep lists a run that has no folder, "unknown" where its status was
    lost. `losses` holds (step, training
    loss) in order of steps. `examples` holds the scores of single examples, None where they were not stored or are damaged.
    """

    id: str
    cell: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    state: str
    reason: str
    results: tuple[Result, ...]
    losses: tuple[tuple[int, float], ...]
    examples: Examples | None = None

    @functools.cached_property
    def final(self) -> tuple[Result, ...]:
        """The records of the last evaluation: of the highest step at which more than validation was measured."""
        last = max((result.step for result in self.results if result.split != "validation"), default=None)
        return tuple(result for result in self.results if result.step == last)

    @property
    def fitted_at(self) -> int | None:
        """The step at which the run had fitted its task and ended (`train.until`); None for one that was to do all steps."""
        step = self.manifest.get("stopped_at")
        return step if whole(step) else None

    @property
    def remark(self) -> str:
        """Why the run ended where it did, in words; "" for one that did all steps."""
        if self.fitted_at is None or self.reason:
            return self.reason
        return f"fitted at step {self.fitted_at} of {as_dict(self.config.get('train')).get('steps')}"


@dataclass(frozen=True)
class Sweep:
    """Everything a report is made from: the sweep's spec, its runs in order of their ids, and what was not used."""

    name: str
    spec: Mapping[str, Any]
    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]


def read(directory: str | Path, ignore: Iterable[Path] = ()) -> Sweep:
    """The records below `directory`, leaving out the paths in `ignore` (where the report itself is written).

    The directory may be a URL, see `attnjax.records.remote`, or a link; no link in it is followed.

    Raises:
        ValueError: there is no such directory, it holds no run, or a record has a newer schema.
    """
    with mirrored(directory) as found:
        return _read(found, ignore)


def _read(directory: Path, ignore: Iterable[Path]) -> Sweep:
    root = files.real(directory)
    try:
        there = runs.entries(root)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{directory} is not a directory: give the folder that a sweep was written to") from None
    except OSError as error:
        raise ValueError(f"{directory} cannot be read: {error.strerror or error}") from None
    left_out = {path.name for path in ignore if path.parent.resolve() == root.resolve()}
    plan, problems = read_plan(root)
    spec, listed = plan.table, {entry["run"]: text(entry.get("cell")) for entry in plan.entries}
    problems += [Problem(root / name, runs.LINK) for name in there.links if name not in left_out]
    problems += [Problem(root / name, "is not part of a sweep") for name in there.foreign if name not in left_out]
    read_runs = []
    for name in sorted({*there.runs, *listed}):
        if name in there.runs:
            run, more = read_run(root / name, listed.get(name, ""))
            problems += more
        else:
            run = Run(name, listed[name], {}, {}, "absent", "", (), ())
        read_runs.append(run)
    if not any(run.config for run in read_runs):
        raise ValueError(
            f"{directory} holds no run to report: no folder named by a run id (16 hex digits) has a readable "
            f"config.json. It has {sum(map(len, there))} entries, and its sweep.json lists {len(listed)} runs."
        )
    name = text(spec.get("name")) or printable(root.resolve().name)
    return Sweep(name, spec, tuple(read_runs), tuple(skipped(problem, root) for problem in problems))


def skipped(problem: Problem, root: Path) -> Skipped:
    """A problem as a report tells it: the path of the folder itself stays out."""
    return Skipped(printable(problem.path.relative_to(root).as_posix()), problem.line, printable(problem.reason))


def read_plan(root: Path) -> tuple[runs.Plan, list[Problem]]:
    """What sweep.json says, nothing where it cannot be read, and what is wrong with it.

    Raises ValueError for a newer schema.
    """
    try:
        plan = runs.Plan(**clean(runs.read_plan(root)._asdict()))
    except NewerError:
        raise
    except (OSError, ValueError) as error:
        return runs.Plan({}, [], []), [files.problem(root / SWEEP_FILE, error)]
    return plan, [Problem(root / SWEEP_FILE, reason) for reason in plan.wrong]


def read_run(directory: Path, cell: str) -> tuple[Run, list[Problem]]:
    """One folder of records, and its problems.

    `cell` is what sweep.json says, used where the config cannot be read. Raises ValueError for a newer schema.
    """
    found, name = runs.read(directory), directory.name
    newer = [problem for problem in found.problems if problem.kind == "newer"]
    if newer:
        raise ValueError(str(newer[0]))
    results = jsonl.read_rows(found.directory / jsonl.RESULTS, lambda row: result(clean(row), name))
    losses = jsonl.read_rows(found.directory / jsonl.METRICS, loss)
    scores, damage = read_examples(found.directory)
    problems = found.problems + results.problems + losses.problems + damage
    config = clean(found.config)
    if config and (reason := unusable(config)):
        problems, config = [Problem(directory / runs.CONFIG, reason), *problems], {}
    state = "unknown" if found.status is None else found.status.state
    run = Run(
        id=name,
        cell=cell_id(config) if config else cell,
        config=config,
        manifest=clean(found.manifest),
        state=state,
        reason="" if found.status is None else printable(found.status.reason),
        results=results.rows,
        losses=tuple(sorted(dict(losses.rows).items())),
        examples=scores,
    )
    return run, problems


def read_examples(directory: Path) -> tuple[Examples | None, list[Problem]]:
    """The scores of the single examples of a run, None where it has none, and what is wrong with their file."""
    try:
        return examples.read(directory), []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as error:
        return None, [files.problem(directory / examples.FILE, error)]


def unusable(config: Mapping[str, Any]) -> str:
    """Why a config cannot be that of a run, "" where it can."""
    if not (text(as_dict(config.get("task")).get("name")) and encoding_names(config)):
        return "names no task or no encoding"
    try:
        cell_id(config)
    except ValueError:
        return "holds NaN or infinity, which JSON has not"
    return ""


def result(row: Mapping[str, Any], run: str) -> Result | str:
    """One line of results.jsonl, or why it is none."""
    if row.get("run", run) != run:
        return "is a record of another run"
    if not all(whole(row.get(key)) for key in ("step", "length")):
        return "has no whole step and length"
    if not (measured(row, "value") and text(row.get("metric")) and row.get("split") in SPLITS):
        return "has no number, metric name and split"
    value = as_float(row["value"])
    if metric(row["metric"]).share and not (0 <= value <= 1 or math.isnan(value)):
        return "has a share outside 0 to 1"
    count = row["count"] if whole(row.get("count")) else 0
    return Result(row["step"], row["length"], row["metric"], value, count, row["split"])


def loss(row: Mapping[str, Any]) -> tuple[int, float] | str | None:
    """(step, training loss) of one line of metrics.jsonl, None for a line about something else, or why it is none."""
    if "loss" not in row:
        return None
    if not (whole(row.get("step")) and measured(row, "loss")):
        return "has no whole step and loss"
    return row["step"], as_float(row["loss"])


def measured(row: Mapping[str, Any], key: str) -> bool:
    """Whether a number was measured: null is one too, because that is how JSON writes NaN and infinity."""
    return key in row and (row[key] is None or number(row[key]))


def as_float(value: float | None) -> float:
    """The number, NaN for null and for what is so large that it stands for a loss without bounds."""
    return math.nan if value is None or not abs(value) < LARGEST else float(value)


def encoding_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The encodings of a model: one, or those of its layers without repetition and in order."""
    encoding = as_dict(config.get("model")).get("encoding")
    layers = encoding if isinstance(encoding, list) else [encoding]
    names = [text(layer if isinstance(layer, str) else as_dict(layer).get("name")) for layer in layers]
    return tuple(dict.fromkeys(name for name in names if name))
