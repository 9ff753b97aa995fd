"""Prints how training gets on, as the folder of a sweep says: a line for each population, at most every ten seconds."""

import contextlib
import os
import sys
import threading
import time
from collections import Counter
from statistics import fmean

from attnjax.config import encoding_name
from attnjax.records import jsonl
from attnjax.records.status import FINAL, Status
from attnjax.sweep import Store, groups
from attnjax.sweep.claim import beside
from attnjax.sweep.outcome import is_open

QUIET = 10.0
"""Seconds between lines about one population; its end is always told."""
LOOK = 0.5
"""Seconds between looks at the folders of runs, more where a look takes long."""
NAMED = 3
"""Encodings that a line names."""


def say(text: object) -> None:
    """Print. Where standard output takes no more, as a pipe whose reader has ended, this and the rest is dropped: training
    goes on, and what becomes of the runs decides the exit status.
    """
    try:
        print(text, flush=True)
    except OSError as refusal:
        drop_output()
        with contextlib.suppress(OSError):
            print(f"note: standard output takes no more: {refusal.strerror}", file=sys.stderr, flush=True)


def drop_output() -> None:
    """Drop what is still to be printed, or Python would complain at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def watched(store: Store) -> contextlib.AbstractContextManager[None]:
    """Print how the runs get on while the block trains them, here or in other processes."""
    found = [store.only([entry.run for entry in group]) for group in groups(store.runs, key=lambda entry: entry.group)]
    populations = [Population(one) for one in found if is_open(one)]

    def watch(over: threading.Event) -> None:
        """Look until the block has ended, and then once more."""
        wait = LOOK
        while not over.wait(wait):
            begun = time.monotonic()
            look()
            wait = max(LOOK, 10 * (time.monotonic() - begun))
        look()

    def look() -> None:
        for one in populations:
            if one.look():
                say(one)

    return beside("progress", watch)


class Population:
    """Runs of one program: their states, steps and losses, as far as their folders tell."""

    def __init__(self, store: Store):
        self._store, self._begun, self._printed = store, time.monotonic(), -QUIET
        self._runs: dict[str, Status] = {}
        self._losses: dict[str, float] = {}
        self._first: tuple[float, float] | None = None
        task, names = "", {}
        for run in (entry.run for entry in store.runs):
            with contextlib.suppress(OSError, ValueError):  # a damaged run is told of at the end
                self._runs[run], config = store.status(run), store.config(run)
                self._total, task = config.train.steps, config.task.name
                names[encoding_name(config.model)] = None
        more = "..." if len(names) > NAMED else ""
        self._name = f"{task}, {'/'.join([*names][:NAMED])}{more}, {len(self._runs)} runs"

    def look(self) -> bool:
        """Read what has become of the runs; returns whether there is a new line to print."""
        before, now = dict(self._runs), time.monotonic()
        for run in (run for run, known in before.items() if known.state not in FINAL):
            with contextlib.suppress(OSError, ValueError):  # nothing is recorded yet
                self._runs[run] = self._store.status(run)
                if isinstance(loss := jsonl.last(self._store.folder(run) / jsonl.METRICS).get("loss"), int | float):
                    self._losses[run] = loss
        if self._first is None and any(one.step > before[run].step for run, one in self._runs.items()):
            self._first = (now, self._step())  # before, programs were compiled
        told = self._runs != before and (self._ended() or now - self._printed > QUIET)
        self._printed = now if told else self._printed
        return told

    def _ended(self) -> bool:
        """Whether no run of it trains or waits to be trained."""
        return not {"pending", "running"} & {one.state for one in self._runs.values()}

    def _step(self) -> float:
        """The mean step of its runs; one that has ended needs no more steps."""
        return fmean(self._total if one.state in FINAL else one.step for one in self._runs.values())

    def __str__(self) -> str:
        loss, now = f"loss {fmean(self._losses.values()):.4g}" if self._losses else "", time.monotonic()
        if self._ended():
            counts = Counter(one.state for one in self._runs.values())
            told = ", ".join(f"{count} {state}" for state, count in counts.items())
            reason = next((one.reason for one in self._runs.values() if one.reason), "")
            parts = [f"{self._name}: {told}", clock(now - self._begun), loss, reason]
        else:
            step, (since, before) = self._step(), self._first or (now, 0.0)
            rate = (step - before) / (now - since) if now > since else 0.0
            left = f"{rate:.3g} steps/s  {clock((self._total - step) / rate)} left" if rate else ""
            left = "evaluating" if step >= self._total else left
            parts = [self._name, f"step {step:,.0f} of {self._total:,}", left, loss]
        return "  ".join(part for part in parts if part)


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
