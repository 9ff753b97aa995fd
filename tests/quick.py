"""Which cases of a parametrized test stay in the quick run: those that its mark `quick` names stand for all of them.

    @pytest.mark.quick("rope", "cope-window")
    @pytest.mark.parametrize(...)

The names are ids as pytest prints them in brackets. All other cases get the mark `slow` and are run by CI.
"""

from collections.abc import Sequence
from typing import Any

import pytest


def leave_to_ci(name: str, cases: Sequence[Any]) -> None:
    """Mark as slow every case of the test of this name that its mark `quick` leaves out, where it has that mark."""
    quick = {case for item in cases for mark in item.iter_markers("quick") for case in mark.args}
    if not quick:
        return
    ids = {item.callspec.id for item in cases}
    if absent := quick - ids:
        raise pytest.UsageError(f"the mark quick of {name} names what is no case of it: {', '.join(sorted(absent))}")
    for item in cases:
        if item.callspec.id not in quick:
            item.add_marker("slow")
