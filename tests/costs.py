"""Seconds that test functions took, from the reports of a run of pytest: of all their cases, with setup and teardown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def longest(reports: Mapping[str, Sequence[Any]], count: int) -> list[str]:
    """A line for each of the `count` test functions that took longest: seconds, cases, and where it is."""
    seconds, cases = Counter[str](), Counter[str]()
    for report in (one for group in reports.values() for one in group if hasattr(one, "duration")):
        name = report.nodeid.split("[")[0]
        seconds[name] += report.duration
        cases[name] += report.when == "call"
    return [f"{took:8.1f} s  {cases[name]:5} cases  {name}" for name, took in seconds.most_common(count)]
