"""Leases: one holder at a time, taken over when the holder is dead and not before, whatever the clocks say."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import types

import pytest
from checks import until

from attnjax.sweep import lease as lease_module
from attnjax.sweep.lease import (
    Lease,
    Owner,
    Watch,
    claim,
    heartbeat,
    holder,
    is_running,
    live_owner,
    machine_id,
    start_time,
)
from attnjax.sweep.stop import Stop

HOLD = """
import pathlib, sys
from attnjax.sweep.lease import Lease, Watch, claim
found = claim(pathlib.Path(sys.argv[1]), Watch(patience=1e9), int(sys.argv[2]))
print("mine" if isinstance(found, Lease) else "theirs", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process():
    """Starts processes that claim a folder and hold on to it; they end with the test."""
    started_: list[subprocess.Popen] = []

    def start(folder: pathlib.Path, step: int = 0) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLD, str(folder), str(step)]
        root = pathlib.Path(__file__).parents[2]
        started_.append(subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started_[-1]

    yield start
    for one in started_:
        one.kill()
        one.communicate()


def foreign(folder: pathlib.Path, number: int = 1, beat: int = 0, **fields) -> pathlib.Path:
    """A lease of another machine."""
    table = {"schema": 1, "host": "far", "machine": "elsewhere", "pid": os.getpid(), "started": "1", **fields}
    path = folder / f"lease-{number:06d}"
    path.write_text(json.dumps(table) + f"\nbeat {beat:012d}\n")
    return path


def test_the_second_claim_learns_who_has_it(tmp_path):
    mine = claim(tmp_path, Watch())
    theirs = claim(tmp_path, Watch())
    assert isinstance(mine, Lease)
    assert isinstance(theirs, Owner)
    assert str(theirs) == f"process {os.getpid()} on {mine.owner.host}"
    mine.release()
    again = claim(tmp_path, Watch())
    assert isinstance(again, Lease)
    assert (again.owner.attempt, again.path.name) == (1, "lease-000002")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lease-000001", "lease-000002"]
    assert not mine.held()
    again.release()
    again.release()


def test_the_lease_of_a_killed_process_is_taken_over_at_once(tmp_path, process):
    for attempt in (1, 2, 3):
        victim = process(tmp_path, step=7)
        assert victim.stdout.readline() == "mine\n"
        assert holder(tmp_path).attempt == attempt
        assert isinstance(claim(tmp_path, Watch(), 7), Owner)
        victim.send_signal(signal.SIGKILL)
        until(
            lambda victim=victim: not is_running(victim.pid, holder(tmp_path).started)
        )  # before it is waited for: a zombie
    mine = claim(tmp_path, Watch(), step=8)
    assert isinstance(mine, Lease)
    assert mine.owner.attempt == 1, "it got on since the last attempt"
    mine.release()


def test_ten_processes_claim_one_dead_lease_and_one_has_it(tmp_path, process):
    victim = process(tmp_path)
    victim.stdout.readline()
    victim.kill()
    victim.wait()
    crowd = [process(tmp_path) for _ in range(10)]
    assert sorted(one.stdout.readline() for one in crowd) == ["mine\n"] + ["theirs\n"] * 9


def test_a_number_that_was_given_to_another_process_is_not_its_holder(tmp_path):
    foreign(tmp_path, machine=machine_id(), pid=os.getpid(), started="another time")
    mine = claim(tmp_path, Watch())
    assert isinstance(mine, Lease)
    mine.release()
    foreign(tmp_path, 3, machine=machine_id(), pid=os.getpid(), started=start_time(os.getpid()))
    assert isinstance(claim(tmp_path, Watch(patience=0)), Owner)


def test_another_machine_is_judged_by_its_heartbeat_and_our_own_clock(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: 0.0)
    watch = Watch(patience=60)
    for beat in range(3):
        foreign(tmp_path, beat=beat)
        assert isinstance(claim(tmp_path, watch), Owner)
        assert watch.undecided() == (beat == 0)
        now[0] += 59
    now[0] += 2
    mine = claim(tmp_path, watch)
    assert isinstance(mine, Lease)
    assert not watch.undecided()
    mine.release()


@pytest.mark.parametrize("alive", [True, False])
def test_a_process_of_another_user_that_the_system_hides_is_judged_by_its_heartbeat(tmp_path, monkeypatch, alive):
    """Of /proc mounted with hidepid nothing of it can be read; a signal is refused where it is there."""

    def kill(pid, number):
        assert (pid, number) == (4321, 0)
        raise PermissionError(1, "not permitted") if alive else ProcessLookupError(3, "no such process")

    now, watch = [1000.0], Watch(patience=60)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(lease_module, "start_time", lambda pid: "")
    for beat in range(3 * alive):
        foreign(tmp_path, machine=machine_id(), pid=4321, beat=beat)
        assert isinstance(claim(tmp_path, watch), Owner)
        now[0] += 59
    now[0] += 2 * alive
    foreign(tmp_path, machine=machine_id(), pid=4321, beat=2)
    mine = claim(tmp_path, watch)
    assert isinstance(mine, Lease)
    mine.release()


def test_nobody_waits_for_the_owner_of_a_run_that_has_ended(tmp_path):
    """It may end before a second heartbeat is observed, and nothing more is heard of it."""
    watch = Watch()
    for name in ("ended", "open"):
        (tmp_path / name).mkdir()
        foreign(tmp_path / name)
        assert isinstance(claim(tmp_path / name, watch), Owner)
    foreign(tmp_path / "open", beat=1)
    assert isinstance(claim(tmp_path / "open", watch), Owner)
    assert watch.undecided()
    watch.keep({tmp_path / "open"})
    assert not watch.undecided()
    assert watch.silence(tmp_path / "open") is not None


def test_taking_over_is_a_sign_of_life_of_the_run_and_an_unreadable_lease_is_none(tmp_path, monkeypatch):
    """A worker that waits for the owner before would otherwise wait for good."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch(patience=60)
    foreign(tmp_path)
    assert isinstance(claim(tmp_path, watch), Owner)
    assert (watch.undecided(), watch.silence(tmp_path)) == (True, (0.0, False))
    now[0] += 50
    path = foreign(tmp_path, 2, host="another")
    assert isinstance(claim(tmp_path, watch), Owner)
    assert (watch.undecided(), watch.silence(tmp_path)) == (False, (0.0, True))
    path.write_text("")
    now[0] += 50
    assert isinstance(claim(tmp_path, watch), Owner)
    assert watch.silence(tmp_path) == (50.0, True)
    foreign(tmp_path, 3, machine=machine_id(), started=start_time(os.getpid()))
    assert isinstance(claim(tmp_path, watch), Owner)
    assert watch.silence(tmp_path) is None


@pytest.mark.parametrize("hours", [-1000, -5, 5, 1000])
def test_a_host_whose_clock_is_hours_off_is_judged_by_what_changes(tmp_path, monkeypatch, hours):
    """Its files are dated in the past or the future, and our own clock is set while we watch."""
    now, clock = [50.0], [time.time()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: clock[0])
    watch = Watch(patience=60)

    def look(beat):
        path = foreign(tmp_path, beat=beat)
        dated = clock[0] + 3600 * hours
        os.utime(path, (dated, dated))
        return claim(tmp_path, watch)

    for beat in range(5):
        assert isinstance(look(beat), Owner)
        now[0] += 40
        clock[0] += 3600 * hours
    assert isinstance(look(4), Owner), "40 s without a change"
    now[0] += 21
    mine = look(4)
    assert isinstance(mine, Lease), "61 s without a change"
    mine.release()


@pytest.mark.parametrize("text", ["", "rubbish", "[]", "{", "[" * 16_000, '{"pid": "x", "host": 3}'])
def test_an_unreadable_lease_is_dead_when_it_stays_as_it_is(tmp_path, text):
    (tmp_path / "lease-000004").write_text(text)
    assert isinstance(claim(tmp_path, Watch(patience=1e9)), Owner)
    mine = claim(tmp_path, Watch(patience=-1))
    assert isinstance(mine, Lease)
    assert mine.path.name == "lease-000005"
    mine.release()


def test_who_comes_late_with_an_old_number_does_not_win(tmp_path, monkeypatch):
    """A process that sees the folder as it was long ago, when lease 1 was dead, for as long as it looks."""
    for _ in range(2):
        claim(tmp_path, Watch()).release()
    current, real = claim(tmp_path, Watch()), os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["lease-000001"])
    late = claim(tmp_path, Watch(patience=-1))
    assert isinstance(late, Owner)
    monkeypatch.undo()
    assert current.held()
    assert max(real(tmp_path)) == current.path.name
    current.release()


def test_heartbeats_and_releases_are_synchronized(tmp_path, monkeypatch):
    """Another machine sees what is written to a file that stays open only after fsync."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (synced.append(lease.path.read_bytes()[-17:]), fsync(descriptor))
    )
    lease = types.SimpleNamespace(path=tmp_path / "lease-000001")
    lease = claim(tmp_path, Watch())
    lease.renew()
    lease.release()
    assert synced == [b"beat 000000000000\n"[-17:], b"beat 000000000001\n"[-17:], b"free 000000000001\n"[-17:]]


