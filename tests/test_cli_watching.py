"""`attnjax list runs DIR --watch`: what it tells of runs that others train, from the folder alone."""

import os
import time

import pytest

from attnjax.cli import main
from attnjax.cli.watching import View, _duration
from attnjax.config import parse
from attnjax.records import status
from attnjax.records.status import Status
from attnjax.sweep import plan, prepare, seeds
from attnjax.sweep.lease import Watch, claim


def write(directory, state, step, reason=""):
    """By way of "running", as every run goes."""
    status.write(directory, Status("running", step))
    status.write(directory, Status(state, step, reason))


@pytest.fixture
def store(tmp_path):
    config = parse({"name": "small", "train": {"steps": 100}, "evaluate": {"lengths": [10]}})
    return prepare(tmp_path / "out", "small", plan(config, seeds(4)))


def test_counts_rate_and_time_left(store, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view, (a, b, c, d) = View(store), [store.directory(entry.run) for entry in store.runs]
    assert [*view.lines()] == ["4 runs: 4 pending; 0 of 400 steps"]
    lease = claim(a, Watch())
    write(a, "running", 30)
    write(b, "done", 100)
    now[0] += 10
    assert [*view.lines()] == [
        "4 runs: 1 running, 1 done, 2 pending; 130 of 400 steps, 13 a second, about 21 seconds left",
        f"  {a.name}  step 30 of 100  process {os.getpid()} on {lease.owner.host}",
    ]
    lease.release()
    write(c, "failed", 7, "nan")
    now[0] += 10
    assert [*view.lines()] == [
        "4 runs: 1 running, 1 done, 1 failed, 1 pending; 130 of 300 steps, 6.5 a second, about 26 seconds left",
        f"  {a.name}  step 30 of 100  its process is gone",
    ]
    assert not view.ended()
    (d / "status.json").write_text("{")
    write(a, "done", 100)
    assert "1 damaged" in next(iter(view.lines()))
    assert view.ended()


def test_ends_with_the_last_run(store, capsys):
    for entry in store.runs:
        write(store.directory(entry.run), "done", 100)
    assert main(["list", "runs", str(store.root), "--watch", "0.01"]) == 0
    assert capsys.readouterr().out == "4 runs: 4 done; 400 of 400 steps\n"


def test_what_is_no_sweep(tmp_path, capsys):
    assert main(["list", "runs", str(tmp_path), "--watch"]) == 2
    assert "holds no sweep" in capsys.readouterr().err
    assert main(["list", "tasks", "--watch"]) == 2
    assert "--watch needs runs and the folder of a sweep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2, "1 seconds"), (119, "119 seconds"), (130, "2 minutes"), (7300, "2 hours"), (2e5, "2 days")],
)
def test_durations(seconds, text):
    assert _duration(seconds) == text
