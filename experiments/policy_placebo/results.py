"""From the runs of the sweep to records, and from records to differences: what a policy adds to 0, 1, ... under an encoding.

The protocol, with every threshold, is the docstring of configs/policy_placebo.py, written before the runs.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from attnjax.records import jsonl
from attnjax.records.values import DECIMALS
from attnjax.report import records as stored
from attnjax.report.intervals import NONE, RANGE, Estimate, of_mean
from attnjax.report.scores import FIT
from attnjax.report.significance import holm, sign_flip_above
from attnjax.report.style import order
from attnjax.typing import Bool, Float
from experiments import recorded

METRIC = "exact_match"
POLICIES = ("arange", "offset", "randomized")
PLACEBO = {"offset": ("rope", "alibi", "t5", "nope"), "randomized": ("nope",)}
"""Encodings under which a policy must make no difference."""
PRIMARY = {"offset": ("learned", "sinusoidal")}
"""Those under which it is predicted to help, and tested."""
LEVEL = 0.05

Record = dict[str, Any]
Name = tuple[str, str, str]
"""Task, encoding, policy."""


def mean_of(values: Float[np.ndarray, " S"], fits: Bool[np.ndarray, " S"]) -> Estimate:
    """The mean with its t interval; with the range where not all fit, since a t interval of such mixtures covers 73 to 88 %."""
    found = of_mean(values)
    if fits.all() or found.kind == NONE:
        return found
    return dataclasses.replace(found, low=float(values.min()), high=float(values.max()), kind=RANGE)


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """The runs of a task under an encoding and a policy, by seed: exact match past training and within it."""

    past: Float[np.ndarray, " S"]
    within: Float[np.ndarray, " S"]

    @property
    def fits(self) -> Bool[np.ndarray, " S"]:
        """Which runs answer nearly all examples of the trained lengths."""
        return np.round(self.within, DECIMALS) >= FIT

    @property
    def fitted(self) -> bool:
        """Whether half of the runs or more do."""
        return bool(np.mean(self.fits) >= 0.5)

    @property
    def mean(self) -> Estimate:
        """The mean past training and its t interval, or the range of the runs."""
        return mean_of(self.past, self.fits)


@dataclasses.dataclass(frozen=True, eq=False)
class Difference:
    """A policy less arange, paired by seed. `role` is "placebo", "primary" or "other"; `p` is Holm's, of primary ones.

    `fitted`: whether both cells fitted; `fits`: in which pairs both runs did.
    """

    task: str
    encoding: str
    policy: str
    role: str
    fitted: bool
    fits: Bool[np.ndarray, " S"]
    values: Float[np.ndarray, " S"]
    p: float | None = None

    @property
    def mean(self) -> Estimate:
        """The mean and its t interval, or the range of the pairs."""
        return mean_of(self.values, self.fits)

    @property
    def leaves_zero_out(self) -> bool:
        """Whether the interval or range does not hold 0."""
        return not self.mean.low <= 0 <= self.mean.high


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """All cells and differences, in the order of tables; seeds; and where it was measured.

    `checked` placebo intervals were looked at, of which `outside` leave 0 out; chance does that to so many or more with
    probability `chance`. `zero`: without positions no policy made any difference.
    """

    cells: Mapping[Name, Cell]
    differences: tuple[Difference, ...]
    seeds: tuple[int, ...]
    about: Mapping[str, Any]
    zero: bool
    checked: int
    outside: int
    chance: float

    @property
    def sound(self) -> bool:
        """Whether the placebo cells are as they must be."""
        return self.zero and self.chance >= LEVEL


def gather(runs: pathlib.Path, path: pathlib.Path) -> None:
    """Write the record of every run of a sweep anew. Raises ValueError for a run that has not ended or lacks a score."""
    sweep = stored.read(runs)
    tables = [of_run(run) for run in sweep.runs]
    path.unlink(missing_ok=True)
    recorded.begin(path, {"kind": "protocol", "sweep": sweep.name})
    jsonl.append(path, *tables)


def of_run(run: stored.Run) -> Record:
    """What a run answered at each test length."""
    if run.state != "done":
        raise ValueError(f"run {run.id} is {run.state}: the comparison is of all runs of the sweep")
    scores = {row.length: row.value for row in run.final if row.metric == METRIC and row.split != "validation"}
    task, policy = run.config["task"], run.config["positions"]["policy"]
    about = {"task": task["name"], "encoding": run.config["model"]["encoding"]["name"], "policy": policy}
    if not scores or policy not in POLICIES:
        raise ValueError(f"run {run.id} has no {METRIC}, or positions of the policy {policy!r}, which is not compared")
    lengths = sorted(scores)
    measured = {"lengths": lengths, "scores": [scores[n] for n in lengths]}
    return {
        "kind": "run",
        "run": run.id,
        **about,
        "seed": run.config["seed"],
        "trained": task["length_max"],
        **measured,
    }


def read(path: pathlib.Path) -> Results:
    """The results of a file of records. Raises ValueError, naming the file, where it is damaged or holds other records."""
    return recorded.read(path, "policies of positions", results)


def results(tables: Sequence[Record]) -> Results:
    """The same of the records themselves. Raises ValueError where there are none, and where a cell lacks a seed."""
    runs = [table for table in tables if table.get("kind") == "run"]
    if not runs:
        raise ValueError("no run was recorded")
    seeds = tuple(sorted({run["seed"] for run in runs}))
    names = sorted({(run["task"], run["encoding"], run["policy"]) for run in runs}, key=place)
    cells = {name: cell_of(name, runs, seeds) for name in names}
    found = tested(list(differences(cells)))
    placebo = [one for one in found if one.role == "placebo"]
    zero = all(not one.values.any() for one in placebo if one.encoding == "nope")
    rest = [one for one in placebo if one.encoding != "nope" and one.fitted]
    outside = sum(one.leaves_zero_out for one in rest)
    chance = float(stats.binom.sf(outside - 1, len(rest), LEVEL))
    return Results(cells, tuple(found), seeds, recorded.about(list(tables)), zero, len(rest), outside, chance)


def place(name: Name) -> tuple[Any, ...]:
    """The place of a cell in tables."""
    task, encoding, policy = name
    return task, order(encoding), POLICIES.index(policy)


def cell_of(name: Name, runs: Sequence[Record], seeds: Sequence[int]) -> Cell:
    """The runs of one cell by seed."""
    own = {run["seed"]: run for run in runs if (run["task"], run["encoding"], run["policy"]) == name}
    if len(own) < len(seeds):
        raise ValueError(f"{' under '.join(name[:2])} with {name[2]} has {len(own)} of {len(seeds)} seeds: go on")
    mean = lambda run, past: np.mean(
        [score for n, score in zip(run["lengths"], run["scores"], strict=True) if (n > run["trained"]) == past]
    )
    return Cell(*(np.array([mean(own[seed], past) for seed in seeds]) for past in (True, False)))


def differences(cells: Mapping[Name, Cell]) -> Iterator[Difference]:
    """Every policy but arange, less arange. Raises ValueError where arange is missing."""
    for (task, encoding, policy), cell in cells.items():
        if policy == "arange":
            continue
        base = cells.get((task, encoding, "arange"))
        if base is None:
            raise ValueError(f"{task} under {encoding} has no arange, from which {policy} could differ")
        roles = (("placebo", PLACEBO), ("primary", PRIMARY))
        role = next((name for name, known in roles if encoding in known.get(policy, ())), "other")
        fitted, fits = cell.fitted and base.fitted, cell.fits & base.fits
        yield Difference(task, encoding, policy, role, fitted, fits, cell.past - base.past)


def tested(found: list[Difference]) -> list[Difference]:
    """The differences with Holm's p where they are primary and fitted."""
    places = [i for i, one in enumerate(found) if one.role == "primary" and one.fitted]
    adjusted = holm([sign_flip_above(found[i].values) for i in places])
    for i, p in zip(places, adjusted, strict=True):
        found[i] = dataclasses.replace(found[i], p=p)
    return found
