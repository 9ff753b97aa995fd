"""What must be true after a command, whatever was done to its input. Each finding is one sentence that begins with its kind."""

import json
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from tests.fuzz import canary, pages, truths
from tests.fuzz.commands import Command
from tests.fuzz.subjects import Facts, readable
from tests.fuzz.warm import Reply

STATUSES = (0, 1, 2, 3, 130, 143)
MEMORY = 2**30
TRACEBACK = "Traceback (most recent call last)"
SHOWN = 3
PIECE = 9
"""So many letters of the marker, one after another, are no coincidence."""


class Before(NamedTuple):
    """What was there between the mutation and the command."""

    beside: dict[str, canary.Entry]
    thing: dict[str, canary.Entry]
    states: dict[str, str]
    holds_marker: bool


def look(case: pathlib.Path, facts: Facts | None) -> Before:
    """Look at a case before the command."""
    thing = case / "thing"
    states = {run: truths.state(thing / run) for run in facts.ends} if facts else {}
    # By a hard link or a copy the secret is a part of the folder, and may be shown.
    holds = any(canary.MARKER.encode() in readable(path) for path in thing.rglob("*"))
    return Before(beside(case), canary.snapshot(thing), states, holds)


def beside(case: pathlib.Path) -> dict[str, canary.Entry]:
    """All that no command may touch."""
    return canary.snapshot(case, leave_out=("thing", "out"))


def check(
    case: pathlib.Path, before: Before, command: Command, reply: Reply, facts: Facts | None, *, checksums: bool
) -> list[str]:
    """Every finding of a case. `checksums`: whether the subject's records have some."""
    found = _together("outside touched", canary.differences(before.beside, beside(case)))
    found += _ended(reply)
    if command.reads:
        theirs = {name: entry for name, entry in before.thing.items() if name.split("/")[0] not in command.writes}
        inside = canary.differences(theirs, canary.snapshot(case / "thing", leave_out=command.writes))
        found += _together("changed by reading", inside)
    if not before.holds_marker:
        found += _leaks(case, reply)
    if facts is not None and reply.status is not None:
        wrong = _wrong(case, before, command, reply, facts, checksums=checksums)
        found += [f"wrong value: {line}" for line in wrong]
    return found


def _together(kind: str, lines: list[str]) -> list[str]:
    """One finding of many differences."""
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return [f"{kind}: {', '.join(lines[:SHOWN])}{more}"] if lines else []


def _ended(reply: Reply) -> Iterator[str]:
    if reply.ended:
        yield f"{'hang' if 'within' in reply.ended else 'death'}: the command {reply.ended}"
    elif reply.escaped:
        lines = reply.escaped.strip().splitlines()
        where = [line.strip() for line in lines if line.strip().startswith("File ") and "/attnjax/" in line]
        yield f"traceback: {lines[-1][:300]} ({where[-1].rpartition('/attnjax/')[2] if where else 'elsewhere'})"
    elif TRACEBACK in reply.output:
        yield "traceback: one stands in the output"
    elif reply.status not in STATUSES:
        yield f"exit status: {reply.status} is not documented"
    if reply.grown > MEMORY:
        yield f"memory: the command took {reply.grown >> 20} MiB"


def _leaks(case: pathlib.Path, reply: Reply) -> Iterator[str]:
    if canary.MARKER in reply.output:
        yield "leak: the secret stands in the output"
    for path in sorted((case / "out").rglob("*")):
        if canary.MARKER.encode() in readable(path):
            yield f"leak: the secret stands in {path.name}"
    page = case / "out" / "page.html"
    texts = [pages.read_aloud(run) for run in pages.data(page)["runs"]] if page.is_file() else []
    pieces = {(canary.MARKER * 2)[i : i + PIECE] for i in range(len(canary.MARKER))}
    if any(piece in text for text in texts for piece in pieces):
        yield "leak: the page shows the text of the secret file"


def _wrong(
    case: pathlib.Path, before: Before, command: Command, reply: Reply, facts: Facts, *, checksums: bool
) -> Iterator[str]:
    thing, out = case / "thing", case / "out"
    if not command.reads:
        yield from truths.trained(facts, thing, before.states, checksums=checksums)
    if reply.status != 0:
        return
    if command.name == "load":
        found = json.loads(reply.output.splitlines()[-1])
        yield from truths.loaded(facts, pathlib.Path(command.arguments[0]).name, found)
    elif command.name == "explore":
        for run in pages.data(out / "page.html")["runs"]:
            yield from truths.shown(facts, run)
    elif command.name == "report":
        yield from truths.reported(facts, thing, thing / "report" if command.writes else out, checksums=checksums)
    elif command.name == "list":
        yield from truths.listed(facts, thing, reply.output)
    elif not command.reads:
        yield from truths.claimed(facts, thing, all_of_them=command.name == "sweep")
