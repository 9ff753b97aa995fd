"""The table of planted bugs stays true: `python -m tests.planted` itself runs for minutes, and by hand."""

import ast
import pathlib

import pytest

from tests.planted.__main__ import caught, first_failure, planted
from tests.planted.bugs import BUGS, Bug

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.file)
def test_its_place_is_there_once_and_what_is_planted_is_python(bug):
    ast.parse(planted((ROOT / "attnjax" / bug.file).read_text(encoding="utf-8"), bug))
    assert all((ROOT / "tests" / path).exists() for path in bug.tests)


def test_they_are_in_twenty_files():
    assert len({bug.file for bug in BUGS}) >= 20


def test_a_place_that_is_gone_is_told():
    with pytest.raises(ValueError, match="has the text .* 0 times, and must have it once"):
        planted("", BUGS[0])


@pytest.mark.slow
def test_the_first_failed_test_is_named(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_right(): pass\ndef test_wrong(): assert 0\n")
    assert first_failure(tmp_path, "tests/test_it.py") == "tests/test_it.py::test_wrong"
    assert first_failure(tmp_path, "tests/test_it.py::test_right") is None
    with pytest.raises(RuntimeError, match="without a failed test"):
        first_failure(tmp_path, "tests/test_it.py::test_absent")


@pytest.mark.slow
def test_a_bug_is_caught_only_by_a_test_that_passes_without_it(tmp_path):
    (tmp_path / "attnjax").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "attnjax" / "one.py").write_text("ONE = 1\n")
    test = 'import pathlib\ndef test_it(): assert "ONE = {}" in pathlib.Path("attnjax/one.py").read_text()\n'
    for number, name in ((1, "test_one.py"), (2, "test_two.py"), (3, "test_three.py")):
        (tmp_path / "tests" / name).write_text(test.format(number))
    bug = Bug("one.py", "ONE = 1", "ONE = 2", "a number", ())
    assert caught(tmp_path, bug, ["test_two.py"]) is None
    assert caught(tmp_path, bug, ["test_two.py", "test_one.py"]) == "tests/test_one.py::test_it"
    with pytest.raises(RuntimeError, match="fails without the bug in one.py too"):
        caught(tmp_path, bug, ["test_three.py"])
