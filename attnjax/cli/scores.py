"""What runs scored, in a few words: the metric that their report leads with, at the last evaluation."""

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from attnjax.config import RunConfig, encoding_name

if TYPE_CHECKING:
    from attnjax.records.typed import Run


class Score(NamedTuple):
    """The means of a metric over the lengths within training and past it; None where none was tested."""

    metric: str
    within: float | None
    past: float | None

    def __str__(self) -> str:
        parts = ((self.within, "within"), (self.past, "past"))
        return f"{self.metric} " + ", ".join(f"{value:.3f} {where}" for value, where in parts if value is not None)


def score_of(run: "Run", config: RunConfig, protocol: str = "") -> Score | None:
    """Return the score of a run at its last evaluation; None without a test.

    Of a length that has two splits that of the test counts. Where a task has answers, lengths below the shortest trained one
    are not within training. `protocol` is the text of the config, which may say "Primary metric: loss_sliding".
    """
    from attnjax.report.metrics import declared, has_answers, ordered

    tested = [one for one in run.final if one.split != "validation"]
    if not tested:
        return None
    metric = ordered({one.metric for one in tested}, declared(protocol))[0].key
    last = sorted(tested, key=lambda one: one.split == "test")
    at = {one.length: one.value for one in last if one.metric == metric}
    least = config.task.length_min if has_answers(one.metric for one in last) else 0
    within = [value for length, value in at.items() if least <= length <= config.task.length_max]
    past = [value for length, value in at.items() if length > config.task.length_max]
    return Score(metric, *(fmean(values) if values else None for values in (within, past)))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def method(config: RunConfig) -> str:
    """Return the encoding of a run, with the policy of its positions where they do not count from zero."""
    name, policy = encoding_name(config.model, options=True), config.positions.policy
    return name if policy == "arange" else f"{name} policy={policy}"
