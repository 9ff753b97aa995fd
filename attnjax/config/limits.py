"""The largest sizes that a config may have, checked by arithmetic before anything of that size is made.

No real model or sweep comes near them. A larger size is a mistake, which would otherwise end in a machine without memory
or in a command that never ends.
"""

import itertools
import math
from collections.abc import Iterable
from typing import Any

MOST_RUNS = 100_000
"""Largest number of runs of a sweep."""
LAYERS = 1_000
"""Largest number of layers, as in DeepNet (arXiv:2203.00555)."""
DISTINCT = 32
"""Largest number of different encodings in one model: such layers are traced one by one, in time quadratic in their number."""
WIDTH, HEADS = 2**16, 2**12
HIDDEN = 2**20
LENGTH = 2**20
"""Largest length of a sequence, as the task counts lengths."""
LENGTHS = 2_000
"""Largest number of lengths that are tested."""
BATCH = 2**20
EXAMPLES = 2**30
"""Largest number of examples that each length is tested on."""
NUMBERS = 2**40
"""Largest number of parameters, and of entries in one array of activations."""


def check_product(what: str, **factors: int) -> None:
    """Raise ValueError if the product of the factors, the number of entries of an array, is above `NUMBERS`."""
    count = math.prod(factors.values())
    if count > NUMBERS:
        product = " x ".join(f"{name} {value}" for name, value in factors.items())
        raise ValueError(f"{what} would be {count:.2g} numbers, at most {NUMBERS:.2g} are allowed: {product}")


def bounded(entries: Iterable[Any]) -> list[Any]:
    """The entries of a sweep as a list. Raises ValueError for more than `MOST_RUNS`, also for an endless iterator."""
    found = list(itertools.islice(entries, MOST_RUNS + 1))
    check_runs(len(found))
    return found


def check_runs(count: int) -> None:
    """Raise ValueError for more runs than a sweep may have."""
    if count > MOST_RUNS:
        raise ValueError(f"a sweep may have at most {MOST_RUNS} runs, and this one has more")
