"""The marks of cases: which are quick, on a test of this file itself, and which slow ones are left to the nightly run."""

import pytest

from tests.quick import leave_to_ci, leave_to_nightly


@pytest.mark.quick("one", "two")
@pytest.mark.parametrize("name", ["one", "two", "three"])
def test_cases_that_are_not_named_are_slow(name, request):
    assert bool(request.node.get_closest_marker("slow")) == (name == "three")


@pytest.mark.parametrize("name", ["one", "two"])
def test_without_the_mark_all_cases_are_quick(name, request):
    assert not request.node.get_closest_marker("slow")


@pytest.mark.parametrize("name", ["here"])
def test_a_name_of_no_case_is_a_mistake(name, request):
    request.node.add_marker(pytest.mark.quick("here", "mistyped"))
    with pytest.raises(pytest.UsageError, match="names what is no case of it: mistyped"):
        leave_to_ci("test", [request.node])


class Case:
    def __init__(self, *marks):
        self.marks = set(marks)

    def get_closest_marker(self, name):
        return name if name in self.marks else None

    def add_marker(self, name):
        self.marks.add(name)


def test_a_tenth_of_the_slow_cases_stays_and_the_first_is_among_them():
    # Multiples of 0.618 modulo 1: 0, 0.618, 0.236, 0.854, 0.472, 0.090, 0.708, 0.326, 0.944, 0.562, 0.180, 0.798, 0.416, 0.034.
    cases = [Case("slow") for _ in range(14)]
    leave_to_nightly([Case(), Case("slow", "nightly"), *cases])
    assert [i for i, case in enumerate(cases) if "nightly" not in case.marks] == [0, 5, 13]
    alone, quick = Case("slow"), Case()
    leave_to_nightly([alone])
    leave_to_nightly([quick, quick])
    assert (alone.marks, quick.marks) == ({"slow"}, set())
