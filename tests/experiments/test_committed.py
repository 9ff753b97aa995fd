"""The committed pages of experiments are those that their records give, byte for byte."""

import importlib
import pathlib

import pytest

from experiments.study import fill
from tests.cases import slow_except

HERE = pathlib.Path(__file__).parents[2] / "experiments"
NAMES = sorted(path.parent.name for path in HERE.glob("*/analysis.py"))


@pytest.mark.parametrize("name", slow_except(NAMES, "policy_placebo"))
def test_pages_are_filled_from_their_records(name, tmp_path):
    page = tmp_path / "README.md"
    page.write_text((HERE / name / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    fill(page, importlib.import_module(f"experiments.{name}.analysis").tables())
    assert page.read_text(encoding="utf-8") == (HERE / name / "README.md").read_text(encoding="utf-8")
