"""Where each cell of configs/onset.py breaks, by the law and its rivals: `python -m experiments.onset.predict` writes the file.

Columns: `unseen`, the first distance or position whose code is unseen; `onset`, the breakpoint by the law: the first tested
length that holds it, infinity where the cell is told to stay; the same for each rival; `class`; and the share of the rise that
repair of the unseen codes takes away.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnjax.positions.t5 import edges
from configs.onset import CELLS, TASKS, cells

FILE = Path(__file__).parent / "predictions.csv"
HEAD_DIM, WIDTH = 16, 64
BIASES = ("t5", "fire")
"""Encodings that learn a number for each distance and head, whatever the tokens."""
REPAIRED = ("rope", "t5", "sinusoidal", "learned")
RIVALS = ("trained", "liu", "men", "phase")
TURN, LEAST = 0.41, 1.2
"""Of the rival `phase`: the share of a wavelength, and the least wavelength in trained lengths."""
Options = Mapping[str, Any]


def tokens(task: str, length: int) -> int:
    """Returns the tokens of a test, whose positions and distances are below this number: of recall, a string and it again."""
    return 2 * length - 1 if task == "recall" else length


def task_named(name: str) -> str:
    """Returns the task of configs/onset.py with this name in `attnjax.tasks`.

    Example:
      >>> task_named("induction")
      'recall'
    """
    return next(task for task, changes in TASKS.items() if changes["task"]["name"] == name)


def cell_of(name: str, options: Options, policy: str) -> str:
    """Returns the cell of configs/onset.py with this encoding and policy of positions.

    Example:
      >>> cell_of("sinusoidal", {}, "offset")
      'sinusoidal starts'
    """
    mine = (name, dict(options), policy)
    own = lambda changes: (*changes["model.encoding"].values(), changes.get("positions.policy", "arange"))
    return next(cell for cell, changes in CELLS.items() if own(changes) == mine)


def waves(name: str, options: Options) -> np.ndarray:
    """Returns the wavelengths of an encoding of the distance; none where it has no waves.

    Example:
      >>> waves("rope", {"theta": 10_000.0}).round(1).tolist()
      [6.3, 19.9, 62.8, 198.7, 628.3, 1986.9, 6283.2, 19869.2]
    """
    count = {"rope": HEAD_DIM // 2, "xpos": HEAD_DIM // 2, "pope": HEAD_DIM, "transformer_xl": WIDTH // 2}.get(name, 0)
    return 2 * np.pi * options.get("theta", 10_000.0) ** (np.arange(count) / max(count, 1))


def first_unseen(name: str, options: Options, trained: int, *, starts: bool = False) -> float:
    """Returns the first distance or position whose code no training sequence of `trained` tokens had; infinity for none.

    Args:
      name: of the encoding.
      options: of the encoding.
      trained: tokens of the longest training sequence.
      starts: whether positions began anywhere up to the end of the longest test.

    Example:
      >>> first_unseen("t5", {"buckets": 32, "max_distance": 128}, 64), first_unseen("alibi", {}, 64)
      (67.0, inf)
    """
    if name == "t5":
        rows = edges(options["buckets"], options["max_distance"])
        return float(min(rows[rows >= trained], default=math.inf))
    if name in ("sinusoidal", "learned"):
        return math.inf if starts else float(trained)
    if name == "fire":
        return float(trained) if options["threshold"] > trained else math.inf
    found = waves(name, options)
    return float(min(found[found > trained], default=math.inf))


def rivals(name: str, options: Options, trained: int, *, starts: bool = False) -> dict[str, float]:
    """Returns what the rivals say in place of `first_unseen`."""
    law, found = first_unseen(name, options, trained, starts=starts), waves(name, options)
    literal = float(trained) if math.isfinite(law) else math.inf
    rotary = name in ("rope", "xpos")
    return {
        "trained": literal,
        "liu": critical(options["theta"], HEAD_DIM, trained) if rotary else literal,
        "men": negative(found) if rotary else literal,
        "phase": trained + TURN * float(min(found[found >= LEAST * trained])) if len(found) else law,
    }


def critical(theta: float, dim: int, trained: int) -> float:
    """Returns 2 pi theta^(d_extra / d) of Liu et al. 2024 for a model trained with its base from scratch.

    Example:
      >>> round(critical(10_000.0, 128, 4096))  # LLaMA 2: d_extra is 92
      4712
    """
    extra = 2 * math.ceil(dim / 2 * math.log(trained / (2 * math.pi), theta))
    return 2 * math.pi * theta ** (extra / dim)


def negative(wavelengths: np.ndarray, most: int = 100_000) -> float:
    """Returns the first distance n at which sum_k cos(2 pi n / wavelength_k) is below 0 (Men et al. 2024)."""
    sums = np.cos(2 * np.pi * np.arange(most)[:, None] / wavelengths).sum(1)
    return float(np.argmax(sums < 0)) if (sums < 0).any() else math.inf


def tested(task: str, unseen: float) -> float:
    """Returns the first tested length past the trained ones that holds a distance or position; infinity where none does.

    Example:
      >>> tested("markov", 3.0), tested("markov", 128.0), tested("recall", 64.0)
      (66, 136, 33)
    """
    _, *beyond = TASKS[task]["evaluate.lengths"]
    return next((length for length in beyond if tokens(task, length) > unseen), math.inf)


def rises(task: str, name: str, unseen: float) -> bool:
    """Returns whether a loss is told to rise: where a code is unseen, but for biases on chains, whose distances count alike."""
    return math.isfinite(unseen) and not (task == "markov" and name in BIASES)


def predict() -> pd.DataFrame:
    """Returns the predictions: a row for each task and cell."""
    rows = [row(task, cell) for task in TASKS for cell in cells(task)]
    return pd.DataFrame(rows)


def row(task: str, cell: str) -> dict[str, Any]:
    """Returns the predictions of a cell."""
    changes, trained = CELLS[cell], tokens(task, TASKS[task]["task"]["length_max"])
    name, options = changes["model.encoding"]["name"], changes["model.encoding"]["options"]
    starts = "positions.policy" in changes
    unseen = first_unseen(name, options, trained, starts=starts)
    up = rises(task, name, unseen)
    places = {"onset": unseen, **rivals(name, options, trained, starts=starts)}
    return {
        "task": task,
        "cell": cell,
        "encoding": name,
        "options": json.dumps(options),
        "unseen": unseen,
        **{one: tested(task, place) if up else math.inf for one, place in places.items()},
        "class": "rises" if up else "stays",
        "share": "at least 0.8" if up and name in REPAIRED else "",
    }


def main(path: Path = FILE) -> None:
    """Writes the predictions."""
    predict().to_csv(path, index=False, float_format="%.1f")


if __name__ == "__main__":
    main()
