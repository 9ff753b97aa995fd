"""Examples in docstrings give what they say.

Sources are scanned for examples as text, so that collecting these tests imports none of these modules.
"""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
HEAVY = (
    "attnjax.positions.",
    "attnjax.attention.",
    "attnjax.modules.",
    "attnjax.tasks.",
    "attnjax.evaluation.heads",
    "attnjax.evaluation.extension",
    "attnjax.models.completion",
    "attnjax.models.loading",
    "attnjax.models.saving",
    "attnjax.train.check",
    "attnjax.train.loop",
    "attnjax.train.optimizer",
    "scripts.site.encodings",
)
"""Modules whose examples compile for seconds. The functions themselves have quick tests."""
QUICK = ("attnjax.positions.rope", "attnjax.tasks.chomsky", "attnjax.tasks.digits")
"""Those of them whose examples are run in the quick run too."""


def modules_with_examples() -> list:
    """The dotted names of the modules that have an example; those that compile much are slow."""
    files = sorted(path for folder in ("attnjax", "scripts", "experiments") for path in (ROOT / folder).rglob("*.py"))
    found = [path for path in files if ">>> " in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in found]
    slow = lambda name: name.startswith(HEAVY) and name not in QUICK
    return [pytest.param(name, marks=pytest.mark.slow if slow(name) else ()) for name in names]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_say(name):
    module = importlib.import_module(name)
    found = any(one.examples for one in doctest.DocTestFinder().find(module))
    assert found, f"{name} has the prompt of an example in its text, but no example"
    assert doctest.testmod(module, optionflags=OPTIONS).failed == 0, "see the output above"
