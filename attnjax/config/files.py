"""Reads config files: Python with `get_config()` and perhaps `sweep()`, `tune()` and `tuning_seeds()`, or JSON.

A Python config is code, so a file in a folder of results is never run. JSON is data; its size and depth are checked before
it is parsed.
"""

import ast
import dataclasses
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pathlib
import re
import stat
import types
from collections.abc import Callable, Iterable, Mapping
from traceback import walk_tb
from typing import Any

from attnjax.config.keys import nearest_key
from attnjax.config.limits import bounded
from attnjax.config.names import nearest
from attnjax.config.options import shown
from attnjax.config.parse import plain
from attnjax.config.references import has_references, is_config_dict
from attnjax.folder import FILE_FLAGS

SIZE = 16 * 2**20
SIZE_OF_CODE = 2**20
DEPTH = 40
SWEEP_FILE = "sweep.json"
"""A folder with this file holds results."""


@dataclasses.dataclass(frozen=True)
class ConfigFile:
    """A config file: its settings (not parsed yet), its sweep if it has one, and its docstring.

    `config` is a dict, or a `ConfigDict` if fields are derived from other fields; `override` makes a dict of both.
    `argument` is the word after the colon: "short" for `ruoss:short`. `tune` lists the candidates of tuning, and
    `tuning_seeds` the seeds that these are compared on, see `attnjax.sweep.tuning`.
    """

    path: pathlib.Path
    config: Any
    sweep: Callable[[], Iterable[Mapping[str, Any]]] | None = None
    text: str = ""
    argument: str = ""
    tune: Callable[[], Iterable[Mapping[str, Any]]] | None = None
    tuning_seeds: Callable[[], Iterable[int]] | None = None


def load(name: str | pathlib.Path) -> ConfigFile:
    """The config file at a path, or `configs/NAME.py`. NAME:WORD calls `get_config("WORD")`, `sweep("WORD")` and so on.

    Raises ValueError, with file and line, for a missing file and for every error in it.
    """
    name, _, argument = str(name).partition(":")
    path = find(name)
    if path.suffix == ".py":
        return _load_python(path, argument)
    if argument:
        raise ValueError(f"{path} is data and takes no argument, got {argument[:100]!r}")
    return ConfigFile(path, plain(read_json(path)))


def find(name: str | pathlib.Path) -> pathlib.Path:
    """The path of a config file. Raises ValueError, with the nearest name, where there is none."""
    path = pathlib.Path(name)
    candidates = [path, *(folder / f"{name}.py" for folder in folders())] if path.name == str(name) else [path]
    for candidate in candidates:
        if candidate.suffix in (".py", ".json") and candidate.exists():
            return candidate
    if path.is_file():
        raise ValueError(f"a config must be a .py or .json file, got {shown(str(name))}")
    here = [f"{name}{suffix}" for suffix in (".py", ".json") if os.path.isfile(f"{name}{suffix}")]
    if here:
        raise ValueError(
            f"no config {shown(str(name))} in a folder configs/; a config elsewhere is given by its path, which is {here[0]}"
        )
    known = [one.stem for one in available()]
    raise ValueError(
        f"no config {shown(str(name))}{nearest(path.stem, known)}; there are: {', '.join(known) or 'none'}"
    )


def available() -> list[pathlib.Path]:
    """All config files by name. If two folders have a file of one name, the first folder wins."""
    found: dict[str, pathlib.Path] = {}
    for folder in reversed(folders()):
        found.update({path.stem: path for path in folder.glob("*.py") if not path.stem.startswith("_")})
    return [found[name] for name in sorted(found)]


def folders() -> list[pathlib.Path]:
    """`configs` in the current folder, then the folder of configs that come with the package."""
    return [folder for folder in (pathlib.Path("configs"), shipped()) if folder.is_dir()]


def shipped() -> pathlib.Path:
    """The folder of configs that come with the package: attnjax/configs if installed, configs/ in a checkout."""
    package = pathlib.Path(__file__).resolve().parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def opening(path: pathlib.Path) -> str:
    """The docstring of a Python config, without running it; "" where there is none."""
    return ast.get_docstring(_syntax_tree(path)) or "" if path.suffix == ".py" else ""


def read_json(path: pathlib.Path, limit: int = SIZE) -> Any:
    """The value in a JSON file. Raises ValueError, with its name, if it is missing, too large, too deep or damaged."""
    text = read_text(path, limit)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} is damaged or no JSON: {error}") from None


