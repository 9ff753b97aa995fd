"""The table of planted bugs stays true: `python -m tests.planted` itself runs for minutes, and by hand."""

import ast
import pathlib

import pytest

from tests.planted.__main__ import first_failure, planted
from tests.planted.bugs import BUGS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.file)
def test_its_place_is_there_once_and_what_is_planted_is_python(bug):
    ast.parse(planted((ROOT / "attnjax" / bug.file).read_text(encoding="utf-8"), bug))
    assert all((ROOT / "tests" / path).exists() for path in bug.tests)


def test_there_are_twenty_in_as_many_files():
    assert len({bug.file for bug in BUGS}) == len(BUGS) >= 20


def test_a_place_that_is_gone_is_told():
    with pytest.raises(ValueError, match="has the text .* 0 times, and must have it once"):
        planted("", BUGS[0])


def test_the_first_failed_test_is_named(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_right(): pass\ndef test_wrong(): assert 0\n")
    assert first_failure(tmp_path, "test_it.py") == "tests/test_it.py::test_wrong"
    assert first_failure(tmp_path, "test_it.py::test_right") is None
    with pytest.raises(RuntimeError, match="without a failed test"):
        first_failure(tmp_path, "test_it.py::test_absent")
