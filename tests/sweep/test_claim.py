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
from attnjax.sweep.claim import FILE, Claim, Owner, claim, file_time, heartbeat, holder, is_running, living, start_time

PATIENCE = 60.0


def claimed(run, now=None, **fields):
    return claim(run, file_time(run) if now is None else now, PATIENCE, **fields)


def of_another(run, **fields):
    """The claim of a process on another machine, or on this one."""
    owner = Owner("0009-far", "far", "another", 7, "1", **fields)
    (run / FILE).write_text(json.dumps(owner._asdict()))
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
                of_another(run)
                os.utime(run / FILE, (1, 1))
            assert sum(pool.map(lambda one, run=run: isinstance(claimed(run, attempt=str(one)), Claim), range(8))) == 1
            assert [path.name for path in run.iterdir()] == [FILE]


@pytest.mark.parametrize("kind", ["process", "machine", "torn"])
def test_a_dead_claim_is_taken_over_and_a_living_one_is_not(tmp_path, kind):
    if kind == "process":
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        owner = Owner("0001-aa", "here", module.machine_id(), process.pid, start_time(process.pid))
        (tmp_path / FILE).write_text(json.dumps(owner._asdict()))
        os.utime(tmp_path / FILE, (1, 1))  # a process of this machine is asked, and its heartbeat is not
        assert claimed(tmp_path) == owner
        process.kill()
        process.communicate()
        assert not is_running(process.pid, owner.started)
    else:
        of_another(tmp_path) if kind == "machine" else (tmp_path / FILE).write_text('{"token": ')
        now = file_time(tmp_path)
        assert isinstance(claimed(tmp_path, now + PATIENCE / 2), Owner)
        os.utime(tmp_path / FILE, (now - 2 * PATIENCE,) * 2)
    mine = claimed(tmp_path)
    assert (mine.owner.deaths, mine.certain) == (1, kind == "process")


def test_a_reused_process_number_is_no_life(tmp_path):
    owner = Owner("0001-aa", "here", module.machine_id(), os.getpid(), "another start")
    (tmp_path / FILE).write_text(json.dumps(owner._asdict()))
    assert living(tmp_path, time.time()) is None
    assert isinstance(claimed(tmp_path), Claim)


@pytest.mark.parametrize(("step", "deaths"), [(4, 3), (5, 0)])
def test_deaths_in_a_row_are_counted_until_there_is_a_newer_checkpoint(tmp_path, step, deaths):
    of_another(tmp_path, step=4, deaths=2)
    assert claimed(tmp_path, time.time() + 2 * PATIENCE, step=step).owner.deaths == deaths


def test_whoever_lost_a_claim_notices_and_does_not_release_that_of_the_next(tmp_path):
    mine, lost = claimed(tmp_path, attempt="0001-aa"), []
    with heartbeat([mine], 0.01, lost.append):
        os.utime(tmp_path / FILE, (1, 1))
        until(lambda: (tmp_path / FILE).stat().st_mtime > 1)
        assert not lost
        of_another(tmp_path)
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
        claimed(tmp_path / "nowhere", now=0.0)
    assert holder(tmp_path / "nowhere") is None
