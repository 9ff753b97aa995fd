"""A platform that is not there ends a command before it claims a run: no run fails by it."""

import json
import os
import subprocess
import sys

import hanging
import pytest

from attnjax.cli.planning import planned
from attnjax.sweep import prepare, run_workers, scan

SETTINGS = {"name": "small", "task": {"name": "reverse_string"}, "train": {"steps": 2}, "evaluate": {"lengths": [4]}}


@pytest.fixture
def store(tmp_path):
    """A sweep that was prepared where the platform was there."""
    config = tmp_path / "small.json"
    config.write_text(json.dumps(SETTINGS))
    plan = planned(str(config))
    return prepare(tmp_path / "out", "small", plan.runs, config_file=str(config), protocol=plan.file.text)


def untouched(store):
    (run,) = scan(store.root).runs
    assert run.status == ("pending", 0, "")
    assert sorted(path.name for path in run.directory.iterdir()) == ["config.json", "status.json"]


def test_no_run_is_claimed_in_this_process(store):
    command = [sys.executable, "-m", "attnjax", "run", str(store.root.parent / "small.json"), "--out", str(store.root)]
    environment = {**os.environ, "JAX_PLATFORMS": "nonsense", "PYTHONPATH": hanging.PATHS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode not in (0, 3)
    assert "nonsense" in done.stderr
    untouched(store)


def test_no_run_is_claimed_by_workers_and_one_line_says_why(store, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "nonsense")
    with pytest.raises(
        ValueError, match=r"^workers end before they finish a run, the last with exit status 1; "
    ) as said:
        run_workers(store, "attnjax.train:train", 1, threads=1)
    assert "the last line of its log" in str(said.value)
    assert "RuntimeError: Unable to initialize backend 'nonsense'" in str(said.value)
    assert "\n" not in str(said.value)
    untouched(store)
