"""The seconds of test functions, summed over their cases, as `--longest` names them."""

from types import SimpleNamespace

from tests.costs import longest


def report(nodeid, when, duration):
    return SimpleNamespace(nodeid=nodeid, when=when, duration=duration)


def test_cases_setup_and_teardown_of_a_function_are_summed():
    reports = {
        "": [report("a.py::test_one[x]", "setup", 0.5), report("a.py::test_one[x]", "teardown", 0.25)],
        "passed": [report("a.py::test_one[x]", "call", 1.0), report("b.py::test_two", "call", 3.0)],
        "failed": [report("a.py::test_one[y-z]", "call", 2.0)],
        "skipped": [report("c.py::test_three", "setup", 0.125)],
        "warnings": [SimpleNamespace(message="not a report")],
        "deselected": [SimpleNamespace(nodeid="d.py::test_four")],
    }
    assert longest(reports, 2) == [
        "     3.8 s      2 cases  a.py::test_one",
        "     3.0 s      1 cases  b.py::test_two",
    ]
    assert longest(reports, 9)[2:] == ["     0.1 s      0 cases  c.py::test_three"]
    assert longest(reports, 0) == []
