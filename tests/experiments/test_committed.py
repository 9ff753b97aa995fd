"""The committed pages and tables of experiments are those that their records give, byte for byte."""

import importlib
import pathlib

import pytest

from experiments.study import fill
from tests.cases import slow_except

HERE = pathlib.Path(__file__).parents[2] / "experiments"


def module(name: str):
    return importlib.import_module(f"experiments.{name}")


def published():
    return module("published.page").files(module("published.collecting").collect(HERE))


RENDERED = {
    "published": published,
}


@pytest.mark.parametrize("name", slow_except(RENDERED, *(name for name in RENDERED if name != "published")))
def test_the_committed_pages_are_those_of_the_records(name):
    rendered = RENDERED[name]()
    assert rendered
    assert [file for file, text in rendered.items() if (HERE / name / file).read_text(encoding="utf-8") != text] == []


@pytest.mark.parametrize("name", slow_except(sorted(path.parent.name for path in HERE.glob("*/analysis.py"))))
def test_pages_are_filled_from_their_records(name, tmp_path):
    page = tmp_path / "README.md"
    page.write_text((HERE / name / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    fill(page, module(f"{name}.analysis").tables())
    assert page.read_text(encoding="utf-8") == (HERE / name / "README.md").read_text(encoding="utf-8")
