"""The committed scores of heads: table and claim are what the rows say, and every run of the config has all its rows."""

import collections
import pathlib
import re

import pytest

from attnjax.config import load, run_id
from attnjax.sweep import plan
from experiments.head_specialization import measure, picture, summary

pytestmark = pytest.mark.slow
RESULTS = pathlib.Path(__file__).parents[2] / "experiments" / "head_specialization" / "results"


def test_table_and_claim_are_made_anew_from_the_rows():
    results = measure.read(RESULTS)
    assert summary.table(results) == (RESULTS / "table.md").read_text(encoding="utf-8")
    assert summary.claim(results) == (RESULTS / "claim.md").read_text(encoding="utf-8")


def test_the_figure_is_made_anew_from_the_rows(tmp_path):
    picture.write(measure.read(RESULTS), tmp_path / "figure")
    made = sorted(tmp_path.iterdir())
    assert [path.name for path in made] == ["figure.png", "figure.svg"]
    assert [path.name for path in made if path.read_bytes() != (RESULTS / path.name).read_bytes()] == []


def test_every_planned_run_is_there_before_and_after_training():
    results = measure.read(RESULTS)
    file = load("heads_lm")
    planned = {run_id(one.config) for one in plan(file.config, file.sweep())}
    assert len(planned) == 48
    reported = {name for name, _ in summary.TITLES}
    rows = collections.Counter((row["run"], row["stage"]) for row in results.patterns if row["pattern"] in reported)
    assert rows == {(run, stage): len(summary.TITLES) for run in planned for stage in ("trained", "untrained")}
    heads = collections.Counter((row["run"], row["pattern"], row["stage"]) for row in results.heads)
    assert set(heads.values()) == {8}
    assert len(heads) == len(results.patterns)


def test_white_space_is_not_reported():
    results = measure.read(RESULTS)
    assert "white space" not in (RESULTS / "table.md").read_text(encoding="utf-8")
    assert not set(measure.LEFT_OUT) & {name for name, _ in summary.patterns(results)}


def test_no_row_names_a_place_of_the_machine():
    assert not [path for path in RESULTS.glob("*.*l*") if re.search(r"/(home|root|Users)/", path.read_text("utf-8"))]
