"""Reads a folder of runs, live, finished or packed, into typed records: the one reader of what reports compute from.

Whatever is torn, foreign or missing is listed in `Sweep.skipped`; a run that the sweep lists and the folder lacks is kept,
with the state "absent".
"""

import functools
import math
import pathlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attnjax.config import cell_id
from attnjax.config.files import SWEEP_FILE
from attnjax.records import examples, files, jsonl, packed, runs
from attnjax.records.examples import Examples
from attnjax.records.files import Problem, VersionError
from attnjax.records.values import LARGEST, as_dict, clean, number, printable, text, whole

SPLITS = ("train", "validation", "test")
SHARES = ("exact_match", "exact_match_oracle_length", "token_accuracy")
"""Metrics that are shares of examples or tokens, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement: the value of a metric at a length, over `count` examples, after `step` steps."""

    step: int
    length: int
    metric: str
    value: float
    count: int
    split: str


@dataclass(frozen=True)
class Skipped:
    """Something in the folder that was not used: a path relative to it, a line (None for a whole file), and why."""

    path: str
    line: int | None
    reason: str


@dataclass(frozen=True)
class Run:
    """One training: its id, its cell (the config without seeds), and everything it recorded.

    `state` is one of `status.STATES`, "absent" where the sweep lists a run that has no folder, "unknown" where its status was
    lost. `losses` holds (step, training loss) in order of steps. `examples` holds the scores of single examples, None where
    they were not stored or are damaged.
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
    """All records of a folder: the sweep's spec, its runs in order of their ids, and what was not used."""

    name: str
    spec: Mapping[str, Any]
    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]


def read(directory: str | pathlib.Path, ignore: Iterable[pathlib.Path] = ()) -> Sweep:
    """Return the records in a folder of runs or a packed folder, leaving out the paths in `ignore`.

    The folder may be a link; no link in it is followed.

    Raises:
        ValueError: there is no such folder, it holds no run, or a record has a newer schema.
    """
    root = files.real(pathlib.Path(directory))
    return _packed(root) if packed.is_packed(root) else _folder(root, directory, ignore)


def _folder(root: pathlib.Path, directory: str | pathlib.Path, ignore: Iterable[pathlib.Path]) -> Sweep:
    try:
        there = runs.entries(root)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{directory} is not a directory: give the folder that a sweep was written to") from None
    except OSError as error:
        raise ValueError(f"{directory} cannot be read: {error.strerror or error}") from None
    left_out = {path.name for path in ignore if path.parent.resolve() == root.resolve()}
    plan, problems = _plan(root)
    spec, listed = plan.table, {entry["run"]: text(entry.get("cell")) for entry in plan.entries}
    problems += [Problem(root / name, runs.LINK) for name in there.links if name not in left_out]
    problems += [Problem(root / name, "is not part of a sweep") for name in there.foreign if name not in left_out]
    found = []
    for name in sorted({*there.runs, *listed}):
        if name in there.runs:
            run, more = _run(root / name, listed.get(name, ""))
            problems += more
        else:
            run = Run(name, listed[name], {}, {}, "absent", "", (), ())
        found.append(run)
    if not any(run.config for run in found):
        raise ValueError(
            f"{directory} holds no run to report: no folder named by a run id (16 hex digits) has a readable "
            f"config.json. It has {sum(map(len, there))} entries, and its sweep.json lists {len(listed)} runs."
        )
    return _sweep(root, spec, found, problems)


def _packed(root: pathlib.Path) -> Sweep:
    found = packed.unpack(root)
    made = []
    for run in found.runs:
        rows = found.scores.get(run["run"], ())
        results = [one for row in rows if isinstance(one := result(row, run["run"]), Result)]
        losses = [one for row in run["losses"] if isinstance(one := loss(row), tuple)]
        new = Run(
            id=run["run"],
            cell=cell_id(run["config"]),
            config=clean(run["config"]),
            manifest=clean(run["manifest"]),
            state=run["state"],
            reason=printable(run["reason"]),
            results=tuple(results),
            losses=tuple(losses),
        )
        scores = found.examples.get(run["run"])
        made.append(replace(new, examples=Examples(new.final[0].step, scores)) if scores and new.final else new)
    return _sweep(root, clean(found.spec), made, found.problems)


