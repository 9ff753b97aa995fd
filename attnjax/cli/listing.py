"""The verb `list`: encodings, tasks and configs, and the runs in a folder."""

import argparse
import ast
import inspect
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from attnjax.cli.scores import method, score_of, table
from attnjax.config import TASK_NAMES, parse
from attnjax.config.files import available, find, folders, opening, protocol, shipped
from attnjax.config.names import check_name
from attnjax.records.values import text
from attnjax.registry import ENCODINGS, TASKS
from attnjax.sweep import find_folder
from attnjax.sweep.find import RUNS, sweeps

if TYPE_CHECKING:
    from attnjax.records.typed import Run

WHAT = (
    ("encodings", "[NAME]", "the positional encodings; with NAME, the options, formula and references of one"),
    ("tasks", "[NAME]", "the tasks; with NAME, the data card of one: definition, chance, lengths"),
    ("configs", "[NAME]", "the configs and their folders; with NAME, the protocol of one"),
    ("runs", "[NAME]", "the sweeps in ./runs; with NAME, the runs of one, with their states and scores"),
)
"""What can be listed, the argument that may follow, and a description."""
PACKAGE = pathlib.Path(__file__).parents[1]
AXES = "for positions with several coordinates, which no task makes"
HEAD = ("run", "name", "task", "encoding", "seed", "state", "step", "score")


def list_(arguments: argparse.Namespace) -> int:
    """`attnjax list [WHAT [NAME]]`."""
    what, name = arguments.what, arguments.name
    if what is None:
        print("\n".join(f"attnjax list {one + ' ' + more:<20}{text}" for one, more, text in WHAT))
        return 0
    if what == "runs":
        if name is None:
            print("\n".join(sweeps()) or f"{RUNS} has no sweep")
            return 0
        return _list_runs(find_folder(name))
    lists: dict[str, tuple[Callable[[], Iterable[str]], Callable[[str], str]]] = {
        "encodings": (_encodings, _encoding),
        "tasks": (_tasks, _card),
        "configs": (_configs, _protocol),
    }
    every, one = lists[what]
    print("\n".join(every() if name is None else [one(name)]) or "none")
    return 0


# What there is ------------------------------------------------------------------------------------------------------------


def _encodings() -> list[str]:
    return [_line(name, row.path) + f" ({AXES})" * row.axes for name, row in ENCODINGS.items()]


def _encoding(name: str) -> str:
    """Label, class and options of an encoding, and the text of its class and its file: formula, hooks, shapes, references."""
    check_name("the encoding", name, tuple(ENCODINGS))
    from attnjax import positions

    kind = positions.ENCODINGS[name]
    options = [f"{one.name}={one.default!r}" for one in inspect.signature(kind).parameters.values()]
    used = f"It is {AXES}." if ENCODINGS[name].axes else f"In a config: model.encoding={name}"
    if options and not ENCODINGS[name].axes:
        used += f" and model.encoding.options.{options[0].partition('=')[0]}=..."
    # NoPE stands in the file of the interface, whose text is about something else.
    about = inspect.getdoc(inspect.getmodule(kind)) if name != "nope" else ""
    own = (inspect.getdoc(kind) or "").partition("\n\nExample")[0]
    parts = (f"{ENCODINGS[name].label}: attnjax.{kind.__name__}({', '.join(options)})", used, own, about)
    return "\n\n".join(part for part in parts if part)


def _tasks() -> list[str]:
    return [_line(name, path) for name, path in TASKS.items()]


def _card(name: str) -> str:
    """The data card of a task with its default options."""
    check_name("the task", name, TASK_NAMES)
    from attnjax import tasks

    return tasks.card(tasks.task(name)).rstrip()


def _line(name: str, path: str) -> str:
    """A name and the first line of the docstring of its class, from the source, because importing it needs JAX."""
    module, _, kind = path.partition(":")
    tree = ast.parse(PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    return f"{name:<30}{(ast.get_docstring(found) or '').partition(chr(10))[0]}".rstrip()


def _configs() -> list[str]:
    """The configs with their first lines, grouped by folder, and the shipped ones that configs of the user hide."""
    lines, hidden = [], []
    for folder in folders():
        ours, found = folder.resolve() == shipped().resolve(), [path for path in available() if path.parent == folder]
        lines += [f"in {folder}{', which come with attnjax' if ours else ''}:"] * bool(found)
        lines += [line for path in found for line in _config(path)]
        hidden += [path.stem for path in found if not ours and (shipped() / path.name).exists()]
    told = f"used instead of the configs of the same name that come with attnjax: {', '.join(hidden)}"
    return lines + [told] * bool(hidden)


def _config(path: pathlib.Path) -> list[str]:
    """A line with the name of a config and the first line of its docstring, and one with its variants."""
    try:
        about, variants = opening(path)
    except (OSError, ValueError) as error:
        about, variants = f"(damaged: {error})", {}
    names = " ".join(f"{path.stem}:{variant}" for variant in variants)
    return [f"  {path.stem:<24}{about.partition(chr(10))[0]}".rstrip(), *[f"{'':<26}{names}"] * bool(names)]


def _protocol(name: str) -> str:
    """Where a config is, and its docstring."""
    path = find(name.partition(":")[0])
    return f"{path}\n\n{protocol(path) or '(this config has no docstring)'}"


# Runs ---------------------------------------------------------------------------------------------------------------------


def _list_runs(root: pathlib.Path) -> int:
    from attnjax.records import stored  # imports NumPy

    sweep = stored.read(root)
    rows = sorted(_row(run, text(sweep.spec.get("protocol"))) for run in sweep.runs)
    print(table([HEAD, *((run, *what, *more) for what, more, run in rows)]), end="")
    counts = Counter(run.state for run in sweep.runs)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    for one in sweep.skipped:
        print(f"problem: {one}")
    return 0


def _row(run: "Run", protocol: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """What a run is, how it stands with its score or why it has none, and its id."""
    try:
        config = parse(run.config) if run.config else None
    except ValueError:
        config = None
    if config is None:
        return ("",) * 4, (run.state, str(run.step), run.reason), run.id
    seeds = dict.fromkeys((config.seed, config.data_seed))
    score = score_of(run, config, protocol) if run.state == "done" else None
    told = "; ".join(str(part) for part in (score, run.reason) if part)
    what = (config.name, config.task.name, method(config), "/".join(map(str, seeds)))
    return what, (run.state, str(run.step), told), run.id
