"""Exit statuses, and stops by signals."""

import os
import signal
import time

import fake_training
import pytest
from checks import until

from attnjax.sweep import Stop, Summary, run_here, seeds
from attnjax.sweep.claim import Owner
from attnjax.sweep.outcome import TOGETHER, exit_status, on_signals

OTHER = {"b": Owner()}


@pytest.mark.parametrize(
    ("states", "others", "reason", "expected"),
    [
        ("done done", {}, "", 0),
        ("done done", {}, "SIGINT", 130),
        ("done failed", {}, "", 1),
        ("done damaged", {}, "", 1),
        ("done unwritten", {}, "", 1),
        ("done running", OTHER, "", 1),
        ("done pending", {}, "run a failed", 1),
        ("done preempted", {}, "SIGTERM", 130),
        ("done preempted", {}, "SIGUSR1 of process 1", 130),
        ("failed pending", {}, "SIGINT", 130),
    ],
)
def test_the_exit_status_is_0_1_or_130(states, others, reason, expected):
    stop = Stop()
    stop.set(reason)
    assert exit_status(Summary(dict(zip("ab", states.split(), strict=True)), (), {}, others), stop) == expected


def test_two_sigterm_at_once_are_one(make):
    """As `timeout` sends them: one to its child, one to the group that the child is in."""

    def train(configs, directories, context):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        until(context.stopping)
        time.sleep(TOGETHER)
        fake_training.train(configs, directories, context)

    stop = Stop()
    assert str(run_here(make(seeds(1)), train, stop=stop)) == "1 runs: 1 preempted"
    assert stop.reason == "SIGTERM"


def test_what_was_listened_to_before_is_listened_to_again():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [*map(signal.getsignal, numbers), signal.set_wakeup_fd(-1)]
    with on_signals(Stop()):
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [*map(signal.getsignal, numbers), signal.set_wakeup_fd(-1)] == before
