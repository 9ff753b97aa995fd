"""`results`: all measurements of a folder of runs as one tidy table, from which everything else is computed."""

import json
import pathlib
from typing import Any

import pandas as pd

from attnjax.records.stored import read
from attnjax.records.typed import Run, Sweep
from attnjax.records.values import dotted

UNNAMED = ("seed", "schema", "name")
MEASURED = ("step", "length", "split", "metric", "value", "count")


def results(folder: str | pathlib.Path) -> pd.DataFrame:
    """Return every measurement of a sweep: run, the settings in which runs differ, seed, step, length, split, metric, value,
    count.

    The folder is that of a live or finished sweep, or a packed one as in `experiments/`. Settings are dotted keys of the
    config, "model.encoding.name"; lists are texts. `frame.attrs` holds the name and protocol of the sweep, and of each run,
    by id, its cell, state and reason: a run that failed has no rows.

    Raises ValueError where the folder holds no run.

    Example:
      >>> table = results("experiments/length_table")                                              # doctest: +SKIP
      >>> table.groupby(["task.name", "model.encoding.name", "length"]).value.median()             # doctest: +SKIP
    """
    return table(read(folder))


def table(sweep: Sweep) -> pd.DataFrame:
    """Return the same of records that were read before."""
    settings = {run.id: settings_of(run) for run in sweep.runs}
    fields = differing(list(settings.values()))
    if all(run.config.get("data_seed") == run.config.get("seed") for run in sweep.runs):
        fields = [field for field in fields if field != "data_seed"]
    rows = [
        (run.id, *(settings[run.id].get(field) for field in fields), run.config.get("seed"), *_measurement(row))
        for run in sweep.runs
        for row in run.results
    ]
    frame = pd.DataFrame(rows, columns=["run", *fields, "seed", *MEASURED])
    told = {run.id: {"cell": run.cell, "state": run.state, "reason": run.reason} for run in sweep.runs}
    frame.attrs = {"name": sweep.name, "protocol": sweep.spec.get("protocol", ""), "runs": told}
    return frame


def _measurement(row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in MEASURED)


def settings_of(run: Run) -> dict[str, Any]:
    """Return the dotted keys and values of a run's config; lists as texts, without empty tables and what names a run."""
    known = {key: value for key, value in dotted(run.config) if key not in UNNAMED and value != {}}
    return {key: json.dumps(value) if isinstance(value, list) else value for key, value in known.items()}


def differing(settings: list[dict[str, Any]]) -> list[str]:
    """Return the keys that not all of these tables have with the same value, in order.

    Example:
      >>> differing([{"layers": 2, "rate": 0.1}, {"layers": 2, "rate": 0.2}])
      ['rate']
    """
    known = [found for found in settings if found]
    keys = dict.fromkeys(key for found in known for key in found)
    return sorted(key for key in keys if len({json.dumps(found.get(key)) for found in known}) > 1)
