"""A worker process: reads its order from standard input, claims and trains runs, and writes events to standard output.

    python -m attnjax.sweep.worker

Started by `workers.run_workers`. The end of standard input means that the driver is gone, or asks for a stop.
"""

import importlib
import json
import os
import pathlib
import sys
import threading
from typing import IO

from attnjax.records.values import jsonable
from attnjax.sweep import manifest
from attnjax.sweep.execute import ExecutionConfig, work
from attnjax.sweep.run_context import Event, Train
from attnjax.sweep.stop import Stop, at_end_of_input, exit_status, on_signals
from attnjax.sweep.store import load


def main() -> None:
    """Train the runs of the order on standard input."""
    events = _take_stdout()
    order = json.loads(sys.stdin.readline())
    stop = Stop()
    at_end_of_input(stop)
    store, lock = load(pathlib.Path(order["root"])).only(order["runs"]), threading.Lock()

    def report(event: Event) -> None:
        try:
            with lock:  # the watchdog has a thread of its own
                events.write(json.dumps(jsonable(event._asdict())) + "\n")
                events.flush()
        except OSError:
            stop.set("the driver is gone")

    try:
        with on_signals(stop):
            train = import_train(order["trainer"])
            manifest.of_jax()  # a missing backend must end this worker, and none of the runs
            work(store, train, ExecutionConfig(**order["execution"]), report, stop, order["log"])
    except KeyboardInterrupt as interrupt:
        sys.exit(exit_status(interrupt))


def import_train(name: str) -> Train:
    """The function `module:function`. Raises ValueError if there is none."""
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no training function {name!r}: {error}") from error
    if not callable(found):
        raise ValueError(f"{name!r} is no function")
    return found


def _take_stdout() -> IO[str]:
    """Standard output for events alone; whatever else is printed goes where errors go."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


if __name__ == "__main__":
    main()
