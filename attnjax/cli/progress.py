"""Prints the progress of runs: bars in a terminal, plain lines elsewhere."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Self

from attnjax.cli.scores import score_of
from attnjax.sweep import Event, Store

QUIET = 10.0
"""Seconds between plain lines about steps; lines about the beginning and end of a run are always printed."""


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
    """Prints events; use as a context."""

    def __init__(self, store: Store):
        self._store, self._total = store, len(store.runs)
        self._steps: dict[str, int] = {}
        self._ended, self._last = 0, time.monotonic()
        self._bars = _bars() if sys.stdout.isatty() else None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
            self._tasks[""] = self._bars.add_task("runs", total=self._total, news="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            with printing(self._store):
                self._bars.stop()

    def __call__(self, event: Event) -> None:
        with printing(self._store):
            if event.state == "running":
                self._running(event)
            else:
                self._over(event)
        if event.state == "running" and event.reason:
            with contextlib.suppress(OSError):
                print(f"{event.run}  at step {event.step}: {event.reason}", file=sys.stderr, flush=True)

    def _running(self, event: Event) -> None:
        first = event.run not in self._steps
        if first:
            self._steps[event.run] = self._store.config(event.run).train.steps
        total, news = self._steps[event.run], _numbers(event)
        if self._bars:
            if event.run not in self._tasks:
                self._tasks[event.run] = self._bars.add_task(event.run, total=total, news="")
            self._bars.update(self._tasks[event.run], completed=event.step, news=news)
        elif first or time.monotonic() - self._last > QUIET:
            self._last = time.monotonic()
            print(f"{event.run}  step {event.step} of {total}  {news}".rstrip(), flush=True)

    def _over(self, event: Event) -> None:
        self._ended += event.state in ("done", "failed")
        line = f"[{self._ended}/{self._total}] {event.run}  {event.state} at step {event.step}  {_numbers(event)}"
        line = f"{line.rstrip()}  {event.reason}".rstrip()
        line += f"  {ended(self._store, event.run)}" if event.state == "done" else ""
        if not self._bars:
            print(line, flush=True)
            return
        self._bars.console.print(line, markup=False, highlight=False)
        if event.run in self._tasks:
            self._bars.remove_task(self._tasks.pop(event.run))
        self._bars.update(self._tasks[""], completed=self._ended)


def ended(store: Store, run: str) -> str:
    """What a run that is done scored, and its folder."""
    try:
        score = score_of(store.folder(run), store.config(run), store.protocol)
    except (ValueError, OSError):  # it is told among the damaged ones
        score = ""
    return f"{score}  in {store.root / run}".strip()


def _numbers(event: Event) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in event.numbers.items() if isinstance(value, int | float))


def _bars() -> Any:
    """Bars with steps, steps a second and the time left; None where rich, which Flax brings, is missing."""
    try:
        from rich import progress
        from rich.text import Text
    except ImportError:
        return None

    class Speed(progress.ProgressColumn):
        """Steps a second of a run."""

        def render(self, task: progress.Task) -> Text:
            return Text(f"{task.speed:.3g} steps/s" if task.speed and task.description != "runs" else "")

    text, bar, count = progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn()
    return progress.Progress(
        text, bar, count, Speed(), progress.TimeRemainingColumn(), progress.TextColumn("{task.fields[news]}")
    )
