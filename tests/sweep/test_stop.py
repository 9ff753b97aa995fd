"""Signals to processes that hang: the first asks, the second ends, whatever the main thread does."""

import os
import signal
import time

import fake_training
import hanging
import pytest
from checks import until

from attnjax.sweep import load, run_here, scan, seeds
from attnjax.sweep.lease import holder, is_running
from attnjax.sweep.stop import TOGETHER, Stop, Terminated, exit_status, on_signals

pytestmark = pytest.mark.slow

TERM, INT = signal.SIGTERM, signal.SIGINT


def end(process, root, number):
    """Two signals to a process that hangs in training; what it printed on standard error."""
    until(lambda: hanging.begun(root))
    process.send_signal(number)
    time.sleep(2 * TOGETHER)  # two at once count as one
    assert process.poll() is None, "the first asks, and nobody listens"
    process.send_signal(number)
    return process.communicate(timeout=40)[1]


@pytest.mark.parametrize("function", ["asleep", "waiting", "reading"])
def test_a_second_sigterm_ends_a_hang_in_python_and_leaves_a_run_to_go_on_with(tmp_path, function):
    process = hanging.start(tmp_path, function)
    end(process, tmp_path, TERM)
    assert process.returncode == 143
    (found,) = scan(tmp_path / "out").runs
    assert (found.status.state, found.status.reason) == ("preempted", "SIGTERM")
    owner = holder(found.directory)
    assert owner.released
    summary = run_here(load(tmp_path / "out"), fake_training.train)
    assert str(summary) == "1 runs: 1 done"


@pytest.mark.parametrize("number", [TERM, INT])
def test_a_second_signal_ends_a_hang_in_c_within_seconds_and_shows_where(tmp_path, number):
    process = hanging.start(tmp_path, "native")
    told = end(process, tmp_path, number)
    assert process.returncode == 128 + number
    assert f"the second {number.name} ends a process whose main thread hung for 5 s here" in told
    assert "in native" in told
    (found,) = scan(tmp_path / "out").runs
    assert found.status.state == "running"
    assert str(run_here(load(tmp_path / "out"), fake_training.train)) == "1 runs: 1 done"


def test_the_driver_of_workers_that_hang_takes_them_along(tmp_path):
    process = hanging.start(tmp_path, "native", "--workers", "2", "--threads", "1", "--seeds", "2", "--population", "1")
    until(lambda: len(list((tmp_path / "out").glob("*/begun"))) == 2)
    owners = [holder(run.directory) for run in scan(tmp_path / "out").runs]
    assert all(is_running(owner.pid, owner.started) for owner in owners)
    end(process, tmp_path, TERM)
    assert process.returncode == 143
    until(lambda: not any(is_running(owner.pid, owner.started) for owner in owners))
    assert str(run_here(load(tmp_path / "out"), fake_training.train)) == "2 runs: 2 done"


def test_a_worker_that_hangs_ends_at_its_second_sigterm(tmp_path):
    process = hanging.start(tmp_path, "native", "--workers", "1", "--threads", "1")
    until(lambda: hanging.begun(tmp_path))
    (run,) = scan(tmp_path / "out").runs
    owner = holder(run.directory)
    process.send_signal(TERM)
    os.kill(owner.pid, TERM)
    time.sleep(2 * TOGETHER)
    os.kill(owner.pid, TERM)
    told, _ = process.communicate(timeout=40)
    assert process.returncode == 143
    assert "stopped: SIGTERM; the same command continues" in told
    log = next((tmp_path / "out" / "logs").glob("worker-*.txt")).read_text()
    assert "the second SIGTERM ends a process" in log
    assert "in native" in log


def test_two_sigterm_at_once_are_one(make):
    """As `timeout` sends them: one to its child, one to the group that the child is in."""

    def train(configs, directories, context):
        os.kill(os.getpid(), TERM)
        os.kill(os.getpid(), TERM)
        until(context.stopping)
        fake_training.train(configs, directories, context)

    store, stop = make(seeds(1)), Stop()
    assert str(run_here(store, train, stop=stop)) == "1 runs: 1 preempted"
    assert stop.reason == "SIGTERM"


def test_what_was_listened_to_before_is_listened_to_again():
    before = [signal.getsignal(TERM), signal.getsignal(INT), signal.set_wakeup_fd(-1)]
    with on_signals(Stop()):
        assert signal.getsignal(TERM) != before[0]
    assert [signal.getsignal(TERM), signal.getsignal(INT), signal.set_wakeup_fd(-1)] == before


def test_the_second_signal_raises_once_so_that_what_it_interrupts_can_clean_up():
    cleaned, stop = [], Stop()

    def interrupted():
        with on_signals(stop):
            os.kill(os.getpid(), TERM)
            time.sleep(2 * TOGETHER)
            try:
                os.kill(os.getpid(), TERM)
                time.sleep(40)
            finally:
                for _ in range(3):
                    os.kill(os.getpid(), TERM)
                    time.sleep(0.01)
                cleaned.append(stop.reason)

    with pytest.raises(Terminated) as caught:
        interrupted()
    assert cleaned == ["SIGTERM"]
    assert exit_status(caught.value) == 143
    assert exit_status(KeyboardInterrupt()) == 130
