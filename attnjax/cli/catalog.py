"""Descriptions of encodings and tasks, taken from the docstrings in their source, because importing them needs JAX."""

import ast
import inspect
import pathlib
import re
from typing import Any

from attnjax.registry import ENCODINGS, TASKS

SENTENCE = re.compile(r"(?<=[^. ])\. (?=[A-Z`])")
"""The end of a sentence; the dots of 0 .. n and a ... z do not match."""

PACKAGE = pathlib.Path(__file__).parents[1]
AXES = "for positions with several coordinates, which no task makes"


def task_lines() -> list[str]:
    """The name of each task with the first sentence of its docstring, in the order of the registry."""
    return [_line(name, path) for name, path in TASKS.items()]


def encoding_lines() -> list[str]:
    """The name of each encoding with the first sentence of its docstring, in the order of the registry."""
    return [_line(name, row.path) + f" ({AXES})" * row.axes for name, row in ENCODINGS.items()]


def encoding_page(name: str, kind: type[Any]) -> str:
    """Label, class and options of an encoding, and the text of its file: formula, hooks, shapes, references."""
    row, tree = ENCODINGS[name], _tree(ENCODINGS[name].path)
    options = [f"{one.name}={one.default!r}" for one in inspect.signature(kind).parameters.values()]
    told = "" if row.axes else f"In a config: model.encoding={name}"
    told += f" and model.encoding.options.{options[0].partition('=')[0]}=..." if told and options else ""
    alone = sum(one.path.partition(":")[0] == row.path.partition(":")[0] for one in ENCODINGS.values()) == 1
    # NoPE stands in the file of the interface, whose text is about something else.
    text = ast.get_docstring(tree) if name != "nope" else ""
    about = [] if alone and text else [_docstrings(tree)[row.name].partition("\n\nExample")[0]]
    parts = [f"{row.label}: attnjax.{row.name}({', '.join(options)})", told or f"It is {AXES}.", *about, text]
    return "\n\n".join(part for part in parts if part)


def _line(name: str, path: str) -> str:
    text = _docstrings(_tree(path))[path.partition(":")[2]]
    return f"{name:<30}{_first_sentence(text)}".rstrip()


def _tree(path: str) -> ast.Module:
    """The source of the module of a class, given as "module:Class"."""
    module = path.partition(":")[0]
    return ast.parse(PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8"))


def _docstrings(tree: ast.Module) -> dict[str, str]:
    """The docstring of every class."""
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.ClassDef)}


def _first_sentence(text: str) -> str:
    return SENTENCE.split(" ".join(text.split("\n\n")[0].split()))[0].rstrip(".:")
