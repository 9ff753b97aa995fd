"""The state of a run, `pending -> running -> done | failed | preempted`, in one small file that is written atomically."""

import pathlib
from typing import NamedTuple

from attnjax.config.options import shown
from attnjax.config.schema import SCHEMA
from attnjax.records import files

FILE = "status.json"
MOVES = (
    ("pending", ("running", "failed", "preempted")),
    ("running", ("running", "done", "failed", "preempted")),
    ("preempted", ("running", "failed", "preempted")),
    ("failed", ("pending",)),
    ("done", ()),
)
"""What may follow each state. A running run whose process died is taken over as it is; a failed one may be tried again."""
STATES = tuple(state for state, _ in MOVES)
FINAL = ("done", "failed")


class Status(NamedTuple):
    """State, the step it was reached at, and why."""

    state: str = "pending"
    step: int = 0
    reason: str = ""


def read(directory: pathlib.Path) -> Status:
    """The status of the run in a folder; pending where there is none yet.

    Raises ValueError where it is damaged, OSError where it cannot be read.
    """
    try:
        return stored(directory)
    except FileNotFoundError:
        return Status()


def stored(directory: pathlib.Path) -> Status:
    """The status of the run in a folder. Raises FileNotFoundError if there is none."""
    path = directory / FILE
    table = files.read_table(path)
    state, step, reason = table.get("state"), table.get("step"), table.get("reason", "")
    if state not in STATES or not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ValueError(f"{path} is damaged: state {shown(state)}, step {shown(step)}")
    return Status(state, step, str(reason))


def write(directory: pathlib.Path, status: Status) -> None:
    """Replace the status; final ones are on the disk when this returns.

    Raises ValueError where this state cannot follow the last one.
    """
    before = read(directory).state
    if status.state not in dict(MOVES)[before]:
        raise ValueError(f"run {directory.name} cannot become {status.state} after {before}")
    durable = status.state != "running"
    files.write_table(directory / FILE, {"schema": SCHEMA, **status._asdict()}, durable=durable)
