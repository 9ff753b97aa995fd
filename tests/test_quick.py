"""The mark `quick`, on this test itself: two of its cases are quick, and the third is slow."""

import pytest

from tests.quick import leave_to_ci


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
