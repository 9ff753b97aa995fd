"""The experiment on heads: rows to statements by hand, and one tiny run from training to files."""

import pathlib
import shutil

import numpy as np
import pytest
from scipy import stats

from attnjax.config import load
from attnjax.report.drawing import settings
from attnjax.report.formatting import interval
from attnjax.sweep import plan, prepare, run_here
from attnjax.train import train
from experiments.head_specialization import measure, picture, summary

COMMITTED = pathlib.Path(__file__).parents[2] / "experiments" / "head_specialization" / "results"
CODE = "def add(first, second):\n    return [first, (second + first)]\n\n\n"


def row(encoding: str, seed: int, best: float, stage: str = "trained", pattern: str = "induction", stand_out: int = 1):
    """A line of patterns.jsonl."""
    labels = {"run": f"{encoding}{seed}", "encoding": encoding, "seed": seed, "stage": stage, "pattern": pattern}
    beside = {"kind": "content", "baseline": 0.2, "offset": 3, "chance": 0.05, "rows": 9, "documents": 3, "heads": 8}
    return {**labels, "best_head": best, "stand_out": stand_out, **beside}


@pytest.fixture
def results() -> measure.Results:
    """Two encodings, three seeds each, before and after training."""
    found = [row("rope", seed, best) for seed, best in enumerate((0.5, 0.6, 0.7))]
    found += [row("alibi", seed, best, stand_out=2) for seed, best in enumerate((0.1, 0.2, 0.3))]
    found += [row(name, seed, 0.04, "untrained", stand_out=0) for name in ("rope", "alibi") for seed in range(3)]
    about = {"windows": 7, "length": 128, "files": 5, "source": "the standard library", "python": "3.11.7"}
    return measure.Results([], found, about)


def test_a_cell_is_the_mean_of_its_seeds(results):
    found = summary.cell(results, "induction", "rope")
    assert found.best == (0.5, 0.6, 0.7)
    assert (found.estimate.value, found.estimate.low, found.estimate.high) == pytest.approx((0.6, 0.5, 0.7))
    assert found.estimate.kind == "range"
    assert (found.stand_out, found.heads) == (3, 24)
    assert summary.cell(results, "induction", "t5").estimate is None


def test_the_table_says_it(results):
    text = summary.table(results)
    assert "| pattern | best offset | chance | RoPE | ALiBi |" in text
    assert "| induction | 0.20 | 0.05 | 0.60 (range 0.50 to 0.70) | 0.20 (range 0.10 to 0.30) |" in text
    assert "| induction | 3 of 24 (0) | 6 of 24 (0) |" in text
    assert "7 windows of 128 bytes from 5 held-out files of the standard library (Python 3.11.7)" in text


def test_the_claim_names_both_ends(results):
    expected = (
        "* **induction**: heads stand out under RoPE (3 of 24), ALiBi (6 of 24). Best head: from RoPE 0.60 (range 0.50 to "
        "0.70) down to ALiBi 0.20 (range 0.10 to 0.30) (best offset 0.20, chance 0.05).\n"
    )
    assert summary.claim(results) == expected
    nothing = results._replace(patterns=[{**one, "stand_out": 0} for one in results.patterns])
    assert "no head stands out" in summary.claim(nothing)


def test_the_comparison_of_the_protocol_by_hand(results):
    """RoPE above NoPE in each of six pairs, and 0.1, 0.1, -0.1 and 0.4 from ALiBi: p = 2 / 64, times 2, and 8 / 16."""
    best = {
        "rope": (0.5, 0.6, 0.7, 0.6, 0.5, 0.6),
        "nope": (0.1, 0.1, 0.2, 0.3, 0.3, 0.1),
        "alibi": (0.4, 0.5, 0.8, 0.2),
    }
    rows = [row(name, k, one, pattern="previous_token") for name, of in best.items() for k, one in enumerate(of)]
    rows += [row("nope", k, 0.9, "untrained", "previous_token") for k in range(6)]
    # Pairs are those of equal seeds, in whatever order the rows are.
    found = summary.differences(results._replace(patterns=[*results.patterns, *reversed(rows)]))
    assert [(name, p) for name, _, p in found] == [("nope", 4 / 64), ("alibi", 8 / 16)]
    by_hand = stats.ttest_rel(best["rope"], best["nope"]).confidence_interval()
    nope, alibi = (one for _, one, _ in found)
    assert (nope.low, nope.high) == pytest.approx((by_hand.low, by_hand.high))
    assert (alibi.kind, alibi.value) == ("range", pytest.approx(0.125))
    said = summary.claim(results._replace(patterns=rows))
    assert (
        f"RoPE less, by seed: NoPE {interval(nope, 2)} (p = 0.062), ALiBi 0.12 (range -0.10 to 0.40) (p = 0.500);"
        in said
    )
    assert "p of all sign flips, with Holm's correction over 2.\n" in said