@pytest.mark.parametrize("ended", ["done", "failed"])
def test_the_last_lease_of_a_run_says_how_it_ended_and_is_claimed_only_to_try_again(tmp_path, ended):
    mine = claim(tmp_path, Watch())
    width = len(mine.path.read_bytes())
    mine.ended = ended
    mine.release()
    head, _, mark = mine.path.read_bytes().partition(b"\n")
    assert (mark.startswith(b"free "), len(head) + 1 + len(mark)) == (True, width), (
        "what earlier versions take for released"
    )
    theirs = claim(tmp_path, Watch())
    assert isinstance(theirs, Owner)
    assert (theirs.released, theirs.ended) == (True, ended)
    assert live_owner(tmp_path, Watch()) is None
    again = claim(tmp_path, Watch(), again=True)
    assert isinstance(again, Lease)
    assert again.ended == ended
    again.release()
    assert (holder(tmp_path).ended, again.path.name) == (ended, "lease-000002")


@pytest.mark.parametrize(
    "mark", ["free 000000000012", "free 0000running", "beat 00000000done", "free 00000000done", ""]
)
def test_only_a_released_lease_with_a_final_state_says_that_the_run_ended(tmp_path, mark):
    path = foreign(tmp_path)
    path.write_text(path.read_text().splitlines()[0] + f"\n{mark}\n")
    assert holder(tmp_path).ended == ("done" if mark == "free 00000000done" else "")


