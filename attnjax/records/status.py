"""The state of a run, `pending -> running -> done | failed | preempted`, in one small file that is written atomically."""

import pathlib
from typing import NamedTuple

from attnjax.config.kinds import shown
from attnjax.config.schema import SCHEMA
from attnjax.records import files
from attnjax.records.values import printable, whole

FILE = "status.json"
STATES = ("pending", "running", "preempted", "failed", "done")
FINAL = ("done", "failed")


class Status(NamedTuple):
    """State, the step it was reached at, and why."""

    state: str = "pending"
    step: int = 0
    reason: str = ""


def read(folder: pathlib.Path) -> Status:
    """Return the status in a folder of records; pending where there is none yet.

    Raises ValueError where it is damaged, OSError where it cannot be read.
    """
    path = folder / FILE
    try:
        table = files.read_table(path)
    except FileNotFoundError:
        return Status()
    state, step, reason = table.get("state"), table.get("step"), table.get("reason", "")
    if state not in STATES or not whole(step):
        raise ValueError(f"{path} is damaged: state {shown(state)}, step {shown(step)}")
    return Status(state, step, printable(str(reason)))


def write(folder: pathlib.Path, status: Status) -> None:
    """Replace the status; it is on the disk when this returns, unless the run goes on."""
    table = {"schema": SCHEMA, **status._asdict()}
    files.write_table(folder / FILE, table, durable=status.state != "running")
