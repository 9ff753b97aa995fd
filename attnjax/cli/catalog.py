"""The tasks in words, read from their source, since importing them needs JAX."""

import ast
import pathlib
import re

SENTENCE = re.compile(r"(?<=[^. ])\. (?=[A-Z`])")
"""The end of a sentence, which the dots of 0 .. n and a ... z are not."""

FOLDER = pathlib.Path(__file__).parents[1] / "tasks"


def task_lines(folder: pathlib.Path = FOLDER) -> list[str]:
    """The name of each task with the first sentence of its docstring, in the order of `attnjax.tasks.TASKS`."""
    docstrings: dict[str, str] = {}
    classes: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                docstrings[node.name] = ast.get_docstring(node) or ""
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "TASKS" and node.value is not None:
                classes = _table(node.value)
    return [f"{name:<30}{_first_sentence(docstrings.get(kind, ''))}".rstrip() for name, kind in classes.items()]


def _table(node: ast.expr) -> dict[str, str]:
    """{"copy": "Copy"} for the expression `{"copy": Copy}`."""
    assert isinstance(node, ast.Dict)
    pairs = zip(node.keys, node.values, strict=True)
    return {str(ast.literal_eval(key)): ast.unparse(value) for key, value in pairs if key is not None}


def _first_sentence(text: str) -> str:
    return SENTENCE.split(" ".join(text.split("\n\n")[0].split()))[0].rstrip(".:")
