"""The records of made-up runs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attnjax.records.stored import read
from attnjax.records.typed import Sweep
from tests.report.synthetic import EXAMPLES, Values, config, lines, run_id, write_run, write_spec


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Sweep]:
    """The records of runs given as (encoding, seed, {length: value})."""

    def build(*runs: tuple[str, int, Values], task: str = "copy", metric: str = "exact_match") -> Sweep:
        configs = [config(task, name, seed) for name, seed, _ in runs]
        write_spec(tmp_path, configs)
        for fields, (_, _, values) in zip(configs, runs, strict=True):
            row = {"run": run_id(fields), "step": 400, "metric": metric, "count": EXAMPLES}
            rows = [row | {"length": n, "value": v, "split": "train" if n <= 20 else "test"} for n, v in values.items()]
            write_run(tmp_path, fields, results=lines(rows))
        return read(tmp_path)

    return build
