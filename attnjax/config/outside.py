"""Encodings, tasks, optimizers and schedules of other projects: a config names them `package.module:Name`.

Importing a module runs its code, so only the user's own words cause an import: the command line, or a Python config, which
is code itself. The commands that train import the modules that these name (`import_modules`). Functions that read a folder
of records only use modules that are already imported (`lookup`), so that a folder never causes code to run. To look at
runs with an encoding of your own, import its module first.
"""

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from attnjax.config.names import is_class_path
from attnjax.config.schema import RunConfig
from attnjax.registry import nearest

Base = TypeVar("Base")


def class_paths(configs: Iterable[RunConfig]) -> tuple[str, ...]:
    """Returns every `package.module:Name` that the configs contain, each once, in order."""
    found: dict[str, None] = {}
    for one in configs:
        names = (one.task.name, *(each.name for each in one.model.encodings), one.optimizer.name, one.train.schedule)
        found |= dict.fromkeys(name for name in names if is_class_path(name))
    return tuple(found)


def import_modules(paths: Iterable[str]) -> None:
    """Imports the module of each `package.module:Name`. Raises ValueError where that fails."""
    for path in paths:
        try:
            importlib.import_module(path.partition(":")[0])
        except Exception as error:
            raise ValueError(
                f"{path} cannot be imported: {type(error).__name__}: {str(error)[:300]} (a package must be installed, or its "
                "folder be in PYTHONPATH)"
            ) from error


def lookup(path: str) -> Any:
    """Returns the object `package.module:Name`, None if the module has no such name.

    Raises ValueError if the module is not imported.
    """
    module, _, name = path.partition(":")
    loaded = sys.modules.get(module)
    if loaded is None:
        raise ValueError(
            f"{path} belongs to a module that is not imported, and reading records imports nothing: import {module} first, if "
            f"you trust it (on the command line: --import {module})"
        )
    # Not by getattr: a module with a function `__getattr__` may import others when it is asked for a name.
    return vars(loaded).get(name)


def construct(path: str, base: type[Base], options: Mapping[str, Any]) -> Base:
    """Returns an object of the class `package.module:Class`, made with these options.

    Raises ValueError where its module is not imported, has no such subclass of `base`, or the class refuses the options.
    """
    kind = lookup(path)
    if kind is None:
        module, _, name = path.partition(":")
        raise ValueError(f"{path}: the module {module} has no {name}{nearest(name, vars(sys.modules[module]))}")
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise ValueError(f"{path} is no subclass of attnjax's {base.__name__}")
    try:
        return kind(**options)
    except TypeError as error:
        given = f" ({', '.join(options)})" if options else ""
        hint = "; options stay where a name is exchanged, and `options={}` beside it drops them" if options else ""
        raise ValueError(f"{path} cannot be made with its options{given}: {error}{hint}") from error
