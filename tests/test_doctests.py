"""Examples in docstrings are run, and every public name of the modules and of the published models has one.

Sources are scanned for examples as text, so that collecting these tests imports none of these modules.
"""

import doctest
import importlib
import inspect
import pkgutil
import types
from pathlib import Path

import pytest

from tests.cases import slow_except

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    "positions",
    "attention",
    "modules",
    "models",
    "tasks",
    "records",
    "train",
    "cli",
    "sweep",
    "report",
    "config",
    "evaluation",
    "explore",
)
FOLDERS = (ROOT / "scripts", ROOT / "experiments")
"""What is not in the package, but has examples too."""
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


QUICK = ("attnjax.positions.rope", "attnjax.modules.block")
"""Of the parts whose examples compile most, the modules whose examples are run in the quick run too."""


def modules_with_examples() -> list[str]:
    """The dotted names of the modules that have an example."""
    files = sorted((ROOT / "attnjax").glob("*.py"))
    for folder in (*(ROOT / "attnjax" / part for part in PARTS), *FOLDERS):
        files += sorted(folder.rglob("*.py"))
    found = [path for path in files if ">>> " in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in found]


def compiles_much(name: str) -> bool:
    """Whether examples of a module take seconds. The functions themselves have quick tests."""
    heavy = (
        "attnjax.positions.",
        "attnjax.attention.",
        "attnjax.modules.",
        "attnjax.evaluation.heads",
        "attnjax.models.completion",
        "attnjax.models.loading",
        "attnjax.tasks.forms",
        "attnjax.tasks.recall",
        "attnjax.tasks.state_tracking",
        "attnjax.train.check",
        "attnjax.train.loop",
        "attnjax.train.optimizer",
        "scripts.site.encodings",
    )
    return name.startswith(heavy) and name not in QUICK


NAMES = modules_with_examples()


@pytest.mark.parametrize("name", slow_except(NAMES, *(name for name in NAMES if not compiles_much(name))))
def test_examples_give_what_they_say(name):
    module = importlib.import_module(name)
    found = any(one.examples for one in doctest.DocTestFinder().find(module))
    assert found, f"{name} has the prompt of an example in its text, but no example"
    assert doctest.testmod(module, optionflags=OPTIONS).failed == 0, "see the output above"


def public_members(module: types.ModuleType) -> list[str]:
    """The public classes and functions that a module defines itself."""
    own = {name: one for name, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__}
    callable_ones = {
        name: one for name, one in own.items() if inspect.isclass(one) or inspect.isroutine(inspect.unwrap(one))
    }
    return [name for name in callable_ones if not name.startswith("_")]


def without_example(module: types.ModuleType) -> list[str]:
    """The public classes and functions of a module that have no example in their own docstring.

    Public is what `__all__` lists; without such a list, what the module defines itself.
    """
    public = {name: getattr(module, name) for name in getattr(module, "__all__", public_members(module))}
    parser = doctest.DocTestParser()
    return [name for name, one in public.items() if callable(one) and not parser.get_examples(one.__doc__ or "")]


def test_no_part_of_the_package_is_left_out():
    parts = {path.parent.name for path in (ROOT / "attnjax").glob("*/__init__.py")}
    assert parts == set(PARTS)


POSITIONS = [f"attnjax.positions.{module.name}" for module in pkgutil.iter_modules([ROOT / "attnjax" / "positions"])]


@pytest.mark.parametrize(
    "name", ["attnjax.modules", "attnjax.models", "attnjax.train", "attnjax.positions", *POSITIONS]
)
def test_every_public_name_has_an_example(name):
    assert without_example(importlib.import_module(name)) == []


def test_a_wrong_example_and_a_missing_one_are_noticed():
    module = types.ModuleType("made", ">>> 1 + 1\n3\n")
    module.silent, module.__all__ = lambda: None, ["silent"]
    assert tuple(doctest.testmod(module, report=False)) == (1, 1)
    assert without_example(module) == ["silent"]
