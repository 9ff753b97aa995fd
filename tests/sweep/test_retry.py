"""Failed runs are tried again, but for those that a living process holds."""

import argparse
import itertools
import json
import time

import fake_training

from attnjax.cli import execution
from attnjax.sweep import retry, run_here, seeds
from attnjax.sweep.lease import Watch, claim


def elsewhere(directory, beat=0):
    """A lease of another machine, after those that are there."""
    number = 1 + len([*directory.glob("lease-*")])
    table = {"schema": 1, "host": "far", "machine": "elsewhere", "pid": 7, "started": "1"}
    (directory / f"lease-{number:06d}").write_text(f"{json.dumps(table)}\nbeat {beat:012d}\n")


def test_failed_runs_of_a_lost_machine_are_tried_again_after_patience(make):
    """It had written that they failed, and was lost before it gave them back."""
    store = make(seeds(3), task={"options": {"fail_at": 3}})
    run_here(store, fake_training.train)
    for entry in store.runs:
        elsewhere(store.directory(entry.run))
    start = time.monotonic()
    assert retry(store, patience=0.5) == [entry.run for entry in store.runs]
    assert time.monotonic() - start < 1.4, "they are waited for together"


def test_a_failed_run_that_a_living_process_holds_is_not_tried_again(make, monkeypatch, capsys):
    """One on another machine, whose heartbeat changes, and one on this."""
    store, beats = make(seeds(3), task={"options": {"fail_at": 3}}), itertools.count(1)
    run_here(store, fake_training.train)
    far, near, free = (store.directory(entry.run) for entry in store.runs)
    elsewhere(far)
    mine = claim(near, Watch(), again=True)
    monkeypatch.setattr(time, "sleep", lambda _: (far / "lease-000002").unlink() or elsewhere(far, next(beats)))
    given = argparse.Namespace(retry_failed=True, patience=60.0)
    assert execution._retried(given, store) == [free.name]
    mine.release()
    told = [f"note: {far.name} failed and is not tried again: process 7 on far holds it"]
    told += [f"note: {near.name} failed and is not tried again: {mine.owner} holds it"]
    assert capsys.readouterr().out.splitlines() == told
    assert [store.status(path.name).state for path in (far, near, free)] == ["failed", "failed", "pending"]
