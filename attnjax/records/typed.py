"""The records of runs, typed: what reading makes of folders and packed files, and reports compute from.

A table from a file that somebody else may have written becomes a measurement, a loss, or the reason why it is none.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnjax.records.examples import Examples
from attnjax.records.files import Problem
from attnjax.records.values import LARGEST, as_dict, number, text, whole

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
class Run:
    """One training: its id, its cell (the config without seeds), and everything it recorded.

    `state` is one of `status.STATES`, "absent" where the sweep lists a run that has no folder, "unknown" where its status was
    lost; `step` is the step that it was reached at. `losses` holds (step, training loss) in order of steps. `examples` holds
    the scores of single examples, None where they were not stored or are damaged.
    """

    id: str
    cell: str
    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    state: str = "absent"
    reason: str = ""
    results: tuple[Result, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    examples: Examples | None = None
    step: int = 0

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
    """All records of a folder: the sweep's spec, its runs in order of their ids, and what was not used, by its path
    in the folder.
    """

    name: str
    spec: Mapping[str, Any]
    runs: tuple[Run, ...]
    skipped: tuple[Problem, ...]


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
