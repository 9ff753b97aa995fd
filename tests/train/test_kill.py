"""Real processes that train are killed at random moments, and go on as if nothing had happened: the same bits at the end."""

import json
import os
import signal

import pytest

from attnjax.records.runs import folder_of
from attnjax.sweep import ExecutionConfig, load, plan, prepare, product, run_workers, scan, vary
from attnjax.sweep.claim import holder, is_running
from tests.train import killing

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
FIVE = [("start-up", KILL), ("training", TERM), ("checkpoint", KILL), ("evaluation", KILL), ("training", INT)]
# Deaths at start-up stand between others: a run whose workers die five times in a row where it stands is given up.
TWENTY = 5 * [(phase, KILL) for phase in ("start-up", "training", "checkpoint", "evaluation")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moments", "steps"), [(FIVE, 60), pytest.param(TWENTY, 180, marks=pytest.mark.slow)], ids=["five", "twenty"]
)
def test_killed_again_and_again_it_ends_with_the_same_bits(tmp_path, moments, steps):
    start = lambda out: killing.start(tmp_path, out, f"train.steps={steps}")
    killing.finish(start("whole"))
    for seed, (phase, number) in enumerate(moments):
        life = start("killed")
        output = killing.strike(life, tmp_path / "killed", phase, seed, number)
        assert life.returncode == killing.EXIT[number], output
        if number != KILL:
            check_saved(tmp_path / "killed", output, number)
    killing.finish(start("killed"))
    log, results, manifest = killing.records(tmp_path / "killed")
    expected_log, expected_results, expected = killing.records(tmp_path / "whole")
    assert log == expected_log
    assert results == expected_results
    assert manifest["parameters_sha256"] == expected["parameters_sha256"]
    assert (manifest["determinism"], manifest["changed_on_resume"]) == ("bitwise", [])


def check_saved(folder, output, number):
    """The run was saved where it stood, at a step of which the compiled program is at the end."""
    status = killing.status(folder)
    assert (status["state"], status["reason"]) == ("preempted", number.name)
    assert f"stopped: {number.name}; the same command continues" in output
    run = killing.the_run(folder)
    assert (folder_of(run) / "checkpoints" / str(status["step"])).is_dir()
    assert [record["step"] for record in killing.records(folder)[0]] == list(range(2, status["step"] + 1, 2))


@pytest.mark.slow
def test_a_sweep_whose_workers_are_killed_ends_as_one_that_nobody_disturbed(tmp_path, monkeypatch):
    """12 cells and 3 workers; every third cell costs a worker its life, at a step of its training."""
    for name, value in killing.environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    base = {**killing.CONFIG, "train": {**killing.CONFIG["train"], "steps": 20}}
    cells = product(
        vary("model.encoding", ["nope", "alibi"]), vary("train.learning_rate", [10.0**-n for n in range(2, 8)])
    )
    alone, found, victims = ExecutionConfig(population=1), {}, {}
    for name in ("calm", "killed"):
        store = prepare(tmp_path / name, "tiny", plan(base, cells))
        doomed = {entry.run for entry in store.runs[::3]} if name == "killed" else set()

        def strike(event, store=store, doomed=doomed):
            owner = holder(store.directory(event.run))
            if owner and event.run in doomed and event.step >= 6 and is_running(owner.pid, owner.started):
                doomed.remove(event.run)
                victims[event.run] = owner.pid
                os.kill(owner.pid, KILL)

        summary = run_workers(store, "attnjax.train:train", 3, alone, threads=1, progress=strike)
        assert set(summary.states.values()) == {"done"}
        found[name] = {run.run: (run.manifest()["parameters_sha256"], logged(run)) for run in scan(store.root).runs}
    assert len(victims) == 4
    assert len(set(victims.values())) == 4, "each kill was of another worker"
    assert found["calm"] == found["killed"]
    assert len(load(tmp_path / "killed").runs) == len(found["killed"]) == 12


def logged(run):
    """Records of a run without times; each result must be there once."""
    results = (run.folder / "results.jsonl").read_text()
    lines = [json.loads(line) for line in results.splitlines()]
    assert len({(one["step"], one["length"], one["metric"], one["split"]) for one in lines}) == len(lines)
    steps = [{name: value for name, value in record.items() if name != "seconds"} for record in run.metrics().tables]
    assert [record["step"] for record in steps] == list(range(2, run.config.train.steps + 1, 2))
    return results, json.dumps(steps)
