"""The score that is printed for a run is the one of its report."""

import csv
import math
import pathlib
import re

import pytest

from attnjax.cli import main
from attnjax.cli.scores import final_score, score_of
from attnjax.sweep import load

EXPERIMENTS = pathlib.Path(__file__).resolve().parent.parent / "experiments"


@pytest.mark.parametrize("name", ["kazemnejad_whole", "press"])
def test_committed_runs_have_the_scores_of_their_report(name):
    store = load(EXPERIMENTS / name / "records")
    with (EXPERIMENTS / name / "report" / "runs.csv").open(encoding="utf-8") as file:
        rows = {row["run"]: row for row in csv.DictReader(file)}
    assert len(rows) == len(store.runs)
    for run, row in rows.items():
        score = score_of(store.directory(run), store.config(run), store.protocol)
        metric, past = re.fullmatch(r"(\w+) \d\.\d{3} within, (\d\.\d{3}) past", score).groups()
        assert float(past) == pytest.approx(float(row[f"{metric}_past"]), abs=6e-4)


def test_a_list_of_runs_names_positions_that_do_not_count_from_zero(capsys):
    assert main(["list", "runs", str(EXPERIMENTS / "huang_copy" / "records")]) == 0
    told = capsys.readouterr().out
    assert told.count(" policy=offset ") == 6
    assert "arange" not in told


def line(length, value, split="test", step=9, metric="loss"):
    return {"step": step, "split": split, "length": length, "metric": metric, "value": value}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], ""),
        ([line(4, 1.0, "validation")], ""),
        ([line(4, 1.0), line(8, 3.0), line(16, 5.0)], "loss 2.000 within, 5.000 past"),
        ([line(4, 1.0, "train"), line(16, 5.0), line(16, 9.0, "validation")], "loss 1.000 within, 5.000 past"),
        ([line(4, 7.0), line(4, 1.0, "train")], "loss 7.000 within"),
        ([line(16, 7.0, step=3), line(16, 5.0)], "loss 5.000 past"),
        ([line(16, 5.0), line(16, 0.25, metric="exact_match")], "exact_match 0.250 past"),
        ([line(16, None)], "loss nan past"),
        ([{"step": 1}, line("16", 1.0), line(16, "x"), line(True, 1.0), line(16, 1.0) | {"metric": 3}], ""),
    ],
)
def test_means_within_and_past(lines, told):
    assert final_score(lines, trained=8) == told


def test_lengths_below_the_shortest_trained_one_are_not_within():
    lines = [line(4, 0.0, metric="exact_match"), line(8, 1.0, metric="exact_match")]
    assert final_score(lines, 8, shortest=6) == "exact_match 1.000 within"
    assert final_score([line(4, 1.0), line(8, 3.0)], 8, shortest=6) == "loss 2.000 within"


def test_the_metric_is_the_one_of_the_protocol():
    lines = [line(16, 5.0), line(16, 0.25, metric="exact_match")]
    assert final_score(lines, 8, "Why?\n\nPrimary metric: loss") == "loss 5.000 past"
    assert math.isnan(float(final_score([line(16, None), line(32, 1.0)], 8).split()[1]))
