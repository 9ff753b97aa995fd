"""Real processes that train are killed at random moments: the bits are those of undisturbed ones."""

import signal

import pytest

from tests.runs import runs_in
from tests.train import killing

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
MOMENTS = [("start-up", KILL), ("training", TERM), ("checkpoint", KILL), ("evaluation", KILL), ("training", INT)]

pytestmark = pytest.mark.slow


def the_run(out):
    """The only run."""
    (run,) = runs_in(out)
    return run


def test_killed_again_and_again_it_ends_with_the_same_bits(tmp_path):
    start = lambda out: killing.start(tmp_path, out)
    killing.finish(start("whole"))
    for seed, (phase, number) in enumerate(MOMENTS):
        life = start("killed")
        output = killing.strike(life, tmp_path / "killed", phase, seed, number)
        assert life.returncode == (-9 if number == KILL else 130), output
        if number != KILL:
            # Saved where it stood, at the step that the compiled program had come to.
            status = the_run(tmp_path / "killed").status
            assert (status.state, status.reason) == ("preempted", number.name)
            assert f"stopped: {number.name}; the same command continues" in output
            folder = the_run(tmp_path / "killed").folder
            assert (folder / "checkpoints" / str(status.step)).is_dir()
            assert [row["step"] for row in the_run(tmp_path / "killed").metrics()][-1] == status.step // 2 * 2
    killing.finish(start("killed"))
    killed, whole = (the_run(tmp_path / out) for out in ("killed", "whole"))
    assert killing.records(killed) == killing.records(whole)
    assert killed.manifest()["changed_on_resume"] == []


def test_a_sweep_whose_workers_are_killed_at_random_ends_as_one_that_nobody_disturbed(tmp_path, monkeypatch):
    for name, value in killing.environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    assert killing.killed_sweep(tmp_path, runs=8, kills=4).endswith("bit-equal")
