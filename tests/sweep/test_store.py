"""The folder of a sweep: made once, never mixed with another, and readable whatever happened to it."""

import itertools
import json
import os
import pathlib
import stat
import threading

import pytest
from fake_training import train

from attnjax.config import canonical_json
from attnjax.records import files
from attnjax.records.status import Status
from attnjax.sweep import load, prepare, run_here, seeds
from attnjax.sweep.claim import claim
from attnjax.sweep.plan import plan
from tests.runs import runs_in


def names(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_preparing_twice_or_a_part_changes_nothing(make):
    store = make(seeds(3))
    before = {name: (store.root / name).stat().st_mtime_ns for name in names(store.root)}
    assert make(seeds(3)) == store
    assert make(seeds(1)).runs == store.runs[:1]
    assert {name: (store.root / name).stat().st_mtime_ns for name in names(store.root)} == before
    assert load(store.root) == store
    run = store.runs[0].run
    assert names(store.directory(run)) == ["config.json"]
    assert (store.directory(run) / "config.json").read_text() == canonical_json(store.config(run))
    assert store.status(run) == Status("pending", 0, "")


def test_of_two_sweeps_prepared_at_the_same_time_one_is_refused(make, monkeypatch):
    real = files.check_writable

    def meanwhile(folder):
        monkeypatch.setattr(files, "check_writable", real)
        real(folder)
        make(seeds(2))

    monkeypatch.setattr(files, "check_writable", meanwhile)
    with pytest.raises(ValueError, match="holds the sweep 'small' of 2 runs"):
        make(seeds(2), train={"batch": 9})
    assert len(runs_in(make(seeds(2)).root)) == 2


def test_another_process_that_changes_the_plan_is_waited_for(make):
    store = make(seeds(2))
    (store.root / "logs").mkdir(exist_ok=True)
    theirs = claim(store.root / "logs", 60.0)
    thread = threading.Timer(0.3, lambda: (kept.append(load(store.root)), theirs.release()))
    kept = []
    thread.start()
    prepare(store.root, "small", plan({}, seeds(3)), extend=True)
    thread.join()
    assert (kept, len(load(store.root).runs)) == ([store], 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, ".*'a/b'"),
        ({"runs": [{"run": "0123456789abcdef"}]}, "has no 'cell'"),
        ({"schema": 9}, ".*Update attnjax"),
    ],
)
def test_a_plan_that_lacks_something_is_refused_by_name(make, changes, message):
    path = make(seeds(1)).root / "sweep.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ValueError, match=rf"sweep\.json.* {message}"):
        load(path.parent)


def test_what_is_in_a_folder_when_its_runs_have_ended_is_on_the_disk(make, monkeypatch):
    """Each file was brought there with its last content, and each name of it later."""
    synced, moment, real = {}, itertools.count(), os.fsync

    def fsync(descriptor):
        about = os.fstat(descriptor)
        content = None if stat.S_ISDIR(about.st_mode) else pathlib.Path(f"/proc/self/fd/{descriptor}").read_bytes()
        synced[about.st_ino] = content, next(moment)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store = make(seeds(2))
    make(seeds(3), extend=True)
    run_here(load(store.root), train)
    for path in store.root.rglob("*"):
        if path.is_file() and "checkpoints" not in path.parts and "logs" not in path.parts:
            assert synced[path.stat().st_ino][0] == path.read_bytes(), path
    assert {"manifest.json", "status.json", "results.jsonl"} < set(os.listdir(store.folder(store.runs[0].run)))
    assert synced[store.directory(store.runs[0].run).stat().st_ino], "the rename that made it the result"
