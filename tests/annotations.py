"""Checks of jaxtyping annotations, axis sizes included, in every function of a package while the tests run.

    ATTNJAX_CHECK_ANNOTATIONS=1 python -m pytest tests/tasks/test_labels.py tests/train/test_rows.py

It is not the default, because a mistake of a user, which is a ValueError with a sentence, is then a TypeCheckError before the
sentence is reached: tests of such mistakes fail. It costs about a tenth of the time of the tests (63 s instead of 56 s of CPU
time for five files of tests/train and tests/tasks).
"""

import os
import warnings
from collections.abc import Callable
from typing import Any

import beartype
import jaxtyping
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning, BeartypeDecorHintPep673Exception

PACKAGES = ("attnjax.positions", "attnjax.attention", "attnjax.modules", "attnjax.tasks", "attnjax.train")
"""Packages whose annotations are checked where `ATTNJAX_CHECK_ANNOTATIONS` is set."""


def install() -> None:
    """Install the import hook. It must run before the packages are imported."""
    if os.environ.get("ATTNJAX_CHECK_ANNOTATIONS"):
        jaxtyping.install_import_hook(PACKAGES, "tests.annotations.typechecked")


def typechecked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its annotations checked; as it is where it names `Self`, which methods alone cannot know."""
    try:
        with warnings.catch_warnings():
            # It is about what `nnx.List` inherits from.
            warnings.simplefilter("ignore", BeartypeDecorHintPep585DeprecationWarning)
            # An int is a float, as for every type checker.
            return beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))(function)
    except BeartypeDecorHintPep673Exception:
        return function
