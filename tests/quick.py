"""Which cases of a parametrized test stay in the quick run: those that its mark `quick` names stand for all of them.

    @pytest.mark.quick("rope", "cope-window")
    @pytest.mark.parametrize(...)

The names are ids as pytest prints them in brackets. All other cases get the mark `slow`. Of the slow cases of one test CI runs
about every fourteenth, at least one; the others get the mark `nightly` too. Of what is slow, one run of CI takes one of several
parts (`--part`).
"""

import re
import zlib
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import pytest

GOLDEN = (5**0.5 - 1) / 2
SHARE = 1 / 14
"""The share of the slow cases of one test that CI runs."""


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


def leave_to_nightly(name: str, cases: Sequence[Any]) -> None:
    """Mark as nightly all but a fourteenth of the slow cases of the test of this name, never all of them.

    Multiples of the golden ratio modulo 1 below a fourteenth choose those that stay. They are spread evenly over every
    parameter, however many values it has: every fourteenth case would have one value alone of a parameter with seven.
    Where they begin depends on the name, so that tests over the same encodings leave different ones to the night.
    """
    slow = [item for item in cases if item.get_closest_marker("slow") and not item.get_closest_marker("nightly")]
    begin = zlib.crc32(name.encode()) / 2**32
    phases = [(begin + i * GOLDEN) % 1 for i in range(len(slow))]
    for item, phase in zip(slow, phases, strict=True):
        if phase >= max(SHARE, min(phases) + 1e-9):
            item.add_marker("nightly")


def part_of(text: str) -> tuple[int, int]:
    """The numbers I and N of `--part I/N`. Raises `pytest.UsageError` unless 1 <= I <= N."""
    found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--part takes I/N with 1 <= I <= N, the I-th of N parts, got {text!r}")
    return int(found[1]), int(found[2])


def in_part(path: PurePath, part: tuple[int, int]) -> bool:
    """Whether the tests of a file are in the I-th of N parts. Files stay whole, since their tests share what they made."""
    return zlib.crc32(path.as_posix().encode()) % part[1] == part[0] - 1
