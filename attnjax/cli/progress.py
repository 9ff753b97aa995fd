"""Prints how training gets on: a line for each population, at most every ten seconds."""

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from attnjax.config import encoding_name
from attnjax.records.status import FINAL
from attnjax.sweep import Entry, Event, Store, groups

QUIET = 10.0
"""Seconds between lines about one population; its end is always told."""
NAMED = 3
"""Encodings that a line names."""


@contextlib.contextmanager
def printing(store: Store) -> Iterator[None]:
    """Prints in the block. Where standard output takes no more, as a pipe whose reader has ended, the rest is dropped: training
    goes on, and what becomes of the runs decides the exit status.
    """
    try:
        yield
        print(end="", flush=True)
    except OSError as refusal:
        if refusal.filename is not None:  # of a file of the runs
            raise
        drop_output()
        told = f"note: standard output takes no more ({refusal.strerror}); how the runs stand: attnjax list runs {store.root}"
        with contextlib.suppress(OSError):
            print(told, file=sys.stderr, flush=True)


def drop_output() -> None:
    """Drop what is still to be printed, or Python would complain at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Display:
    """Prints events of runs; called with each."""

    def __init__(self, store: Store):
        self._store = store
        together = groups(store.runs, key=lambda entry: entry.group)
        self._entries = {entry.run: entries for entries in together for entry in entries}
        self._populations: dict[str, Population] = {}

    def __call__(self, event: Event) -> None:
        """Print what an event changes in the line of its population."""
        entries = self._entries[event.run]
        group, now = entries[0].group, time.monotonic()
        if group not in self._populations:
            self._populations[group] = Population(self._store, entries)
        population = self._populations[group]
        population.take(event)
        if population.ended or now - population.printed > QUIET:
            population.printed = now
            with printing(self._store):
                print(population, flush=True)
        if event.state == "running" and event.reason:
            with contextlib.suppress(OSError):
                print(f"{event.run}  at step {event.step}: {event.reason}", file=sys.stderr, flush=True)


class Population:
    """Runs of one program: their steps, states and losses, as far as events tell."""

    def __init__(self, store: Store, entries: Sequence[Entry]):
        self.total, self.printed = 0, -QUIET
        self._states: dict[str, str] = {}
        self._steps: dict[str, int] = {}
        self._losses: dict[str, float] = {}
        self._first: tuple[float, float] | None = None
        task, names = "", {}
        for entry in entries:
            with contextlib.suppress(OSError, ValueError):  # a damaged run is told of at the end
                self._states[entry.run], self._steps[entry.run], _ = store.status(entry.run)
                config = store.config(entry.run)
                self.total, task = config.train.steps, config.task.name
                names[encoding_name(config.model)] = None
        more = "..." if len(names) > NAMED else ""
        self._name = f"{task}, {'/'.join([*names][:NAMED])}{more}, {len(entries)} runs"
        self._begun, self._reason = (time.monotonic(), self.step), ""

    def take(self, event: Event) -> None:
        """Note what an event says of one run."""
        self._states[event.run], self._steps[event.run] = event.state, event.step
        self._reason = self._reason or (event.reason if event.state != "running" else "")
        if isinstance(loss := event.numbers.get("loss"), int | float):
            self._losses[event.run] = loss
        if self._first is None and self.step > self._begun[1]:  # before, programs were compiled
            self._first = (time.monotonic(), self.step)

    @property
    def ended(self) -> bool:
        """Whether no run of it trains or waits to be trained."""
        return not {"pending", "running"} & {*self._states.values()}

    @property
    def step(self) -> float:
        """The mean step of its runs; one that has ended needs no more steps."""
        return fmean(self.total if self._states[run] in FINAL else step for run, step in self._steps.items())

    def __str__(self) -> str:
        loss = f"loss {fmean(self._losses.values()):.4g}" if self._losses else ""
        now, step = time.monotonic(), self.step
        if self.ended:
            counts = ", ".join(f"{count} {state}" for state, count in Counter(self._states.values()).items())
            parts = [f"{self._name}: {counts}", clock(now - self._begun[0]), loss, self._reason]
        else:
            since, before = self._first or self._begun
            rate = (step - before) / (now - since) if now > since else 0.0
            left = f"{rate:.3g} steps/s  {clock((self.total - step) / rate)} left" if rate else ""
            left = "evaluating" if step >= self.total else left
            parts = [self._name, f"step {step:,.0f} of {self.total:,}", left, loss]
        return "  ".join(part for part in parts if part)


def clock(seconds: float) -> str:
    """Minutes and seconds, or hours and minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
