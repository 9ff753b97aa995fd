"""Every public class and function of the folder has an example, and all examples run."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import attnjax.positions as positions

MODULES = ["", *(f".{module.name}" for module in pkgutil.iter_modules(positions.__path__))]


def public(module):
    members = vars(module).items()
    own = [value for name, value in members if name[0] != "_" and getattr(value, "__module__", "") == module.__name__]
    return [value for value in own if inspect.isclass(value) or inspect.isroutine(inspect.unwrap(value))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(f"attnjax.positions{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_an_example(name):
    module = importlib.import_module(f"attnjax.positions{name}")
    assert [value.__name__ for value in public(module) if ">>>" not in (value.__doc__ or "")] == []