def parse_json(text: str) -> Any:
    """The value of a JSON text. Raises ValueError if it is nested too deeply, or if a table has a key twice."""
    depth = 0
    for bracket in re.finditer(r'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])', text, re.DOTALL):
        depth += (bracket[1] is not None) - (bracket[2] is not None)
        if depth > DEPTH:
            raise ValueError(f"it is nested more than {DEPTH} deep")
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} stands twice in one table")
    return table


def read_text(path: pathlib.Path, limit: int = SIZE) -> str:
    """The text of a file. Raises ValueError, with its name, if it is missing, too large or not UTF-8."""
    try:
        data = _read(path, limit + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > limit:
        raise ValueError(f"{path} is larger than {limit} bytes")
    return decoded(data, path)


def decoded(data: bytes, path: pathlib.Path) -> str:
    """The bytes of a file as text. Raises ValueError, with its name, if they are not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from None


def _read(path: pathlib.Path, count: int) -> bytes:
    """The first `count` bytes of a regular file; a link is followed. Raises ValueError for a pipe, device or folder."""
    # Opening a pipe without O_NONBLOCK would wait for its other end, and reading a device might never end.
    descriptor = os.open(path, os.O_RDONLY | FILE_FLAGS & ~getattr(os, "O_NOFOLLOW", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path} is no regular file")
    with os.fdopen(descriptor, "rb") as file:
        return file.read(count)


def _syntax_tree(path: pathlib.Path) -> ast.Module:
    text = read_text(path, SIZE_OF_CODE)
    try:
        return ast.parse(text, str(path))
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as Python: {type(error).__name__} {error}") from None


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles the text that is there now. Byte code beside it may be of an older text of the same second and size."""

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_python(path: pathlib.Path, argument: str) -> ConfigFile:
    for folder in path.resolve().parents:
        if (folder / SWEEP_FILE).exists():
            raise ValueError(
                f"{path} lies in a folder of results, {folder}; code found there is not run. Use config.json"
            )
    text = opening(path)
    loader = _SourceLoader(f"attnjax_config_{path.stem}", str(path))
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    _call(path, lambda: loader.exec_module(module))
    make = getattr(module, "get_config", None)
    if not callable(make):
        raise ValueError(f"{path} must define get_config(), which returns a ConfigDict or a dict")
    if argument and not inspect.signature(make).parameters:
        raise ValueError(f"{path}: get_config takes no argument, got {argument[:100]!r}")
    config = _call(path, lambda: _settings(_with(make, argument)))
    sweep, tune, seeds = (_listing(path, module, name, argument) for name in ("sweep", "tune", "tuning_seeds"))
    return ConfigFile(path, config, sweep, text, argument, tune, seeds)


def _listing(path: pathlib.Path, module: types.ModuleType, name: str, argument: str) -> Callable[[], list[Any]] | None:
    """What lists the entries of a function of the config; None where the config does not define it."""
    function = getattr(module, name, None)
    if function is not None and not callable(function):
        raise ValueError(f"{path}: {name} must be a function, got {shown(function)}")
    return function and (lambda: _call(path, lambda: bounded(_with(function, argument))))


def _settings(config: Any) -> Any:
    """The settings as a dict; a `ConfigDict` with references stays one, so that derived fields can follow changes."""
    return config if is_config_dict(config) and has_references(config) else plain(config)


def _with(function: Callable[..., Any], argument: str) -> Any:
    """The result of a function, which gets the argument if there is one and it takes one."""
    return function(argument) if argument and inspect.signature(function).parameters else function()


def _call(path: pathlib.Path, function: Callable[[], Any]) -> Any:
    """The result of code in the config. Its errors, also `sys.exit`, become a ValueError with the line."""
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The import system makes paths absolute.
        lines = [line for frame, line in walk_tb(error.__traceback__) if _file_of(frame) == os.path.abspath(path)]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        message = str(error).strip('"') or type(error).__name__
        # What ml_collections says of an unknown field, with a dump of all of them.
        if missing := re.search(r'Key "(.*?)" does not exist', message):
            near = re.search(r'Did you mean "(.*?)" instead of', message)
            hint = f" (did you mean {near[1]!r}?)" if near else nearest_key(missing[1])
            raise ValueError(f"{where}: unknown key {missing[1]!r}{hint}") from error
        raise ValueError(f"{where}: {type(error).__name__}: {message[:500]}") from error


def _file_of(frame: types.FrameType) -> str:
    return os.path.abspath(frame.f_code.co_filename)