def _sweep(root: pathlib.Path, spec: Mapping[str, Any], found: list[Run], problems: list[Problem]) -> Sweep:
    name = text(spec.get("name")) or printable(root.resolve().name)
    told = [
        Skipped(printable(one.path.relative_to(root).as_posix()), one.line, printable(one.reason)) for one in problems
    ]
    return Sweep(name, spec, tuple(found), tuple(told))


def _plan(root: pathlib.Path) -> tuple[runs.Plan, list[Problem]]:
    """Return what sweep.json says, nothing where it cannot be read, and what is wrong with it."""
    try:
        plan = runs.Plan(**clean(runs.read_plan(root)._asdict()))
    except VersionError:
        raise
    except (OSError, ValueError) as error:
        return runs.Plan({}, [], []), [files.problem(root / SWEEP_FILE, error)]
    return plan, [Problem(root / SWEEP_FILE, reason) for reason in plan.wrong]


def _run(directory: pathlib.Path, cell: str) -> tuple[Run, list[Problem]]:
    """Return one folder of records, and its problems. `cell` is what sweep.json says, for where the config cannot be read."""
    found, name = runs.read(directory), directory.name
    if other := [problem for problem in found.problems if problem.kind == "version"]:
        raise ValueError(str(other[0]))
    results = jsonl.read_rows(found.directory / jsonl.RESULTS, lambda row: result(clean(row), name))
    losses = jsonl.read_rows(found.directory / jsonl.METRICS, loss)
    scores, damage = _examples(found.directory)
    problems = found.problems + results.problems + losses.problems + damage
    config = clean(found.config)
    if config and (reason := unusable(config)):
        problems, config = [Problem(directory / runs.CONFIG, reason), *problems], {}
    run = Run(
        id=name,
        cell=cell_id(config) if config else cell,
        config=config,
        manifest=clean(found.manifest),
        state="unknown" if found.status is None else found.status.state,
        reason="" if found.status is None else printable(found.status.reason),
        results=results.rows,
        losses=tuple(sorted(dict(losses.rows).items())),
        examples=scores,
    )
    return run, problems


def _examples(directory: pathlib.Path) -> tuple[Examples | None, list[Problem]]:
    try:
        return examples.read(directory), []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as error:
        return None, [files.problem(directory / examples.FILE, error)]


def unusable(config: Mapping[str, Any]) -> str:
    """Return why a config cannot be that of a run, "" where it can."""
    if not (text(as_dict(config.get("task")).get("name")) and encoding_names(config)):
        return "names no task or no encoding"
    try:
        cell_id(config)
    except ValueError:
        return "holds NaN or infinity, which JSON has not"
    return ""


def result(row: Mapping[str, Any], run: str) -> Result | str:
    """Return one measurement of a run, or why a row is none."""
    if row.get("run", run) != run:
        return "is a record of another run"
    if not all(whole(row.get(key)) for key in ("step", "length")):
        return "has no whole step and length"
    if not (_measured(row, "value") and text(row.get("metric")) and row.get("split") in SPLITS):
        return "has no number, metric name and split"
    value = _as_float(row["value"])
    if row["metric"] in SHARES and not (0 <= value <= 1 or math.isnan(value)):
        return "has a share outside 0 to 1"
    count = row["count"] if whole(row.get("count")) else 0
    return Result(row["step"], row["length"], row["metric"], value, count, row["split"])


def loss(row: Mapping[str, Any]) -> tuple[int, float] | str | None:
    """Return (step, training loss) of a row of a training log, None for one about something else, or why it is none."""
    if "loss" not in row:
        return None
    if not (whole(row.get("step")) and _measured(row, "loss")):
        return "has no whole step and loss"
    return row["step"], _as_float(row["loss"])


def _measured(row: Mapping[str, Any], key: str) -> bool:
    """Whether a number was measured: null is one too, because that is how JSON writes NaN and infinity."""
    return key in row and (row[key] is None or number(row[key]))


def _as_float(value: float | None) -> float:
    """The number, NaN for null and for what is so large that it stands for a loss without bounds."""
    return math.nan if value is None or not abs(value) < LARGEST else float(value)


def encoding_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the encodings of a model: one, or those of its layers without repetition and in order."""
    encoding = as_dict(config.get("model")).get("encoding")
    layers = encoding if isinstance(encoding, list) else [encoding]
    names = [text(layer if isinstance(layer, str) else as_dict(layer).get("name")) for layer in layers]
    return tuple(dict.fromkeys(name for name in names if name))
