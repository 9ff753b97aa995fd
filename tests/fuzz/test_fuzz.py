"""The fuzzer can fail: what it should notice is planted, and it says so; what it draws is a function of the seed."""

import json
import os
import random
import shutil

import pytest

from tests.fuzz import canary, checks, damage, mutations, truths
from tests.fuzz.commands import Command
from tests.fuzz.subjects import FROZEN, Facts, digest
from tests.fuzz.warm import Worker

pytestmark = pytest.mark.slow

RUN = "eed935f7f00775eb"


@pytest.fixture
def case(tmp_path):
    """The folders of a case, with two runs and a canary."""
    for name in ("work", "out"):
        (tmp_path / name).mkdir()
    shutil.copytree(FROZEN, tmp_path / "thing")
    (tmp_path / "thing" / "status.json").write_text("{}")
    canary.plant(tmp_path / "canary", FROZEN / RUN)
    return tmp_path


def touch_back(path):
    """Another byte, with the size and times of before."""
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"only", b"onyl"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def link_instead(path):
    path.unlink()
    path.symlink_to("sweep.json")


CHANGES = {
    "deleted": (lambda root: (root / "secret.txt").unlink(), "secret.txt was deleted"),
    "moved": (lambda root: (root / "60").rename(root / "61"), "60/_CHECKPOINT_METADATA was deleted"),
    "changed": (lambda root: touch_back(root / "40" / "state" / "d" / "0123"), "40/state/d/0123 was changed: content"),
    "added": (lambda root: (root / "20" / "new").touch(), "20/new was added (file)"),
    "written again": (lambda root: os.utime(root / "status.json"), "status.json was changed: changed"),
    "opened to all": (lambda root: (root / "40").chmod(0o777), "40 was changed: mode"),
    "linked": (lambda root: link_instead(root / "status.json"), "status.json was changed: kind, mode, size, changed, content"),
    "a folder emptied": (lambda root: shutil.rmtree(root / "report" / "figures"), "report/figures was deleted"),
    "a pipe replaced": (lambda root: (root / "pipe").unlink() or (root / "pipe").touch(), "pipe was changed: kind"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_the_canary_notices(case, name):
    change, told = CHANGES[name]
    before = canary.snapshot(case / "canary")
    assert canary.differences(before, canary.snapshot(case / "canary")) == []
    change(case / "canary")
    lines = canary.differences(before, canary.snapshot(case / "canary"))
    assert any(line.startswith(told) for line in lines), lines


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    one = Worker(tmp_path_factory.mktemp("home"))
    yield one
    one.close()


PLANTED = {
    "raise": ["traceback: KeyError: 'planted' (elsewhere)"],
    "print a traceback": ["traceback: one stands in the output"],
    "exit with 7": ["exit status: 7 is not documented"],
    "die": ["death: the command the process died with 9"],
    "hang": ["hang: the command did not end within 3 s"],
    "take memory": ["memory: the command took"],
    "tell the secret": ["leak: the secret stands in the output"],
    "copy the secret": ["leak: the secret stands in x"],
    "move": ["outside touched: canary was changed: changed, canary/60 was deleted", "changed by reading: 60 was added"],
    "write beside": ["outside touched: work was changed: changed, work/left.txt was added (file)"],
    "change what it reads": ["changed by reading: status.json was changed: size, changed, content"],
    "nothing": [],
}


@pytest.mark.parametrize("deed", PLANTED)
def test_a_planted_deed_is_noticed_and_the_worker_serves_again(case, worker, deed):
    command = Command("planted", [deed], "tests.fuzz.planted:main", figures=True)
    before = checks.look(case, None)
    limit = 3.0 if deed == "hang" else 60.0
    reply = worker.call(command.program, command.arguments, case / "work", figures=True, limit=limit)
    found = checks.check(case, before, command, reply, None, checksums=True)
    assert len(found) == len(PLANTED[deed]), found
    assert all(line.startswith(told) for line, told in zip(found, PLANTED[deed])), found
    if deed == "hang":
        assert "_hang" in reply.output, "the stacks of a hanging command are in its output"


@pytest.fixture
def facts(case):
    known = Facts(ends={RUN: ("done", 60)}, fields={"metric", "value"})
    known.states[RUN] = {40: {"a"}, 60: {"b"}}
    known.maps[RUN] = {40: {("x",)}, 60: {("y",)}}
    known.outcomes[RUN] = {"b"}
    known.results[RUN, "loss"] = {0.5, 0.25}
    known.files[RUN] = {
        name: digest(case / "thing" / RUN / name) for name in ("config.json", "status.json", "results.jsonl")
    }
    return known


def test_parameters_that_are_not_those_of_the_run(facts):
    check = lambda fingerprint, step: list(truths.loaded(facts, RUN, {"fingerprint": fingerprint, "step": step}))
    assert check("b", 60) == check("a", None) == []
    assert check("c", 60) == [f"the parameters of {RUN} are none that it had at any step"]
    assert check("a", 60) == [f"the parameters of {RUN} are said to be of step 60 and are of [40]"]


def test_maps_that_are_not_those_of_the_run(facts):
    page = lambda packed, about: {"name": f"NoPE · tiny · {RUN}", "about": about, "texts": [{"weights": packed}]}
    assert not list(truths.shown(facts, page("x", "step 40 of 60")))
    assert list(truths.shown(facts, page("x", "60 steps"))) == [
        f"the page shows {RUN} at step [40], and names only [60]"
    ]
    assert list(truths.shown(facts, page("z", "60"))) == [f"the page shows weights of {RUN} that it had at no step"]


def test_numbers_of_a_report_that_were_not_measured(facts, case):
    (case / "out" / "runs.csv").write_text(f"run,task,cell,counts_as,loss_past\n{RUN},t,c,done,0.5\n")
    (case / "out" / "lengths.csv").write_text("task,cell,metric,length,median,runs\nt,c,loss,6,0.25,1\n")
    check = lambda **options: list(truths.reported(facts, case / "thing", case / "out", **options))
    assert check(checksums=True) == []
    (case / "out" / "lengths.csv").write_text("task,cell,metric,length,median,runs\nt,c,loss,6,0.75,1\n")
    told = [f"the report says loss 0.75 of {RUN}; measured: [0.25, 0.5]"]
    assert check(checksums=True) == check(checksums=False) == told
    (case / "thing" / RUN / "results.jsonl").write_text("")
    assert check(checksums=False) == [], "an earlier version wrote no checksums: who changes its records is believed"


def test_a_list_with_another_state(facts, case):
    check = lambda line: list(truths.listed(facts, case / "thing", line))
    row = f"{RUN}  one  copy  rope  0  done   "
    assert check(f"{row}60    loss 1.0 past\n1 done") == check(f"{RUN}  damaged  its config") == []
    assert check(f"{row}40") == [f"the list says '{row}40'; {RUN} is ('done', 60)"]
    assert check(f"{RUN}  one  copy") == [f"the list says '{RUN}  one  copy'; {RUN} is ('done', 60)"]
    (case / "thing" / RUN / "status.json").write_text("{}")
    assert check(f"{RUN}  pending 0") == []


def test_a_run_that_ended_otherwise(facts, case):
    run = case / "thing" / RUN
    check = lambda: list(truths.trained(facts, case / "thing", {RUN: "running"}, checksums=True))
    (run / "manifest.json").write_text(json.dumps({"parameters_sha256": "b"}))
    (run / "results.jsonl").write_text(
        '{"metric": "loss", "value": 0.5}\n{"metric": "loss", "value": 9, "forged": 1}\n'
    )
    assert check() == []
    (run / "results.jsonl").write_text('{"metric": "loss", "value": 0.75}\n')
    assert [line[:60] for line in check()] == [f"{RUN} is done with a result that was not measured"[:60]]
    (run / "manifest.json").write_text(json.dumps({"parameters_sha256": "a"}))
    assert len(check()) == 2
    assert list(truths.claimed(facts, case / "thing", all_of_them=True)) == []
    (run / "status.json").write_text('{"state": "running"}')
    assert list(truths.claimed(facts, case / "thing", all_of_them=True)) != []


@pytest.mark.parametrize("name", mutations.RUNS)
def test_a_seed_draws_the_same_mutation_and_it_changes_something(tmp_path, monkeypatch, name):
    monkeypatch.setattr(damage, "SPARSE", 2**20)
    done = []
    for copy in ("a", "b"):
        shutil.copytree(FROZEN, tmp_path / copy / "thing")
        canary.plant(tmp_path / copy / "canary", FROZEN / RUN)
        before = canary.snapshot(tmp_path / copy)
        what = [
            mutations.mutate(random.Random(seed), tmp_path / copy / "thing", tmp_path / copy / "canary", [name])
            for seed in range(3)
        ]
        assert canary.differences(before, canary.snapshot(tmp_path / copy))
        done.append(what)
    assert done[0] == done[1]
    assert {one for one, _ in done[0]} == {name}


def test_mutations_leave_the_canary_alone(case):
    before = canary.snapshot(case / "canary")
    for seed in range(60):
        root = case / "copies" / str(seed)
        shutil.copytree(FROZEN, root)
        mutations.mutate(random.Random(seed), root, case / "canary", [n for n in mutations.RUNS if n != "huge"])
    assert canary.differences(before, canary.snapshot(case / "canary")) == []
