"""The folder of a sweep: made once, never mixed with another, and readable whatever happened to it."""

import errno
import itertools
import os
import pathlib
import stat
import subprocess
import sys
import threading

import pytest
from fake_training import train

from attnjax.config import canonical_json
from attnjax.records import files
from attnjax.records.status import Status
from attnjax.sweep import load, prepare, run_here, scan, seeds
from attnjax.sweep.claim import claim, holder
from attnjax.sweep.plan import plan

ROOT = pathlib.Path(__file__).parents[2]


def names(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_preparing_twice_changes_nothing(make):
    store = make(seeds(3))
    before = {name: (store.root / name).stat().st_mtime_ns for name in names(store.root)}
    assert make(seeds(3)) == store
    assert {name: (store.root / name).stat().st_mtime_ns for name in names(store.root)} == before
    assert load(store.root) == store
    run = store.runs[0].run
    assert names(store.directory(run)) == ["config.json"]
    assert (store.directory(run) / "config.json").read_text() == canonical_json(store.config(run))
    assert store.status(run) == Status("pending", 0, "")


def test_another_sweep_in_the_folder_is_refused_with_the_difference(make):
    store = make(seeds(2))
    before = names(store.root)
    message = "holds the sweep 'small' of 2 runs, and 1 of the 3 .*data_seed is 2 instead of 0; seed is 2 instead of 0"
    with pytest.raises(ValueError, match=message):
        make(seeds(3))
    with pytest.raises(ValueError, match="train.learning_rate is 0.5 instead of 0.001.*--extend"):
        make(seeds(2), train={"learning_rate": 0.5})
    assert names(store.root) == before


def test_of_two_sweeps_prepared_at_the_same_time_one_is_refused(make, monkeypatch):
    real = files.check_writable

    def meanwhile(folder):
        monkeypatch.setattr(files, "check_writable", real)
        real(folder)
        make(seeds(2))

    monkeypatch.setattr(files, "check_writable", meanwhile)
    with pytest.raises(ValueError, match="holds the sweep 'small' of 2 runs"):
        make(seeds(2), train={"batch": 9})
    assert len(scan(make(seeds(2)).root).runs) == 2


def test_a_sweep_can_be_extended_and_part_of_it_asked_for(make):
    make(seeds(2))
    more = make(seeds(3), extend=True)
    assert len(load(more.root).runs) == 3
    assert [entry.run for entry in make(seeds(1)).runs] == [more.runs[0].run]
    assert len(load(more.root).runs) == 3


def planning(root):
    """The claim of who is changing the plan."""
    (root / "logs").mkdir(exist_ok=True)
    return claim(root / "logs", 0.0, 60.0)


def more(store, patience):
    return prepare(store.root, "small", plan({"name": "small"}, seeds(3)), extend=True, patience=patience)


def test_another_process_that_changes_the_plan_is_waited_for(make):
    store = make(seeds(2))
    theirs = planning(store.root)
    with pytest.raises(ValueError, match=rf"{theirs.owner} is changing the plan in .*; try again"):
        more(store, 0.1)
    thread = threading.Timer(0.3, theirs.release)
    thread.start()
    assert len(load(more(store, 60.0).root).runs) == 5
    thread.join()


def test_a_machine_that_is_lost_while_it_changes_the_plan_is_waited_for_no_longer_than_patience(make, monkeypatch):
    store = make(seeds(2))
    with monkeypatch.context() as patch:
        patch.setattr("attnjax.sweep.claim.machine_id", lambda: "elsewhere")
        theirs = planning(store.root)
    assert len(load(more(store, 0.2).root).runs) == 5
    assert (theirs.beat(), holder(store.root / "logs")) == (False, None)


ADD = """
import pathlib, sys
from attnjax.sweep import plan, prepare
prepare(pathlib.Path(sys.argv[1]), "small", plan({"name": "small"}, [{"seed": int(sys.argv[2])}]), extend=True)
"""


def test_eight_processes_add_a_run_each_at_once(tmp_path):
    started = [
        subprocess.Popen([sys.executable, "-c", ADD, str(tmp_path / "runs"), str(seed)], cwd=ROOT) for seed in range(8)
    ]
    assert [one.wait(60) for one in started] == [0] * 8
    store = load(tmp_path / "runs")
    assert {store.config(entry.run).seed for entry in store.runs} == {*range(8)}


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", "a\\b", "..", ".", "-x", ".x", "", "x" * 129, "a\0", "a b", "%2e%2e", "ü", "CON", "nul.txt", "a\n"],
)
def test_names_that_could_leave_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="must be 1 to 128 of"):
        prepare(tmp_path / "runs", name, plan({}, [{}]))
    assert not (tmp_path / "runs").exists()


