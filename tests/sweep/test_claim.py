"""Claims: one process has a run at a time, the dead are taken over, and whoever lost a run notices."""

import concurrent.futures
import json
import os
import subprocess
import sys
import time

import pytest
from checks import until

from attnjax.sweep import claim as module
from attnjax.sweep.claim import FILE, Claim, Owner, claim, heartbeat, holder, is_running

PATIENCE = 60.0


def claimed(run, **fields):
    return claim(run, PATIENCE, **fields)


def written(run, *fields, age=0.0, **more):
    """A claim, by default of a process on another machine, whose last heartbeat is so many seconds old."""
    owner = Owner(*(fields or ("0009-far", "far", "another", 7)), **more)
    (run / FILE).write_text(json.dumps(owner._asdict()))
    os.utime(run / FILE, (time.time() - age,) * 2)
    return owner


def test_a_claim_is_exclusive_until_it_is_released(tmp_path):
    mine = claimed(tmp_path, attempt="0001-ab")
    assert isinstance(mine, Claim)
    assert claimed(tmp_path) == mine.owner == holder(tmp_path)
    assert mine.owner.pid == os.getpid()
    mine.release()
    mine.release()
    assert holder(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("dead", [False, True])
def test_of_many_that_claim_at_once_one_gets_it(tmp_path, dead):
    """Also where all of them find the claim of a machine that is gone."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number in range(5):
            run = tmp_path / str(number)
            run.mkdir()
            if dead:
                written(run, age=999)
            assert sum(pool.map(lambda one, run=run: isinstance(claimed(run, attempt=str(one)), Claim), range(8))) == 1
            assert [path.name for path in run.iterdir()] == [FILE]


@pytest.mark.parametrize("kind", ["process", "machine", "torn"])
def test_a_dead_claim_is_taken_over_and_a_living_one_is_not(tmp_path, kind):
    """A process of this machine has ended, or it has lost its heartbeat as those of other machines have."""
    if kind == "process":
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        written(tmp_path, "0001-aa", "here", module.machine_id(), process.pid)
        assert isinstance(claimed(tmp_path), Owner)
        process.kill()
        process.communicate()
        assert not is_running(process.pid)
    else:
        written(tmp_path) if kind == "machine" else (tmp_path / FILE).write_text('{"token": ')
        os.utime(tmp_path / FILE, (time.time() - PATIENCE / 2,) * 2)
        assert isinstance(claimed(tmp_path), Owner)
        os.utime(tmp_path / FILE, (time.time() - 2 * PATIENCE,) * 2)
    mine = claimed(tmp_path)
    assert (mine.owner.deaths, mine.certain) == (1, kind == "process")


def test_a_reused_process_number_is_no_life_for_longer_than_a_heartbeat(tmp_path):
    written(tmp_path, "0001-aa", "here", module.machine_id(), os.getpid(), age=2 * PATIENCE)
    assert isinstance(claimed(tmp_path), Claim)


@pytest.mark.parametrize(("step", "deaths"), [(4, 3), (5, 0)])
def test_deaths_in_a_row_are_counted_until_there_is_a_newer_checkpoint(tmp_path, step, deaths):
    written(tmp_path, step=4, deaths=2, age=999)
    assert claimed(tmp_path, step=step).owner.deaths == deaths


def test_whoever_lost_a_claim_notices_and_does_not_release_that_of_the_next(tmp_path):
    mine, lost = claimed(tmp_path, attempt="0001-aa"), []
    with heartbeat([mine], 0.01, lost.append):
        os.utime(tmp_path / FILE, (1, 1))
        until(lambda: (tmp_path / FILE).stat().st_mtime > 1)
        assert not lost
        written(tmp_path)
        until(lambda: lost)
    assert lost[0] is mine
    mine.release()
    assert holder(tmp_path).host == "far"


def test_a_claim_that_a_slow_observer_moves_away_is_put_back(tmp_path):
    """The observer saw a dead claim, and another process has taken the run since."""
    dead = Owner("0001-aa", "far", "another")
    mine = claimed(tmp_path, attempt="0002-bb")
    assert not module._moved_away(tmp_path, dead)
    assert (holder(tmp_path), mine.beat()) == (mine.owner, True)


def test_a_disk_that_refuses_leaves_no_claim(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        claimed(tmp_path / "nowhere")
    assert holder(tmp_path / "nowhere") is None
