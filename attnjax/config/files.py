"""Config files: Python with `get_config()` and perhaps `sweep()`, `tune()`, `tuning_seeds()` and `VARIANTS`, or JSON.

A Python config is code, so a file in a folder of results is never run. JSON is data, of bounded size.
"""

import ast
import dataclasses
import inspect
import itertools
import os
import pathlib
import re
import runpy
from collections.abc import Callable, Iterable, Mapping
from traceback import walk_tb
from typing import Any

from attnjax import safety
from attnjax.config.kinds import shown
from attnjax.config.names import nearest
from attnjax.config.overrides import nearest_key
from attnjax.config.parse import derives, is_config_dict, plain

SIZE = 16 * 2**20
SIZE_OF_CODE = 2**20
MOST_RUNS = 100_000
"""Largest number of runs of a sweep."""
SWEEP_FILE = "sweep.json"
"""A folder with this file holds results."""


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """A config file: its settings (not parsed yet), its sweep if it has one, and its protocol.

    `config` is a dict, or a `ConfigDict` if fields are derived from other fields; `override` makes a dict of both.
    `variant` is the word of `VARIANTS` that was chosen, "short" for `ruoss:short`. `tune` lists the candidates of tuning, and
    `tuning_seeds` the seeds that these are compared on, see `attnjax.sweep.tuning`.
    """

    path: pathlib.Path
    config: Any
    text: str = ""
    variant: str = ""
    sweep: Callable[[], Iterable[Mapping[str, Any]]] | None = None
    tune: Callable[[], Iterable[Mapping[str, Any]]] | None = None
    tuning_seeds: Callable[[], Iterable[int]] | None = None


def load(name: str | pathlib.Path) -> ConfigFile:
    """Returns the config file at a path, or `configs/NAME.py`. NAME:VARIANT calls `get_config("VARIANT")` and so on.

    Raises ValueError, with file and line, for a missing file and for every error in it.
    """
    name, _, variant = str(name).partition(":")
    path = find(name)
    if path.suffix == ".py":
        return _load_python(path, variant)
    if variant:
        raise ValueError(f"{path} is data and has no variants, got {variant[:100]!r}")
    text = safety.read_text(path.resolve(), SIZE)
    try:
        return ConfigFile(path, plain(safety.parse_json(text)))
    except ValueError as error:
        raise ValueError(f"{path} is damaged or no JSON: {error}") from None


def find(name: str) -> pathlib.Path:
    """Returns the path of a config file. Raises ValueError, with the nearest name, where there is none."""
    path = pathlib.Path(name)
    candidates = [path, *(folder / f"{name}.py" for folder in folders())] if path.name == name else [path]
    for candidate in candidates:
        if candidate.suffix in (".py", ".json") and candidate.exists():
            return candidate
    known = [one.stem for one in available()]
    raise ValueError(
        f"no config {shown(name)}{nearest(path.stem, known)}; there are: {', '.join(known) or 'none'}, and others are named by "
        "their path, which ends in .py or .json"
    )


def available() -> list[pathlib.Path]:
    """Returns all config files by name. If two folders have a file of one name, the first folder wins."""
    found: dict[str, pathlib.Path] = {}
    for folder in reversed(folders()):
        found.update({path.stem: path for path in folder.glob("*.py") if not path.stem.startswith("_")})
    return [found[name] for name in sorted(found)]


def folders() -> list[pathlib.Path]:
    """Returns `configs` in the current folder, then the folder of configs that come with the package."""
    return [folder for folder in (pathlib.Path("configs"), shipped()) if folder.is_dir()]


def shipped() -> pathlib.Path:
    """Returns the folder of configs that come with the package: attnjax/configs if installed, configs/ in a checkout."""
    package = pathlib.Path(__file__).resolve().parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def opening(path: pathlib.Path) -> tuple[str, dict[str, str]]:
    """Returns the docstring of a Python config and its VARIANTS, a literal that is not run; "" and {} where there is none."""
    if path.suffix != ".py":
        return "", {}
    text = safety.read_text(path.resolve(), SIZE_OF_CODE)
    tree = _call(path, lambda: ast.parse(text, str(path)))
    variants = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VARIANTS":
            variants = _call(path, lambda node=node: dict(ast.literal_eval(node.value)))
    return ast.get_docstring(tree) or "", variants


def protocol(path: pathlib.Path) -> str:
    """Returns the docstring of a Python config, with the list of its variants."""
    text, variants = opening(path)
    rows = [f"    {name:<18}{what}" for name, what in variants.items()]
    return "\n".join([text, "", "Variants:", *rows]).lstrip() if variants else text


def bounded(entries: Iterable[Any]) -> list[Any]:
    """Returns the entries of a sweep as a list. Raises ValueError for more than `MOST_RUNS`, also for an endless iterator."""
    found = list(itertools.islice(entries, MOST_RUNS + 1))
    check_runs(len(found))
    return found


def check_runs(count: int) -> None:
    """Raises ValueError for more runs than a sweep may have."""
    if count > MOST_RUNS:
        raise ValueError(f"a sweep may have at most {MOST_RUNS} runs, and this one has more")


def _load_python(path: pathlib.Path, variant: str) -> ConfigFile:
    for folder in path.resolve().parents:
        if (folder / SWEEP_FILE).exists():
            raise ValueError(
                f"{path} lies in a folder of results, {folder}; code found there is not run. Use config.json"
            )
    variant = _chosen(path, opening(path)[1], variant)
    # Unlike an import, this reads no byte code, which may be of an older text of the same second and size.
    module = _call(path, lambda: runpy.run_path(str(path), run_name=f"attnjax_config_{path.stem}"))
    if "get_config" not in module:
        raise ValueError(f"{path} must define get_config(), which returns a ConfigDict or a dict")

    def called(name: str) -> Any:
        """The result of a function of the config, which gets the variant if it takes an argument."""
        function = module[name]
        return function(variant) if inspect.signature(function).parameters else function()

    def listed(name: str) -> Callable[[], list[Any]] | None:
        return (lambda: _call(path, lambda: bounded(called(name)))) if name in module else None

    config = _call(path, lambda: called("get_config"))
    if not (is_config_dict(config) and derives(config)):
        config = plain(config)
    return ConfigFile(path, config, protocol(path), variant, listed("sweep"), listed("tune"), listed("tuning_seeds"))


def _chosen(path: pathlib.Path, variants: dict[str, str], word: str) -> str:
    """The variant of a config that a word names; without a word the first, "" where there are none."""
    if not word:
        return next(iter(variants), "")
    if word not in variants:
        known = f"one of {', '.join(variants)}" if variants else "no variant, because it has no VARIANTS"
        raise ValueError(f"{path.stem} takes {known}, got {word[:100]!r}{nearest(word, variants)}")
    return word


def _call(path: pathlib.Path, function: Callable[[], Any]) -> Any:
    """The result of code in the config. Its errors, also `sys.exit`, become a ValueError with the line."""
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        here = os.path.abspath(path)
        frames = walk_tb(error.__traceback__)
        lines = [line for frame, line in frames if os.path.abspath(frame.f_code.co_filename) == here]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        message = str(error).strip('"') or type(error).__name__
        # ml_collections answers an unknown field with a dump of all of them.
        if missing := re.search(r'Key "(.*?)" does not exist', message):
            raise ValueError(f"{where}: unknown key {missing[1]!r}{nearest_key(missing[1])}") from error
        raise ValueError(f"{where}: {type(error).__name__}: {message[:500]}") from error
