"""The command that says what there is: list."""

import argparse
import pathlib
from collections import Counter

from attnjax.cli.catalog import task_lines
from attnjax.cli.commands import provided
from attnjax.config import ENCODING_NAMES, TASK_NAMES
from attnjax.config.files import available, folders, opening, shipped
from attnjax.config.names import check_name
from attnjax.sweep import scan


def list_(arguments: argparse.Namespace) -> int:
    """`attnjax list WHAT`."""
    what, name = arguments.what, arguments.name
    if what == "runs":
        if name is None:
            raise ValueError("list runs needs the folder of a sweep: attnjax list runs DIR")
        return _list_runs(pathlib.Path(name))
    if what == "tasks":
        lines = task_lines() if name is None else [_card(name)]
    elif what == "configs":
        lines = _configs()
    else:
        lines = list(ENCODING_NAMES)
    print("\n".join(lines) or "none")
    return 0


def _configs() -> list[str]:
    """The configs with their first lines, below the folder that each comes from; and which of ours one of the user hides."""
    lines, hidden = [], []
    for folder in folders():
        ours, found = folder.resolve() == shipped().resolve(), [path for path in available() if path.parent == folder]
        lines += [f"in {folder}{', which come with attnjax' if ours else ''}:"] * bool(found)
        lines += [f"  {path.stem:<24}{_first_line(path)}".rstrip() for path in found]
        hidden += [path.stem for path in found if not ours and (shipped() / path.name).exists()]
    return lines + [f"instead of those of the same name that come with attnjax: {', '.join(hidden)}"] * bool(hidden)


def _list_runs(folder: pathlib.Path) -> int:
    found = scan(folder)
    for run in found.runs:
        state, step, reason = ("damaged", "", "; ".join(run.problems)) if run.status is None else run.status
        print(f"{run.run}  {state:<10}{step:>9}  {reason}".rstrip())
    counts = Counter("damaged" if run.status is None else run.status.state for run in found.runs)
    print(", ".join(f"{count} {state}" for state, count in counts.items()) or "no runs")
    for problem in found.problems:
        print(f"problem: {problem}")
    if unchecked := found.without_checksums():
        print(f"note: {unchecked}")
    if found.foreign:
        print(f"not of a sweep: {', '.join(found.foreign)}")
    return 0


def _card(name: str) -> str:
    """The data card of a task with its default options."""
    check_name("the task", name, TASK_NAMES)
    return provided("attnjax.tasks", "card")(provided("attnjax.tasks", "task")(name)).rstrip()


def _first_line(path: pathlib.Path) -> str:
    try:
        return opening(path).partition("\n")[0]
    except ValueError as error:
        return f"(damaged: {error})"
