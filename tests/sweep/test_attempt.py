"""Attempts: a copy of the one before, records of its own, and one result, of whoever is first."""

import errno
import os
import shutil

import pytest

from attnjax.records import jsonl, status
from attnjax.records.runs import folder_of, status_of
from attnjax.records.status import Status
from attnjax.sweep.attempt import RunContext, begin, newest_step, next_token, publish, update_manifest
from attnjax.sweep.outcome import Stop


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / ("0" * 16)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def filled(folder, step=4, **extra):
    """Writes what an attempt has after some steps."""
    saved = folder / "checkpoints" / str(step) / "state"
    saved.mkdir(parents=True)
    (saved / "w").write_text(f"weights {step}")
    jsonl.append(folder / jsonl.METRICS, *({"step": one} for one in range(1, step + 1)))
    update_manifest(folder, {"state": "running", **extra})
    status.write(folder, Status("running", step))
    return folder


def context(*attempts):
    return RunContext(dict.fromkeys(attempts, 0), Stop(), lambda event: None)


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_new_attempt_goes_on_from_the_newest_and_neither_disturbs_the_other(run):
    old = filled(begin(run, next_token(run)))
    (old / "fitted.json").write_text("{}")
    (old / "checkpoints" / "partial-6-ab").mkdir()
    (old / "checkpoints" / "partial-6-ab" / "w").write_text("half")
    new = begin(run, next_token(run))
    assert (folder_of(run), newest_step(new)) == (new, 4)
    kept = ["checkpoints/4/state/w", "fitted.json", "manifest.json", "metrics.jsonl"]
    assert names(new) == kept
    assert (new / kept[0]).stat().st_ino == (old / kept[0]).stat().st_ino
    before = {name: (new / name).read_bytes() for name in kept}
    jsonl.append(old / jsonl.METRICS, {"step": 5})
    update_manifest(old, {"state": "done"})
    shutil.rmtree(old / "checkpoints" / "4")
    assert {name: (new / name).read_bytes() for name in kept} == before


def test_files_are_copied_where_links_cannot_be_made(run, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "no links")

    old = filled(begin(run, next_token(run)))
    monkeypatch.setattr(os, "link", refuse)
    new = begin(run, next_token(run))
    assert (new / "checkpoints/4/state/w").read_text() == "weights 4"
    assert (new / "checkpoints/4/state/w").stat().st_ino != (old / "checkpoints/4/state/w").stat().st_ino


def test_a_run_of_version_0_2_0_is_refused_by_name(run):
    filled(run)
    for read in (status_of, folder_of, lambda run: begin(run, next_token(run))):
        with pytest.raises(ValueError, match=rf"{run.name} was written by attnjax 0\.2\.0"):
            read(run)


def test_the_first_is_published_and_a_slow_one_changes_nothing(run):
    slow = filled(begin(run, next_token(run)))
    quick = begin(run, next_token(run))
    status.write(slow, Status("done", 4, "slow"))
    status.write(quick, Status("done", 4, "quick"))
    assert status_of(run).state == "preempted", "no attempt has ended its run before it is the result"
    assert publish(quick)
    before = {name: (run / "result" / name).read_bytes() for name in names(run / "result")}
    assert [path.name for path in run.iterdir() if path.is_dir()] == ["result"]
    with pytest.raises(OSError, match="No such file"):
        context(slow).metrics(slow, {"step": 5})
    slow.mkdir()  # a thread that saves may make it again
    assert not publish(slow)
    assert {name: (run / "result" / name).read_bytes() for name in names(run / "result")} == before
    assert status_of(run) == Status("done", 4, "quick")


def test_records_after_the_step_resumed_from_are_forgotten_with_torn_lines_and_those_of_other_runs(run):
    attempt = filled(begin(run, next_token(run)))
    with (attempt / jsonl.METRICS).open("a") as log:
        log.write('{"schema": 3, "step": 1, "run": "other"}\nnonsense\n{"schema": 3, "ste')
    (attempt / "examples.npz").write_bytes(b"x")
    told = context(attempt)
    rows = [{"step": step, "length": 8, "metric": "loss", "value": 1.0, "split": "test"} for step in (2, 4)]
    told.results(attempt, *rows, rows[0])
    told.truncate_after(attempt, 2)
    assert [one["step"] for one in jsonl.read(attempt / jsonl.METRICS).rows] == [1, 2]
    assert jsonl.read(attempt / jsonl.METRICS).problems == []
    assert not (attempt / "examples.npz").exists()
    told.results(attempt, *rows)
    assert [one["step"] for one in jsonl.read(attempt / jsonl.RESULTS).rows] == [2, 4], "none is there twice"
    assert {one["run"] for one in jsonl.read(attempt / jsonl.RESULTS).rows} == {run.name}