DELAY = 7
"""Ticks after which at the latest every machine sees what was written."""


@pytest.mark.parametrize("seed", range(20))
def test_machines_that_see_old_and_reordered_states_of_the_folder_never_hold_one_run_together(
    tmp_path, monkeypatch, seed
):
    """Each look at names or contents shows the folder at another moment of the last `DELAY` ticks; creation alone is exact.

    Four machines claim, work, release, or die; patience is longer than the delay. A living holder is never robbed, every number
    is given once, and the run goes on after deaths.
    """
    draw, now, history = random.Random(seed), [0.0], [{}]

    def seen():
        return history[-1 - min(draw.randrange(DELAY), len(history) - 1)]

    def snapshot():
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    latest = lambda folder: max(seen(), default=None)
    monkeypatch.setattr(lease_module, "_latest", latest)
    monkeypatch.setattr(lease_module, "_read", lambda folder, name: seen().get(name, b""))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    machines = [(f"machine {i}", Watch(patience=2 * DELAY)) for i in range(4)]
    holders, taken, deaths = {}, [], 0
    for _ in range(400):
        now[0] += 1
        history.append(snapshot())
        name, watch = draw.choice(machines)
        monkeypatch.setattr(lease_module, "machine_id", lambda name=name: name)
        if name not in holders:
            found = claim(tmp_path, watch)
            if isinstance(found, Lease):
                assert not holders, f"{name} and {[*holders]} hold the run"
                holders[name] = found
                taken.append(found.path.name)
        elif draw.random() < 0.1:
            holders.pop(name).release()
        elif draw.random() < 0.1:
            os.close(holders.pop(name)._descriptor)  # its machine is gone
            deaths += 1
        for held in holders.values():
            held._mark("beat")
            held._beat += 1
    assert taken == [f"lease-{number:06d}" for number in range(1, len(taken) + 1)]
    assert len(taken) > deaths > 2


def test_a_holder_that_was_thought_dead_is_asked_to_stop(tmp_path):
    mine, stop = claim(tmp_path, Watch()), Stop()
    with heartbeat([mine], 0.01, stop):
        assert stop.reason == ""
        foreign(tmp_path, 2)
        assert stop.wait(20)
    assert "was taken over" in stop.reason
    assert not mine.renew()
    mine.release()
    assert isinstance(claim(tmp_path, Watch()), Owner)


def test_the_other_leases_of_a_process_that_has_lost_one_keep_their_heartbeats(tmp_path):
    """Whoever stops saves the runs that it still holds, which takes longer than others wait."""
    (tmp_path / "lost").mkdir()
    (tmp_path / "kept").mkdir()
    lost, kept = (claim(tmp_path / name, Watch()) for name in ("lost", "kept"))
    stop = Stop()
    with heartbeat([lost, kept], 0.01, stop):
        foreign(tmp_path / "lost", 2)
        assert stop.wait(20)
        for _ in range(3):
            before = kept.path.read_bytes()
            until(lambda before=before: kept.path.read_bytes() != before, 20)
    assert stop.reason == "the lease of lost was taken over"
    assert kept.held()
    for one in (lost, kept):
        one.release()


def test_a_lease_that_is_released_amid_heartbeats_is_none_that_was_lost(tmp_path):
    """A run of several that has ended; the descriptor may be that of another file by now."""
    mine, stop = claim(tmp_path, Watch()), Stop()
    with heartbeat([mine], 0.001, stop):
        time.sleep(0.02)
        mine.ended = "failed"
        mine.release()
        with open(tmp_path / "other", "wb") as other:
            assert not stop.wait(0.05)
            assert os.fstat(other.fileno()).st_size == 0
    assert mine.renew()
    assert not mine.held()
    assert holder(tmp_path).ended == "failed"


def test_heartbeats_change_the_file(tmp_path):
    mine = claim(tmp_path, Watch())
    before = mine.path.read_bytes()
    assert mine.renew()
    assert mine.path.read_bytes() != before
    assert len(mine.path.read_bytes()) == len(before)
    mine.release()