def test_links_are_not_followed(make, tmp_path):
    store = make(seeds(2))
    outside = tmp_path / "outside"
    victim = store.directory(store.runs[0].run)
    victim.rename(outside)
    victim.symlink_to(outside)
    with pytest.raises(ValueError, match="is a link"):
        store.directory(store.runs[0].run)
    found = scan(store.root)
    assert (found.foreign, len(found.runs)) == ([victim.name], 1)
    other = store.directory(store.runs[1].run)
    (other / "result").symlink_to(outside)
    with pytest.raises(ValueError, match="is a link"):
        store.status(other.name)
    before = names(outside)
    assert len(run_here(load(store.root), train).of("damaged")) == 2
    assert names(outside) == before
    with pytest.raises(ValueError, match="is a link"):
        make(seeds(2))


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_made(tmp_path, make, monkeypatch):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="cannot be written to .*File exists|Not a directory"):
        make(root=tmp_path / "file")
    with pytest.raises(ValueError, match="cannot be written to .*Not a directory"):
        make(root=tmp_path / "file" / "deeper")
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(ValueError, match="Permission denied"):
            make(root=tmp_path / "locked")
    for code in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):

        def refuse(*_, code=code):
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refuse)
            with pytest.raises(ValueError, match=f"cannot be written to .*{os.strerror(code)}"):
                make(root=tmp_path / "full")
        assert names(tmp_path / "full") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged or no JSON"),
        ("{", "damaged or no JSON"),
        ("[]", "must hold a table"),
        ("[" * 16_000, "nested too deeply"),
        ('{"schema": 2, "runs": []}', "written by a newer version"),
        ('{"schema": 1}', "damaged: it has no config_file"),
        ('{"schema": 1, "name": "x", "config_file": "", "protocol": "", "runs": {}}', "damaged: it has no runs"),
        (
            '{"schema": 1, "name": "x", "config_file": "", "protocol": "", "runs": [{"run": "0123456789abcdef"}]}',
            "damaged: run 0123456789abcdef has no cell",
        ),
        ('{"schema": 1, "name": "x", "config_file": "", "protocol": "", "runs": [{"run": 3}]}', "damaged"),
        (
            '{"schema": 1, "name": "x", "config_file": "", "protocol": "", '
            '"runs": [{"run": "../../../../etc/x", "cell": "", "group": "", "overrides": {}}]}',
            "damaged: entry 0 of its runs names no run id",
        ),
    ],
)
def test_a_damaged_or_newer_plan_is_refused_by_name(make, text, message):
    store = make(seeds(1))
    (store.root / "sweep.json").write_text(text)
    for again in (lambda: load(store.root), lambda: make(seeds(1))):
        with pytest.raises(ValueError, match=rf"sweep\.json.*{message}"):
            again()
    found = scan(store.root)
    assert (len(found.runs), found.runs[0].problems) == (1, [])
    assert "sweep.json" in found.problems[0]


@pytest.mark.parametrize("file", ["result/status.json", "config.json"])
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 9}', '{"schema": 1, "state": "flying", "step": 0}', "\xff"]
)
def test_damage_to_one_run_is_told_and_costs_no_other(make, file, text):
    store = make(seeds(3))
    victim = store.runs[1].run
    (store.directory(victim) / file).parent.mkdir(exist_ok=True)
    (store.directory(victim) / file).write_text(text, encoding="latin-1")
    summary = run_here(store, train)
    assert (summary.of("damaged"), len(summary.of("done"))) == ([victim], 2)
    found = scan(store.root)
    assert [bool(run.problems) for run in found.runs] == [False, True, False]
    assert f"{victim}/{file}" in found.problems[0]


def test_a_config_changed_behind_our_back_is_not_trained(make):
    store = make(seeds(2))
    path = store.directory(store.runs[0].run) / "config.json"
    path.write_text(path.read_text().replace('"learning_rate":0.001', '"learning_rate":0.002'))
    summary = run_here(store, train)
    assert summary.of("damaged") == [store.runs[0].run]
    with pytest.raises(ValueError, match="has changed since the run was planned"):
        store.config(store.runs[0].run)


def test_foreign_junk_is_listed_and_left_alone(make):
    store = make(seeds(1))
    (store.root / "notes.txt").write_text("mine")
    (store.root / "0123456789abcdef").mkdir()
    (store.root / "checkpoints").mkdir()
    (store.directory(store.runs[0].run) / "junk.bin").write_bytes(b"\0")
    assert run_here(store, train).of("done") == [store.runs[0].run]
    found = scan(store.root)
    assert found.foreign == ["checkpoints", "notes.txt"]
    assert "0123456789abcdef is not in the plan" in found.problems[-1]
    assert (store.root / "notes.txt").read_text() == "mine"


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


def test_nothing_depends_on_the_clock(make, monkeypatch):
    first = [entry.run for entry in make(seeds(3)).runs]
    monkeypatch.setattr("time.time", lambda: -1e9)
    again = make(seeds(3), root=pathlib.Path(make(seeds(3)).root.parent / "elsewhere"))
    assert [entry.run for entry in again.runs] == first
    assert run_here(again, train).of("done") == first
