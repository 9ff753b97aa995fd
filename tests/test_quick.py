"""The marks of cases: which are quick, on a test of this file itself, and which slow ones are left to the nightly run."""

from pathlib import Path, PurePath

import pytest

from tests.quick import in_part, leave_to_ci, leave_to_nightly, part_of


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


def kept(name, count):
    cases = [Case("slow") for _ in range(count)]
    leave_to_nightly(name, [Case(), Case("slow", "nightly"), *cases])
    return [i for i, case in enumerate(cases) if "nightly" not in case.marks]


def test_a_fourteenth_of_the_slow_cases_stays_and_which_depends_on_the_test():
    # crc32(b"a") = 0xe8b7be43, 0.909 of 2^32; with multiples of 0.618 modulo 1: 0.909, 0.527, 0.145, 0.763, 0.381, 0.9993,
    # 0.617, 0.235, 0.853, 0.471, 0.089, 0.707, 0.325, 0.943.
    # None is below 1/14, so the smallest stays.
    assert kept("a", 14) == [10]
    for count in (20, 100, 1000):
        assert count / 28 <= len(kept("a", count)) <= count * 3 / 28
    assert len({tuple(kept(name, 30)) for name in "abcdefgh"}) > 4


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_one_slow_case_stays_at_least(name):
    assert [len(kept(name, count)) for count in (0, 1, 2)] == [0, 1, 1]
    quick = Case()
    leave_to_nightly(name, [quick, quick])
    assert quick.marks == set()


def test_every_file_is_in_one_part():
    # crc32(b"a") = 3,904,355,907: its digits sum up to 45, so that 3 divides it.
    assert in_part(PurePath("a"), part_of("1/3"))
    tests = Path(__file__).parent
    files = [path.relative_to(tests.parent) for path in tests.rglob("test_*.py")]
    parts = [{path for path in files if in_part(path, (number, 3))} for number in (1, 2, 3)]
    assert set.union(*parts) == set(files)
    assert sum(map(len, parts)) == len(files)
    assert all(len(files) / 4 < len(part) < len(files) / 2.4 for part in parts)


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "-1/3", "a/b", "1/3/5", ""])
def test_what_names_no_part_is_refused(text):
    with pytest.raises(pytest.UsageError, match="I/N with 1 <= I <= N, the I-th of N parts, got "):
        part_of(text)
