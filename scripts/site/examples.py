"""An extension of Griffe, which reads docstrings for the site: what our docstrings write shorter than Griffe expects."""

import re
from typing import Any

import griffe

TOGETHER = re.compile(
    r"^(?P<space> +)(?P<first>\w+)(?P<others>(?:, \w+)+): (?P<text>.*(?:\n(?P=space) +.*)*\n?)", re.MULTILINE
)


def apart(docstring: str) -> str:
    r"""Return a docstring in which each argument has a line, so that its type and default are found.

    Example:
      >>> apart("Args:\n  q, k: projections.\n")
      'Args:\n  q: projections.\n  k: see `q`.\n'
    """
    start = re.search(r"^ *(Args|Attributes):\n", docstring, re.MULTILINE)
    if start is None:
        return docstring

    def lines(match: re.Match[str]) -> str:
        space, first, text = match["space"], match["first"], match["text"].rstrip("\n")
        others = [f"{space}{name}: see `{first}`." for name in match["others"].removeprefix(", ").split(", ")]
        return "\n".join([f"{space}{first}: {text}", *others]) + "\n"

    return docstring[: start.end()] + TOGETHER.sub(lines, docstring[start.end() :])


class Examples(griffe.Extension):
    """Reads a section "Example:" as "Examples:", so that its code is shown as code, and parts arguments described together."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            text = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = apart(text)
