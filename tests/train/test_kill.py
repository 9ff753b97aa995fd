"""Real processes that train are killed at random moments, and go on as if nothing had happened: the same bits at the end."""

import signal

import pytest

from attnjax.records.runs import folder_of
from tests.train import killing

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
FIVE = [("start-up", KILL), ("training", TERM), ("checkpoint", KILL), ("evaluation", KILL), ("training", INT)]
# Deaths at start-up stand between others: a run whose workers die five times in a row where it stands is given up.
TWENTY = 5 * [(phase, KILL) for phase in ("start-up", "training", "checkpoint", "evaluation")]


@pytest.mark.slow
@pytest.mark.parametrize(("moments", "steps"), [(FIVE, 60), (TWENTY, 180)], ids=["five", "twenty"])
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
    assert manifest["changed_on_resume"] == []


def check_saved(folder, output, number):
    """The run was saved where it stood, at a step of which the compiled program is at the end."""
    status = killing.status(folder)
    assert (status["state"], status["reason"]) == ("preempted", number.name)
    assert f"stopped: {number.name}; the same command continues" in output
    run = killing.the_run(folder)
    assert (folder_of(run) / "checkpoints" / str(status["step"])).is_dir()
    assert [record["step"] for record in killing.records(folder)[0]] == list(range(2, status["step"] + 1, 2))


@pytest.mark.slow
def test_a_sweep_whose_workers_are_killed_at_random_ends_as_one_that_nobody_disturbed(tmp_path, monkeypatch):
    for name, value in killing.environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    assert killing.killed_sweep(tmp_path, runs=8, kills=4).endswith("bit-equal")
