"""The encodings and tasks in words, read from their source, since importing them needs JAX."""

import ast
import inspect
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from attnjax.registry import ENCODINGS

SENTENCE = re.compile(r"(?<=[^. ])\. (?=[A-Z`])")
"""The end of a sentence, which the dots of 0 .. n and a ... z are not."""

PACKAGE = pathlib.Path(__file__).parents[1]
AXES = "for positions with several coordinates, which no task makes"


def task_lines(folder: pathlib.Path = PACKAGE / "tasks") -> list[str]:
    """The name of each task with the first sentence of its docstring, in the order of `attnjax.tasks.TASKS`."""
    docstrings: dict[str, str] = {}
    classes: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        tree = _tree(path)
        docstrings |= _docstrings(tree)
        for node in tree.body:
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TASKS" and node.value is not None:
                classes = _table(node.value)
    return _lines((name, docstrings.get(kind, "")) for name, kind in classes.items())


def encoding_lines() -> list[str]:
    """The name of each encoding with the first sentence of its docstring, in the order of the registry."""
    found = [(name, _docstrings(_tree(_file(name)))[row.name]) for name, row in ENCODINGS.items()]
    return [line + f" ({AXES})" * ENCODINGS[name].axes for line, (name, _) in zip(_lines(found), found, strict=True)]


def encoding_page(name: str, kind: type[Any]) -> str:
    """Label, class and options of an encoding, and the text of its file: formula, hooks, shapes, references."""
    row, tree = ENCODINGS[name], _tree(_file(name))
    options = [f"{one.name}={one.default!r}" for one in inspect.signature(kind).parameters.values()]
    told = "" if row.axes else f"In a config: model.encoding={name}"
    told += f" and model.encoding.options.{options[0].partition('=')[0]}=..." if told and options else ""
    alone = sum(one.path.partition(":")[0] == row.path.partition(":")[0] for one in ENCODINGS.values()) == 1
    # NoPE stands in the file of the interface, whose text is about something else.
    text = ast.get_docstring(tree) if name != "nope" else ""
    about = [] if alone and text else [_docstrings(tree)[row.name].partition("\n\nExample")[0]]
    parts = [f"{row.label}: attnjax.{row.name}({', '.join(options)})", told or f"It is {AXES}.", *about, text]
    return "\n\n".join(part for part in parts if part)


def _lines(named: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name:<30}{_first_sentence(text)}".rstrip() for name, text in named]


def _file(encoding: str) -> pathlib.Path:
    """The source of an encoding."""
    module = ENCODINGS[encoding].path.partition(":")[0]
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def _tree(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _docstrings(tree: ast.Module) -> dict[str, str]:
    """The docstring of every class."""
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.ClassDef)}


def _table(node: ast.expr) -> dict[str, str]:
    """{"copy": "Copy"} for the expression `{"copy": Copy}`."""
    assert isinstance(node, ast.Dict)
    pairs = zip(node.keys, node.values, strict=True)
    return {str(ast.literal_eval(key)): ast.unparse(value) for key, value in pairs if key is not None}


def _first_sentence(text: str) -> str:
    return SENTENCE.split(" ".join(text.split("\n\n")[0].split()))[0].rstrip(".:")
