"""The command `attnjax list`: encodings, tasks, configs, and the runs in a folder."""

import argparse
import pathlib
from collections import Counter

from attnjax.cli.catalog import encoding_lines, encoding_page, task_lines
from attnjax.cli.commands import provided
from attnjax.cli.scores import score_of
from attnjax.cli.watching import watch
from attnjax.config import TASK_NAMES, encoding_name
from attnjax.config.files import SWEEP_FILE, available, find, folders, opening, protocol, shipped
from attnjax.config.names import check_name
from attnjax.records.remote import is_remote, local, mirrored
from attnjax.registry import ENCODINGS, SUITES
from attnjax.sweep import Run, load, scan
from attnjax.sweep.claim import PATIENCE
from attnjax.sweep.find import check_folder

HEAD = ("run", "name", "task", "encoding", "seed", "state", "step", "score")
MOST = 10
"""Folders that an error names."""


WHAT = (
    ("encodings", "[NAME]", "the positional encodings; with NAME, the options, formula and references of one"),
    ("tasks", "[NAME]", "the tasks; with NAME, the data card of one: definition, chance, lengths"),
    ("suites", "[NAME]", "the suites of `attnjax evaluate`; with NAME, the tasks of one"),
    ("configs", "[NAME]", "the configs and their folders; with NAME, the protocol of one"),
    ("runs", "DIR", "the runs in a folder, with their states and scores"),
)
"""What can be listed, the argument that may follow, and a description."""


def list_(arguments: argparse.Namespace) -> int:
    """`attnjax list [WHAT [NAME]]`."""
    what, name = arguments.what, arguments.name
    if what is None:
        print("\n".join(f"attnjax list {one + ' ' + more:<20}{text}" for one, more, text in WHAT))
        return 0
    if arguments.watch is not None and what != "runs":
        raise ValueError("--watch needs runs and the folder of a sweep: attnjax list runs DIR --watch 10")
    if arguments.patience is not None and arguments.watch is None:
        raise ValueError("--patience needs --watch: it says when a process elsewhere counts as gone")
    if what == "runs":
        if arguments.watch is not None:
            folder = local(_folder(name), "--watch reads heartbeats, which a copy has not")
            return watch(folder, arguments.watch, arguments.patience or PATIENCE)
        with mirrored(_folder(name)) as folder:
            return _list_runs(folder, _folder(name))
    lists = {"encodings": (encoding_lines, _encoding), "tasks": (task_lines, _card), "configs": (_configs, _protocol)}
    lists["suites"] = (_suites, _suite)
    every, one = lists[what]
    print("\n".join(every() if name is None else [one(name)]) or "none")
    return 0


def _suites() -> list[str]:
    """Each suite with its tasks."""
    return [f"{name:<30}{', '.join(rows)}" for name, rows in SUITES.items()]


def _suite(name: str) -> str:
    """The tasks of a suite with their labels."""
    check_name("the suite", name, tuple(SUITES))
    return "\n".join(f"{task:<30}{row.label}" for task, row in SUITES[name].items())


def _configs() -> list[str]:
    """The configs with their first lines, grouped by folder, and the shipped ones that configs of the user hide."""
    lines, hidden = [], []
    for folder in folders():
        ours, found = folder.resolve() == shipped().resolve(), [path for path in available() if path.parent == folder]
        lines += [f"in {folder}{', which come with attnjax' if ours else ''}:"] * bool(found)
        lines += [line for path in found for line in _config(path)]
        hidden += [path.stem for path in found if not ours and (shipped() / path.name).exists()]
    return lines + [f"used instead of the configs of the same name that come with attnjax: {', '.join(hidden)}"] * bool(
        hidden
    )


def _folder(name: str | None) -> str:
    """The folder of a sweep or its URL. Raises ValueError, with those in ./runs, where none is named."""
    if name is None:
        raise ValueError(f"list runs needs the folder of a sweep: attnjax list runs DIR{_known_sweeps()}")
    return name


def _known_sweeps() -> str:
    found = sorted(path.parent for path in pathlib.Path("runs").glob(f"*/{SWEEP_FILE}"))
    return f"; there are: {', '.join(map(str, found[:MOST]))}{', ...' * (len(found) > MOST)}" if found else ""


def _list_runs(folder: pathlib.Path, name: str) -> int:
    check_folder(folder)
    found = scan(folder)
    protocol = _protocol_of(folder)
    rows = [_row(run, protocol) for run in found.runs]
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    for row in [HEAD, *rows] if rows else []:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    counts = Counter("damaged" if run.status is None else run.status.state for run in found.runs)
    print(", ".join(f"{count} {state}" for state, count in counts.items()) or "no runs")
    for problem in found.problems:
        print(f"problem: {problem.replace(str(folder), name) if is_remote(name) else problem}")
    if found.foreign:
        print(f"other files in the folder: {', '.join(found.foreign)}")
    return 0


def _row(run: Run, protocol: str) -> tuple[str, ...]:
    """What a run is, how it stands, and its score, or why it has none."""
    state, step, reason = ("damaged", "", "; ".join(run.problems)) if run.status is None else run.status
    if run.config is None:
        return (run.run, "", "", "", "", state, str(step), reason)
    config = run.config
    seeds = dict.fromkeys((config.seed, config.data_seed))
    score = score_of(run.folder, config, protocol) if state == "done" else ""
    encoding, policy = encoding_name(config.model, options=True), config.positions.policy
    method = encoding if policy == "arange" else f"{encoding} policy={policy}"
    names = (config.name, config.task.name, method, "/".join(map(str, seeds)))
    return (run.run, *names, state, str(step), "; ".join(part for part in (score, reason) if part))


def _protocol_of(folder: pathlib.Path) -> str:
    try:
        return load(folder).protocol
    except (ValueError, OSError):  # `scan` says so among the problems
        return ""


def _encoding(name: str) -> str:
    """Options of an encoding, and the text of its file."""
    check_name("the encoding", name, tuple(ENCODINGS))
    return encoding_page(name, provided("attnjax.positions", "ENCODINGS")[name])


def _protocol(name: str) -> str:
    """Where a config is, and its docstring."""
    path = find(name.partition(":")[0])
    return f"{path}\n\n{protocol(path) or '(this config has no docstring)'}"


def _card(name: str) -> str:
    """The data card of a task with its default options."""
    check_name("the task", name, TASK_NAMES)
    return provided("attnjax.tasks", "card")(provided("attnjax.tasks", "task")(name)).rstrip()


def _config(path: pathlib.Path) -> list[str]:
    """A line with the name of a config and the first line of its docstring, and one with its variants."""
    try:
        text, variants = opening(path)
    except ValueError as error:
        text, variants = f"(damaged: {error})", {}
    names = " ".join(f"{path.stem}:{variant}" for variant in variants)
    return [f"  {path.stem:<24}{text.partition(chr(10))[0]}".rstrip(), *[f"{'':<26}{names}"] * bool(names)]
