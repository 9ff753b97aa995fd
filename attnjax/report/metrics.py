"""The metrics of the records: the name of each, and whether higher is better."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Metric:
    """A metric: its key in the records, its name with its unit, and whether higher is better."""

    key: str
    label: str
    higher: bool

    @property
    def short(self) -> str:
        """The name without its conditions."""
        return self.label.split(",")[0]

    def of_task(self, task: str) -> "Metric":
        """The same metric with the unit of a task: a loss is per byte of a text, and per token of any other task.

        Example:
          >>> metric("loss_sliding").of_task("markov").label
          'loss, nats per token, sliding window'
        """
        return self if task == "text" else replace(self, label=self.label.replace("per byte", "per token"))

    @property
    def share(self) -> bool:
        """Whether it is a share of examples or tokens, from 0 to 1."""
        return self.higher and self in KNOWN

    @property
    def guess(self) -> str | None:
        """The name of its chance level in a manifest: of a whole answer or of a token."""
        return "token" if self.key == "token_accuracy" else "exact" if self.key.startswith("exact_match") else None

    @property
    def worst(self) -> float:
        """The score of a failed run: 0 for a share, infinity for a loss."""
        return 0.0 if self.higher else np.inf

    @property
    def sign(self) -> float:
        """1 if higher is better, otherwise -1."""
        return 1.0 if self.higher else -1.0


KNOWN = (
    Metric("exact_match", "exact match, free running", True),
    Metric("exact_match_oracle_length", "exact match, length given", True),
    Metric("loss_sliding", "loss, nats per byte, sliding window", False),
    Metric("loss_nonoverlapping", "loss, nats per byte, separate windows", False),
    Metric("token_accuracy", "token accuracy, teacher forced", True),
    Metric("loss", "loss, nats per token", False),
)
"""In the order in which a report prints them; the first that a task has is its primary metric, if no protocol says
another.
"""


def has_answers(keys: Iterable[str]) -> bool:
    """Whether these are the metrics of a task with answers, which are exactly right or not.

    Example:
      >>> has_answers(["token_accuracy", "exact_match"]), has_answers(["token_accuracy", "loss_sliding"])
      (True, False)
    """
    return any(key.startswith("exact_match") for key in keys)


PRIMARY = re.compile(r"^\W*primary metrics?:(.*)$", re.IGNORECASE | re.MULTILINE)

LOWER_IS_BETTER = ("loss", "perplexity", "error")


def metric(key: str) -> Metric:
    """The metric of a key; one that is not known here is named by its key."""
    known = next((item for item in KNOWN if item.key == key), None)
    return known or Metric(key, key.replace("_", " "), not key.startswith(LOWER_IS_BETTER))


def ordered(keys: Collection[str], first: Sequence[str] = ()) -> list[Metric]:
    """Metrics in this order: those of `first`, then as in `KNOWN`, then by name."""
    place = {key: number for number, key in enumerate(dict.fromkeys([*first, *(item.key for item in KNOWN)]))}
    return [metric(key) for key in sorted(keys, key=lambda key: (place.get(key, len(place)), key))]


def declared(protocol: str) -> tuple[str, ...]:
    """The metrics that a protocol names before the first run, in a line "Primary metric: token_accuracy,
    loss_sliding".
    """
    lines = PRIMARY.findall(protocol)
    return tuple(re.findall(r"\w+", lines[0])) if lines else ()
