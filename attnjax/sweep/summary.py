"""The states of the runs when a command ends: what is on the disk, what could not be written, which processes still work."""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from attnjax.records.status import FINAL
from attnjax.sweep.lease import Owner, Watch, live_owner
from attnjax.sweep.run_context import UNWRITTEN, Event, Progress
from attnjax.sweep.store import Store


@dataclasses.dataclass(frozen=True)
class Summary:
    """How every run stands.

    Args:
      states: the state of each run, see `of`.
      skipped: the runs that had ended before and were left alone.
      unwritten: why the lease, beginning or end of a run could not be written.
      others: the process that works on a run, where it is another one.
    """

    states: Mapping[str, str]
    skipped: tuple[str, ...]
    unwritten: Mapping[str, str]
    others: Mapping[str, Owner]

    def of(self, state: str) -> list[str]:
        """The runs in a state: done, failed, preempted, pending, running, damaged or unwritten."""
        return [run for run, found in self.states.items() if found == state]

    def open(self) -> list[str]:
        """The runs that have not ended, whoever works on them, and can."""
        return [run for run, state in self.states.items() if state not in (*FINAL, "damaged")]

    def left(self) -> list[str]:
        """The runs that have not ended and that no other process holds, by itself or with a run of their population."""
        return [run for run in self.open() if run not in self.others and self.states[run] != UNWRITTEN]

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in Counter(self.states.values()).items())
        return f"{len(self.states)} runs: {counts}" + (f"; {len(self.skipped)} of them before" if self.skipped else "")


class Ledger:
    """Passes events on, and remembers the runs of which something could not be written.

    `refusal` is what the display raised, if it did: it gets no more events, and training hears nothing of that.
    """

    def __init__(self, progress: Progress | None):
        self._progress = progress
        self.unwritten: dict[str, str] = {}
        self.refusal: Exception | None = None

    def __call__(self, event: Event) -> None:
        self.unwritten.pop(event.run, None)
        if event.state == UNWRITTEN:
            self.unwritten[event.run] = event.reason
        if self._progress is None or self.refusal is not None:
            return
        try:
            self._progress(event)
        except Exception as refusal:
            self.refusal = refusal


def summarise(store: Store, before: Mapping[str, str], after: Mapping[str, str], ledger: Ledger) -> Summary:
    """The states of all runs, from their states on the disk before and after, and the events in between.

    Raises what the display raised, unless its output took no more: the records tell what it did not.
    """
    if ledger.refusal is not None and not isinstance(ledger.refusal, OSError | UnicodeError):
        raise ledger.refusal
    unwritten = {run: why for run, why in ledger.unwritten.items() if after[run] not in FINAL}
    states = {run: UNWRITTEN if run in unwritten else state for run, state in after.items()}
    skipped = tuple(run for run, state in after.items() if state in FINAL and before.get(run) == state)
    return Summary(states, skipped, unwritten, others(store, states))


def others(store: Store, states: Mapping[str, str]) -> dict[str, Owner]:
    """The processes that hold runs that have not ended; on other machines also processes that may be dead."""
    found, watch = {}, Watch()
    for run, state in states.items():
        if state in (*FINAL, "damaged", UNWRITTEN):
            continue
        try:
            owner = live_owner(store.directory(run), watch)
        except (OSError, ValueError):  # whoever can say more has the folder
            continue
        if owner is not None:
            found[run] = owner
    return found