def test_the_committed_statements_are_made_anew_from_the_records(tmp_path):
    found = measure.read(COMMITTED)
    assert summary.table(found) == (COMMITTED / "table.md").read_text()
    assert summary.claim(found) == (COMMITTED / "claim.md").read_text()
    measure.write(found, tmp_path)
    assert measure.read(tmp_path) == found


def test_records_that_are_damaged_or_missing_are_refused(tmp_path):
    shutil.copytree(COMMITTED, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "patterns.jsonl"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(ValueError, match="patterns.jsonl is damaged"):
        measure.read(tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="patterns.jsonl is missing or empty$"):
        measure.read(tmp_path)


def test_the_figure_has_a_panel_per_pattern(results):
    more = [row("rope", 0, 0.9, pattern="bracket")]
    with settings():
        figure = picture.draw(results._replace(patterns=[*results.patterns, *more]))
    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_visible()]
    assert titles == ["induction", "bracket match", ""]
    points = [
        line.get_ydata() for line in figure.axes[0].lines if line.get_marker() == "o" and len(line.get_ydata()) == 3
    ]
    assert [0.5, 0.6, 0.7] in [list(values) for values in points]


def test_the_sweep_is_of_six_encodings_and_eight_seeds():
    file = load("heads_lm")
    runs = [one.config for one in plan(file.config, file.sweep())]
    assert len(runs) == 48
    assert {run.seed for run in runs} == set(range(8))
    assert all(run.model.embed_scale for run in runs)
    assert len({run.model.encoding.name for run in runs}) == 6


@pytest.mark.slow
def test_from_training_to_files(tmp_path):
    """A run of two steps, measured: every number is there, and what is written is what is read."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(60):
        (text / f"f{number}.py").write_text(f"x = {number}\n" + CODE * 3)
    config = {
        "name": "tiny",
        "task": {"name": "text", "options": {"path": str(text)}, "length_min": 64, "length_max": 64},
        "model": {"layers": 1, "model": 16, "heads": 2, "hidden": 16, "encoding": {"name": "t5"}},
        "train": {"steps": 2, "batch": 2, "log_every": 0, "checkpoint_every": 0},
        "evaluate": {"lengths": [], "validation_lengths": []},
    }
    store = prepare(tmp_path / "runs", "tiny", plan(config))
    run_here(store, train)
    found = measure.measure(tmp_path / "runs", files=3, per_file=2)
    assert found.protocol["windows"] >= found.protocol["files"] >= 2
    names = ["previous_token", "first_token", "same_token", "induction", "bracket", "name"]
    assert [one["pattern"] for one in found.patterns] == 2 * names
    assert len(found.heads) == 2 * 6 * 2
    for one in found.heads:
        assert 0 <= one["low"] <= one["score"] <= one["high"] <= 1
    assert {one["kind"] for one in found.patterns if "_token" in one["pattern"]} == {"offset", "content"}
    out = tmp_path / "out"
    measure.write(found, out)
    assert measure.read(out) == found
    paths = picture.write(found, out / "figure")
    assert all(path.stat().st_size > 1000 for path in paths)
    assert "previous byte" in summary.table(found)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no run that is done"):
        measure.measure(tmp_path)


def test_numbers_of_json():
    assert measure.number(np.nan) is None
    assert measure.number(np.float64(1 / 3)) == 0.333333333
