"""What a run scored, in a few words: the metric that its report leads with, at its last evaluation."""

import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from attnjax.config import RunConfig
from attnjax.records import jsonl
from attnjax.records.runs import folder_of

SPLITS = ("train", "test")
"""As `train/evaluate.py` names evaluations within the lengths of training and past them; the third is validation."""


def score_of(directory: pathlib.Path, config: RunConfig, protocol: str = "") -> str:
    """The score of the run in a folder, see `final_score`; "" where nothing can be read."""
    try:
        return final_score(
            jsonl.read(folder_of(directory) / jsonl.RESULTS).tables,
            config.task.length_max,
            protocol,
            config.task.length_min,
        )
    except ValueError:
        return ""


def final_score(results: Iterable[Mapping[str, Any]], trained: int, protocol: str = "", shortest: int = 0) -> str:
    """Means over the lengths within training and past it: "exact_match 0.981 within, 0.310 past"; "" without an evaluation.

    They are the numbers of a report (`report/scores.py`): those of the last step, and none of validation examples.

    Args:
      results: the lines of results.jsonl.
      trained: the longest length of training.
      protocol: the text of the config, which may say "Primary metric: loss_sliding".
      shortest: the shortest length of training; below it, answers are not within training.

    Example:
      >>> measured = lambda length, value: {"step": 9, "split": "test", "length": length, "metric": "loss", "value": value}
      >>> final_score([measured(10, 0.5), measured(40, 2.0), measured(80, 3.0)], trained=10)
      'loss 0.500 within, 2.500 past'
    """
    from attnjax.report.metrics import declared, has_answers, ordered  # needs NumPy

    found = [one for one in results if one.get("split") in SPLITS and _usable(one)]
    last = max((one["step"] for one in found), default=0)
    found = [one for one in found if one["step"] == last]
    if not found:
        return ""
    metric = ordered({one["metric"] for one in found}, declared(protocol))[0].key
    ours = sorted((one for one in found if one["metric"] == metric), key=lambda one: SPLITS.index(one["split"]))
    at = {one["length"]: _number(one["value"]) for one in ours}  # of a length that both splits have, that of the test
    least = shortest if has_answers(one["metric"] for one in found) else 0
    parts = {
        "within": [value for length, value in at.items() if least <= length <= trained],
        "past": [value for length, value in at.items() if length > trained],
    }
    means = [f"{sum(values) / len(values):.3f} {where}" for where, values in parts.items() if values]
    return f"{metric} {', '.join(means)}"


def _usable(one: Mapping[str, Any]) -> bool:
    whole = all(isinstance(one.get(name), int) and not isinstance(one[name], bool) for name in ("step", "length"))
    value = one.get("value")
    return whole and isinstance(one.get("metric"), str) and (value is None or isinstance(value, int | float))


def _number(value: float | None) -> float:
    """NaN for null, which is how JSON writes what is not finite."""
    return math.nan if value is None else float(value)
