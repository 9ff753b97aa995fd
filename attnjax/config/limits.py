"""How much a config may ask for: bounds that are checked by arithmetic, before anything is made that large.

No model or sweep that somebody trains comes near them; what lies beyond is a mistake, which would otherwise show itself
as a machine without memory, or as a command that does not end.
"""

import itertools
import math
from collections.abc import Iterable
from typing import Any

MOST_RUNS = 100_000
"""Runs of a sweep."""
LAYERS = 1_000
"""As in DeepNet (arXiv:2203.00555)."""
DISTINCT = 32
"""Different encodings of one model: layers that differ are traced one by one, in a time that grows with their square."""
WIDTH, HEADS = 2**16, 2**12
HIDDEN = 2**20
LENGTH = 2**20
"""Of a sequence, in the task's own measure."""
LENGTHS = 2_000
"""Different lengths that are tested."""
BATCH = 2**20
EXAMPLES = 2**30
"""That each length is tested on."""
NUMBERS = 2**40
"""Of all parameters together, and of one array of activations."""


def check_product(what: str, **factors: int) -> None:
    """Raise ValueError where the product of the factors, which says how many numbers there would be, is above `NUMBERS`."""
    count = math.prod(factors.values())
    if count > NUMBERS:
        product = " x ".join(f"{name} {value}" for name, value in factors.items())
        raise ValueError(f"{what} would be {count:.2g} numbers, at most {NUMBERS:.2g} are allowed: {product}")


def bounded(entries: Iterable[Any]) -> list[Any]:
    """The entries of a sweep as a list. Raises ValueError where there are more than a sweep may have, perhaps endless."""
    found = list(itertools.islice(entries, MOST_RUNS + 1))
    check_runs(len(found))
    return found


def check_runs(count: int) -> None:
    """Raise ValueError where a sweep would have too many runs."""
    if count > MOST_RUNS:
        raise ValueError(f"a sweep may have at most {MOST_RUNS} runs, and this one has more")
