"""The reference: every public name of every public part of attnjax, with its docstring, whose examples the tests run."""

import importlib
import inspect
import pathlib

from attnjax import registry

PARTS = {
    "attnjax": "attnjax: attention and encodings",
    "attnjax.positions": "attnjax.positions",
    "attnjax.positions.indices": "attnjax.indices",
    "attnjax.modules": "attnjax.modules",
    "attnjax.models": "attnjax.models",
    "attnjax.tasks": "attnjax.tasks",
    "attnjax.config": "attnjax.config",
    "attnjax.sweep": "attnjax.sweep",
    "attnjax.train": "attnjax.train",
    "attnjax.records.examples": "attnjax.records",
    "attnjax.report": "attnjax.report",
    "attnjax.evaluation": "attnjax.evaluation",
    "attnjax.explore": "attnjax.explore",
    "attnjax.aot": "attnjax.aot",
    "attnjax.registry": "attnjax.registry",
    "attnjax.typing": "attnjax.typing",
}
MODULES = {
    "attnjax.evaluation": (
        "loaded_model",
        "heads",
        "counts",
        "extension",
        "methods",
        "suite",
        "text_model",
        "samples",
        "ruler",
        "perplexity",
    ),
}
"""Modules whose public names are those of their part."""
BESIDE = {
    "attnjax.modules": ("generate.Sampling", "generate.sampling"),
    "attnjax.tasks": ("TASKS",),
}
"""What a part shows of its modules beside its own names: docstrings of other pages send readers to it."""
REPEATED = {"attnjax.positions": "attnjax"}
"""Parts that also name what stands on the page of another part, where it stays: two pages for a name make links ambiguous."""
WHERE = {
    "SCHEMA": "attnjax.config.schema",
    "ENCODINGS": "attnjax.positions",
    "ENCODING_NAMES": "attnjax.config.names",
    "TASK_NAMES": "attnjax.config.names",
}
"""Where constants are assigned that their part imports; what is no class or function does not tell."""
TEXT_ALONE = "    options:\n      members: false\n      show_root_heading: false\n      show_root_toc_entry: false\n"
OPTIONS = "    options:\n      heading_level: 2\n      show_root_heading: true\n      show_root_full_path: false\n"


def write(staged: pathlib.Path) -> dict[str, str]:
    """Write a page for each part; returns the titles of the pages by their names."""
    folder = staged / "reference"
    folder.mkdir()
    for part in PARTS:
        text = f"# {part}\n\n::: {part}\n{TEXT_ALONE}"
        for path in names(part).values():
            text += f"\n::: {path}\n{OPTIONS}"
        (folder / f"{part}.md").write_text(text, encoding="utf-8")
    return PARTS


def names(part: str) -> dict[str, str]:
    """The public names of a part, with the path where each is defined; encodings have pages of their own.

    Example:
      >>> names("attnjax")["attend"]
      'attnjax.attention.attend.attend'
    """
    if part in MODULES:
        parts = {module: names(f"{part}.{module}") for module in MODULES[part]}
        return {f"{module}.{name}": path for module, found in parts.items() for name, path in found.items()}
    module = importlib.import_module(part)
    of_part = lambda value: str(getattr(value, "__module__", "")).startswith(part)
    public = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if name[0] != "_" and of_part(value)
    ]
    encodings = {row.name for row in registry.ENCODINGS.values()}
    found = {}
    for name in sorted(public, key=str.lower):
        value = getattr(module, name)
        if name in encodings or inspect.ismodule(value):
            continue
        home = getattr(value, "__module__", None)
        here = inspect.isclass(value) or inspect.isfunction(value)
        if here and not str(home).startswith("attnjax"):  # of another library, and named for convenience
            continue
        found[name] = f"{home}.{value.__qualname__}" if here else f"{WHERE.get(name, part)}.{name}"
    elsewhere = set(names(REPEATED[part]).values()) if part in REPEATED else set()
    found = {name: path for name, path in found.items() if path not in elsewhere}
    return found | {name: f"{part}.{name}" for name in BESIDE.get(part, ())}
