"""`attnjax list runs DIR --watch`: what it tells of runs that others train, from the folder alone."""

import errno
import json
import os
import time

import pytest

from attnjax.cli import main
from attnjax.cli.watching import View, _duration
from attnjax.config import parse
from attnjax.records import status
from attnjax.records.status import Status
from attnjax.sweep import plan, prepare, seeds
from attnjax.sweep.claim import FILE, Owner, claim


def write(directory, state, step, reason=""):
    """What an attempt says, or a result."""
    directory /= "result" if state in status.FINAL else "attempt-0001-aa"
    directory.mkdir(exist_ok=True)
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
    lease = claim(a, 0.0, 60.0)
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
        f"  {c.name}  failed at step 7 of 100: nan",
        f"  {a.name}  step 30 of 100  its process is gone",
    ]
    assert not view.ended()
    write(d, "running", 1)
    (d / "attempt-0001-aa" / "status.json").write_text("{")
    write(a, "done", 100)
    assert "1 pending" in next(iter(view.lines()))
    assert not view.ended()
    assert "1 damaged" in next(iter(view.lines()))
    assert view.ended()


def test_a_status_that_cannot_be_read_for_a_moment_does_not_end_the_watch(store, monkeypatch):
    """As on a file system of a network, whose server has just replaced the file."""
    *others, last = [store.directory(entry.run) for entry in store.runs]
    for directory in others:
        write(directory, "done", 100)
    write(last, "running", 30)
    view, read, lost = View(store), store.status, []

    def stale(run):
        if run == last.name and lost:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(run)

    monkeypatch.setattr(type(store), "status", lambda self, run: stale(run))
    for refused in (False, True, False, True, False):
        lost[:] = [refused] * refused
        assert next(view.lines()).startswith("4 runs: 3 done, 1 running; 330 of 400 steps")
        assert not view.ended()


def test_the_first_failures_are_told_with_their_reasons(tmp_path):
    config = parse({"name": "small", "train": {"steps": 100}, "evaluate": {"lengths": [10]}})
    store = prepare(tmp_path / "many", "small", plan(config, seeds(7)))
    for step, entry in enumerate(store.runs):
        write(store.directory(entry.run), "failed", step, f"nan at step {step}")
    names = [entry.run for entry in store.runs]
    assert [*View(store).lines()] == [
        "7 runs: 7 failed; 0 of 0 steps",
        *(f"  {name}  failed at step {step} of 100: nan at step {step}" for step, name in enumerate(names[:5])),
        "  and 2 more failed",
    ]


@pytest.mark.parametrize("patience", [60.0, 300.0])
def test_how_long_ago_a_process_of_another_machine_gave_a_sign_of_life(store, monkeypatch, patience):
    directory = store.directory(store.runs[0].run)
    write(directory, "running", 30)
    (directory / FILE).write_text(json.dumps(Owner("0001-aa", "far", "0" * 32, 5, "1")._asdict()))
    os.utime(directory / FILE, (1000.0, 1000.0))
    for seconds, alive in ((5, True), (70, patience > 70)):
        monkeypatch.setattr(time, "time", lambda seconds=seconds: 1000.0 + seconds)
        told = [*View(store, patience).lines()][1].removeprefix(f"  {directory.name}  step 30 of 100  ")
        assert told == f"{'process 5 on far' if alive else 'its process is gone'}, last heartbeat {seconds} seconds ago"


def test_ends_with_the_last_run(store, capsys):
    for entry in store.runs:
        write(store.directory(entry.run), "done", 100)
    assert main(["list", "runs", str(store.root), "--watch", "0.01", "--patience", "300"]) == 0
    assert capsys.readouterr().out == "4 runs: 4 done; 400 of 400 steps\n"


def test_what_is_no_sweep(tmp_path, capsys):
    assert main(["list", "runs", str(tmp_path), "--watch"]) == 2
    assert "holds no sweep" in capsys.readouterr().err
    assert main(["list", "tasks", "--watch"]) == 2
    assert "--watch needs runs and the folder of a sweep" in capsys.readouterr().err
    assert main(["list", "runs", str(tmp_path), "--patience", "9"]) == 2
    assert "--patience needs --watch: it says when a process elsewhere counts as gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.2, "1 seconds"), (119, "119 seconds"), (130, "2 minutes"), (7300, "2 hours"), (2e5, "2 days")],
)
def test_durations(seconds, text):
    assert _duration(seconds) == text
