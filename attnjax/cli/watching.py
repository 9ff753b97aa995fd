"""`attnjax list runs DIR --watch S`: how a sweep gets on, read from its folder alone, on any machine that sees it."""

import collections
import pathlib
import time
from collections import Counter
from collections.abc import Iterator

from attnjax.records.status import FINAL
from attnjax.sweep import Store, load
from attnjax.sweep.claim import PATIENCE, holder, is_dead, machine_id, silence
from attnjax.sweep.outcome import Stop, on_signals

WINDOW = 20
"""Looks over which the rate is taken."""
MOST, FAILURES = 20, 5
"""Largest numbers of lines about runs in training, and about runs that have failed."""
UNREADABLE = 2
"""Looks in a row at which the files of a run cannot be read, after which it counts as damaged: a file system of a network may
lose a file for a moment.
"""
UNITS = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


def watch(folder: pathlib.Path, seconds: float, patience: float = PATIENCE) -> int:
    """Print how the runs stand every so many seconds, until all have ended or Ctrl-C; returns 0.

    `patience` is how many seconds without a heartbeat tell that a process elsewhere is gone.
    """
    view, stop = View(load(folder), patience), Stop()
    with on_signals(stop):
        while True:
            print("\n".join(view.lines()), flush=True)
            if view.ended() or stop.wait(seconds):
                return 0


class View:
    """The states and steps of the runs of a sweep, as they were at each look. A run that has ended is not read again."""

    def __init__(self, store: Store, patience: float = PATIENCE):
        self._store = store
        self._total = {entry.run: 0 for entry in store.runs}
        self._state = dict.fromkeys(self._total, "pending")
        self._step = dict.fromkeys(self._total, 0)
        self._reason: dict[str, str] = {}
        self._unread: Counter[str] = Counter()
        self._patience = patience
        self._looks: collections.deque[tuple[float, int]] = collections.deque(maxlen=WINDOW)

    def ended(self) -> bool:
        """Whether no run is left to wait for."""
        return all(state in (*FINAL, "damaged") for state in self._state.values())

    def lines(self) -> Iterator[str]:
        """Look, and tell: counts, rate and what is left; then which runs failed and why, and who trains what."""
        now = time.monotonic()
        for run, state in self._state.items():
            if state not in FINAL:
                self._read(run)
        counts = Counter(self._state.values())
        todo = [run for run, state in self._state.items() if state not in ("failed", "damaged")]
        done, whole = sum(self._step[run] for run in todo), sum(self._total[run] for run in todo)
        self._looks.append((now, done))
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        yield f"{len(self._state)} runs: {told}; {done:,} of {whole:,} steps{self._pace(whole - done)}"
        failed = [run for run, state in self._state.items() if state == "failed"]
        for run in failed[:FAILURES]:
            yield f"  {run}  failed at step {self._step[run]:,} of {self._total[run]:,}: {self._reason[run]}"
        if len(failed) > FAILURES:
            yield f"  and {len(failed) - FAILURES} more failed"
        running = [run for run, state in self._state.items() if state == "running"]
        for run in running[:MOST]:
            yield f"  {run}  step {self._step[run]:,} of {self._total[run]:,}{self._owner(run)}"
        if len(running) > MOST:
            yield f"  and {len(running) - MOST} more in training"

    def _read(self, run: str) -> None:
        try:
            if not self._total[run]:
                self._total[run] = self._store.config(run).train.steps
            found = self._store.status(run)
        except (OSError, ValueError):
            self._unread[run] += 1
            if self._unread[run] >= UNREADABLE:
                self._state[run] = "damaged"
            return
        self._unread[run] = 0
        self._state[run], self._step[run], self._reason[run] = found.state, found.step, found.reason
        if found.state == "done":  # a run that has fitted its task ends before its last step
            self._total[run] = found.step

    def _pace(self, left: int) -> str:
        """Steps a second over the last looks, and how long the rest takes at this rate."""
        (then, before), (now, done) = self._looks[0], self._looks[-1]
        if done <= before or now <= then:
            return ""
        rate = (done - before) / (now - then)
        return f", {rate:.3g} a second, about {_duration(left / rate)} left" if left else f", {rate:.3g} a second"

    def _owner(self, run: str) -> str:
        """Who works on the run: a process of this machine that runs, or one elsewhere that renews its claim."""
        try:
            directory, now = self._store.directory(run), time.time()
            owner = holder(directory)
        except (OSError, ValueError):
            return ""
        if owner is None:
            return "  its process is gone"
        quiet = "" if owner.machine == machine_id() else f", last heartbeat {_duration(silence(directory, now))} ago"
        return f"  {'its process is gone' if is_dead(directory, owner, now, self._patience) else owner}{quiet}"


def _duration(seconds: float) -> str:
    size, name = next((unit for unit in UNITS if seconds >= 2 * unit[0]), UNITS[-1])
    return f"{seconds / size:.0f} {name}"
