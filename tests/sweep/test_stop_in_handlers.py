"""A signal may come at any line of the main thread, also inside of `Stop.wait`: its handler must not wait for that line."""

import subprocess
import sys

CODE = """
import signal
import sys

from attnjax.sweep.stop import Stop


def is_interrupted_at(number):
    stop, lines = Stop(), 0

    def trace(frame, event, argument):
        nonlocal lines
        lines += 1
        if lines == number:
            signal.raise_signal(signal.SIGTERM)
        return trace

    signal.signal(signal.SIGTERM, lambda *_: stop.set("SIGTERM"))
    sys.settrace(trace)
    found = stop.wait(0.01)
    sys.settrace(None)
    assert stop.reason == "SIGTERM" or not found
    return bool(stop.reason)


number = 1
while is_interrupted_at(number):
    number += 1
print(number)
"""


def test_a_signal_at_any_line_of_waiting_is_noticed_and_waits_for_nothing():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5
