"""The classes of mutations, and one drawn and done: `mutate(draw, root, canary, classes)` says in words what it did."""

import json
import pathlib
import random
from collections.abc import Callable, Sequence

from tests.fuzz import damage, forgery, places, tree, values

Draw = random.Random
Path = pathlib.Path
RUNS = ("bytes", "lines", "json", "files", "links", "pipes", "permissions", "huge", "forged")
# Checkpoints of the first format say neither whose they are nor of which step: one put in place of another is believed.
FIRST_FORMAT = tuple(name for name in RUNS if name != "files")
MODELS = ("bytes", "json", "files", "links", "pipes", "permissions", "huge")
CONFIGS = ("bytes", "json", "json", "json")
TRIES = 20
LARGE = 2**24
"""What is larger than this was made so by another mutation, and would take long to change again."""


def mutate(draw: Draw, root: Path, canary: Path, classes: Sequence[str]) -> tuple[str, str]:
    """The class of what was done to the folder, and what that was; ("none", "") where nothing applies."""
    for _ in range(TRIES):
        name = draw.choice(classes)
        what = _one(draw, name, root, canary)
        if what:
            return name, what
    return "none", ""


def _one(draw: Draw, name: str, root: Path, canary: Path) -> str:
    if name == "forged":
        return draw.choice(forgery.FORGERIES)(draw, root, canary)
    if name in ("bytes", "huge"):
        change = damage.grow if name == "huge" else draw.choice(damage.BYTES)
        return _on(root, tree.pick(draw, root, "f"), lambda path: change(draw, path))
    if name == "lines":
        return _on(root, tree.pick(draw, root, "f", ".jsonl"), lambda path: draw.choice(damage.LINES)(draw, path))
    if name == "json":
        return _on(root, tree.pick(draw, root, "f", ".json"), lambda path: _json(draw, path))
    changes = {"files": places.FILES, "links": places.LINKS, "pipes": (places.pipe,), "permissions": (places.forbid,)}
    change = draw.choice(changes[name])
    return _on(root, tree.pick(draw, root), lambda path: change(draw, root, path, canary))


def _on(root: Path, path: Path | None, change: Callable[[Path], str]) -> str:
    """A change of one entry, with its name; "" where it does not apply, or an earlier mutation stands in its way."""
    if path is None or path.lstat().st_size > LARGE:
        return ""
    try:
        what = change(path)
    except OSError:
        return ""
    return f"{path.relative_to(root)} {what}" if what else ""


def _json(draw: Draw, path: Path) -> str:
    try:
        table = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return ""
    what, text = values.change(draw, table)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return what
