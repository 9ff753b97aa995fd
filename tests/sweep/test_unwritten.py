"""A disk that takes no more, at every moment: the exit status and the status on the disk say no more than what is there."""

import errno
import itertools
import json
import os

import fake_training
import pytest
from checks import check_complete

from attnjax.cli import main
from attnjax.cli.planning import planned
from attnjax.records import files, jsonl
from attnjax.sweep import ExecutionConfig, manifest, prepare, run_here, run_workers, seeds
from attnjax.sweep.lease import Lease, Watch, claim

pytestmark = pytest.mark.slow

TRAINER = "fake_training:train"


class Full:
    """A function of the system that refuses from its `last`-th call on, as that of a full disk does."""

    def __init__(self, name, last):
        self.real, self.name, self.left = getattr(os, name), name, last

    def __call__(self, *arguments, **named):
        if self.name == "open" and not arguments[1] & os.O_CREAT:
            return self.real(*arguments, **named)
        self.left -= 1
        if self.left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(*arguments, **named)


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """The command of a small sweep on a folder that was prepared for it; git is not asked at every start."""
    monkeypatch.setattr(manifest, "of_machine", dict)
    small = {"name": "small", "train": {"steps": 4, "checkpoint_every": 2}, "evaluate": {"lengths": [10, 20]}}
    config = tmp_path / "small.json"
    config.write_text(json.dumps({**small, "task": {"options": {"work": 1}}}))

    def prepared(name):
        plan = planned(str(config), count=2)
        store = prepare(tmp_path / name, "small", plan.runs, config_file=str(config), protocol=plan.file.text)
        return store, lambda: main(
            ["sweep", str(config), "--seeds", "2", "--trainer", TRAINER, "--out", str(store.root), "--population", "1"]
        )

    return prepared


@pytest.mark.parametrize("name", ["write", "fsync", "replace", "open"])
def test_a_disk_that_is_full_from_any_moment_on_is_never_a_success(sweep, monkeypatch, capsys, name):
    codes = []
    for last in itertools.count(1):
        store, command = sweep(f"{name}{last}")
        full = Full(name, last)
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            codes.append(command())
        told = capsys.readouterr()
        states = {entry.run: store.status(entry.run).state for entry in store.runs}
        check_complete(store, except_for=[run for run, state in states.items() if state != "done"])
        if full.left > 0:
            break
        if codes[-1]:
            assert "No space left" in told.out + told.err or "no space left" in told.out + told.err, told
        assert (codes[-1] == 0) <= (set(states.values()) == {"done"}), (last, told)
        assert "failed" not in states.values(), (last, told)
        assert command() == 0, (last, capsys.readouterr())
        assert "2 runs: 2 done" in capsys.readouterr().out
        check_complete(store)
    assert codes[-1] == 0
    assert len(codes) > 5
    assert 1 in codes
    assert set(codes) <= {0, 1, 2}, "2 where the folder is refused before anything is begun"


def test_the_last_lines_say_what_could_not_be_written_and_why(sweep, monkeypatch, capsys):
    store, command = sweep("one")
    bad = store.runs[0].run
    refuse(monkeypatch, lambda path, text: path.parent.name == bad and '"state": "done"' in text)
    assert command() == 1
    told = capsys.readouterr().out
    assert f"[0/2] {bad}  unwritten at step 4" in told
    assert f"unwritten {bad}: its end (done) could not be written: No space left on device" in told
    assert told.splitlines()[-1] == "2 runs: 1 unwritten, 1 done"
    assert store.status(bad).state == "running"
    monkeypatch.undo()
    assert command() == 0
    check_complete(store)


def refuse(monkeypatch, condition):
    real = files.write

    def write(path, text, **named):
        if condition(path, text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, text, **named)

    monkeypatch.setattr(files, "write", write)


def broken(path, *_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("status", "its end (done) could not be written: No space left on device"),
        ("manifest", "its end (done) could not be written: No space left on device"),
        ("records", "its end (done) could not be written: No space left on device"),
        (
            "traceback",
            "its end (failed) could not be written: No space left on device; RuntimeError: broken at step 4",
        ),
        (
            "begin",
            "its end (failed) could not be written: No space left on device; disk full: OSError: [Errno 28] "
            "No space left on device",
        ),
        ("lease", "its lease could not be written: No space left on device"),
    ],
)
def test_each_write_that_may_fail_is_remembered_and_leaves_a_run_that_goes_on(make, monkeypatch, what, reason):
    store = make(seeds(1), task={"options": {"fail_at": 4}} if what == "traceback" else {"options": {}})
    parts = {
        "status": lambda path, text: '"state": "done"' in text and path.name == "status.json",
        "manifest": lambda path, text: '"end_time"' in text,
        "traceback": lambda path, text: path.name == "traceback.txt",
        "begin": lambda path, text: path.name in ("manifest.json", "traceback.txt"),
    }
    with monkeypatch.context() as patch:
        if what == "records":
            patch.setattr(jsonl, "sync", broken)
        elif what == "lease":
            patch.setattr("attnjax.sweep.lease._create", broken)
        else:
            refuse(patch, parts[what])
        summary = run_here(store, fake_training.train)
    run = store.runs[0].run
    assert summary.unwritten == {run: reason}
    assert summary.states == {run: "unwritten"}
    assert store.status(run).state in ("pending", "running")
    after = run_here(store, fake_training.train)
    assert after.states == {run: "failed" if what == "traceback" else "done"}


def test_a_status_damaged_meanwhile_costs_its_run_alone(make):
    def train(configs, directories, context):
        fake_training.train(configs, directories, context)
        (directories[0] / "status.json").write_text("{")

    store = make(seeds(2))
    summary = run_here(store, train)
    assert list(summary.states.values()) == ["unwritten", "done"]
    assert "status.json" in summary.unwritten[store.runs[0].run]


def test_the_driver_remembers_what_its_workers_could_not_write(make, monkeypatch):
    store = make(seeds(2))
    summary = run_workers(store, "fake_training:full", 2, ExecutionConfig(population=1), threads=1)
    bad, good = (entry.run for entry in store.runs)
    assert summary.states == {bad: "unwritten", good: "done"}
    assert "No space left on device" in summary.unwritten[bad]
    assert store.status(bad).state == "running"
    assert set(run_here(store, fake_training.train).states.values()) == {"done"}
    check_complete(store)


def test_a_lease_is_released_on_a_disk_that_takes_nothing(tmp_path, monkeypatch):
    lease = claim(tmp_path, Watch())
    assert isinstance(lease, Lease)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        lease.release()
    again = claim(tmp_path, Watch())
    assert isinstance(again, Lease)
    assert again.owner.attempt == 1, "no death"
    again.release()
