"""From records to scores: which runs count, as what, over which lengths, and how far they reach."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attnjax.records.stored import read
from attnjax.report.metrics import metric
from attnjax.report.notes import notes
from attnjax.report.scores import length_factor
from attnjax.report.tables import Summary, summarise
from tests.report.synthetic import canonical, config, lines, run_id, write_run, write_spec, write_sweep

Values = dict[int, float]


def results(fields: dict[str, Any], key: str, values: Values, step: int = 400, split: str | None = None) -> str:
    """results.jsonl with these values by length."""
    row = {"run": run_id(fields), "step": step, "metric": key, "count": 512}
    at = lambda n: split or ("train" if n <= fields["task"]["length_max"] else "test")
    return lines([row | {"length": n, "value": v, "split": at(n)} for n, v in values.items()])


@pytest.fixture
def make_of(tmp_path: Path) -> Callable[..., Summary]:
    """A summary of runs given as (encoding, state, {length: value}), one seed after the other."""

    def build(*runs: tuple[str, str, Values], key: str = "exact_match", protocol: str = "") -> Summary:
        configs = [config("copy", name, seed) for seed, (name, _, _) in enumerate(runs)]
        write_spec(tmp_path, configs, protocol=protocol)
        for fields, (_, state, values) in zip(configs, runs, strict=True):
            if state != "absent":
                write_run(tmp_path, fields, state, results=results(fields, key, values))
        return summarise(read(tmp_path))

    return build


def first(summary: Summary) -> pd.Series:
    return summary.answer.iloc[0]


def test_scores_past_and_within_training(make_of):
    """Trained to 20: the score past training is the mean over 40 and 80, the one within it over 10 and 20."""
    summary = make_of(*[("rope", "done", {10: 1.0, 20: 0.5 + x, 40: x, 80: x / 2}) for x in (0.2, 0.4, 0.0, 0.1)])
    row, scored = first(summary), summary.tasks[0].scores[0]
    assert sorted(scored.runs.past) == pytest.approx([0.0, 0.075, 0.15, 0.3])
    assert row.past == pytest.approx((0.075 + 0.15) / 2), "the median of four"
    assert (row.past_low, row.past_high, row.past_kind) == (0.0, pytest.approx(0.3), "range")
    assert row.within == pytest.approx((0.8 + 0.85) / 2)
    assert scored.beyond == (40, 80)
    assert list(scored.curve) == [10, 20, 40, 80]


def test_a_failed_run_counts_with_nothing_right(make_of):
    summary = make_of(
        ("rope", "done", {20: 1.0, 40: 0.8}), ("rope", "failed", {40: 0.9}), ("rope", "done", {20: 1.0, 40: 0.7})
    )
    row = first(summary)
    assert row.past == pytest.approx(0.7), "the median of 0, 0.7 and 0.8"
    assert (row.planned, row.done, row.failed, row.fitted, row.unfitted) == (3, 2, 1, 2, False)
    assert any(note.startswith("Failed: 1 of 3") for note in notes(summary))


@pytest.mark.parametrize("state", ["running", "preempted", "pending", "absent"])
def test_an_unfinished_run_is_in_no_statistic(make_of, state: str):
    summary = make_of(("rope", "done", {40: 0.8}), ("rope", state, {40: 0.1}))
    assert first(summary).past == pytest.approx(0.8)
    assert (first(summary).planned, first(summary).done) == (2, 1)
    note = notes(summary)[0]
    assert note.startswith("Not complete: 1 of 2 runs are done")
    assert f"1 {state}" in note


def test_a_value_that_is_not_finite_is_the_worst(tmp_path: Path):
    fields = config("copy", "rope", 0)
    text = results(fields, "loss", {20: 1.0, 40: 7.0}).replace("7.0", "null")
    write_run(tmp_path, fields, results=text + results(fields, "exact_match", {40: 0.25}).replace("0.25", "NaN"))
    found = {one.metric.key: one.runs.past.tolist() for one in summarise(read(tmp_path)).tasks[0].scores}
    assert found == {"exact_match": [0.0], "loss": [np.inf]}


def test_a_lost_record_leaves_the_run_out_of_what_needs_it(make_of):
    summary = make_of(("rope", "done", {20: 1.0, 40: 0.8, 80: 0.2}), ("rope", "done", {20: 0.9, 80: 0.6}))
    assert first(summary).past == pytest.approx(0.5), "only the first run has both lengths past training"
    assert first(summary).within == pytest.approx(0.95)
    assert summary.lengths.runs.tolist() == [2, 1, 2]
    assert any("Some lengths are missing" in note for note in notes(summary))


def test_validation_examples_are_in_no_score(tmp_path: Path):
    fields = config("copy", "rope", 0)
    text = results(fields, "exact_match", {20: 1.0, 40: 0.5})
    write_run(tmp_path, fields, results=text + results(fields, "exact_match", {30: 0.0, 40: 0.9}, split="validation"))
    summary = summarise(read(tmp_path))
    assert first(summary).past == 0.5
    assert summary.lengths.length.tolist() == [20, 40]


def test_the_last_evaluation_counts_and_of_a_length_the_last_record(tmp_path: Path):
    fields = config("copy", "rope", 0)
    text = results(fields, "exact_match", {40: 0.9}, step=100) + results(fields, "exact_match", {40: 0.2})
    write_run(tmp_path, fields, results=text + results(fields, "exact_match", {40: 0.3}))
    assert first(summarise(read(tmp_path))).past == pytest.approx(0.3)


def test_runs_tested_within_training_only_have_no_score_past_it(make_of):
    """Also the failed ones: without lengths past training there is nothing that they could have failed at."""
    summary = make_of(
        ("rope", "done", {10: 1.0, 20: 0.8}), ("rope", "failed", {}), ("alibi", "done", {10: 1.0, 20: 1.0})
    )
    rows = summary.answer.set_index("variant")
    assert rows.past.isna().all()
    assert rows.within["RoPE"] == pytest.approx(0.45)
    assert summary.differences.empty


@pytest.mark.parametrize(("name", "key", "within"), [("copy", "exact_match", 1.0), ("markov", "loss_sliding", 0.6)])
def test_lengths_below_the_shortest_trained_one_are_within_for_windows_of_text(tmp_path: Path, name, key, within):
    fields = config(name, "rope", 0)
    fields["task"]["length_min"] = 10
    write_run(tmp_path, fields, results=results(fields, key, {5: 0.2, 20: 1.0, 40: 0.5}))
    assert first(summarise(read(tmp_path))).within == pytest.approx(within)


def test_the_protocol_may_name_the_primary_metric(tmp_path: Path):
    write_sweep(tmp_path, ("copy",), ("rope",), 1)
    assert summarise(read(tmp_path)).tasks[0].metric.key == "exact_match"
    write_spec(tmp_path, [config("copy", "rope", 0)], protocol="Primary metric: token_accuracy, loss_sliding")
    summary = summarise(read(tmp_path))
    assert [one.metric.key for one in summary.tasks[0].scores] == [
        "token_accuracy",
        "exact_match",
        "exact_match_oracle_length",
    ]
    assert "The protocol names a metric that no run measured: loss_sliding." in notes(summary)


def test_nothing_measured_yet_is_a_clear_error(make_of):
    with pytest.raises(ValueError, match=r"has measured anything at a test length yet: .* is running"):
        make_of(("rope", "running", {}))


def set_manifest(root: Path, of: Callable[[Any], dict[str, Any]]) -> Summary:
    """The summary after each run has the manifest that `of` returns for it."""
    for run in read(root).runs:
        (root / run.id / "result" / "manifest.json").write_text(canonical({"schema": 1, **of(run)}))
    return summarise(read(root))


def test_what_guessing_scores_comes_from_the_manifests(make_of, tmp_path: Path):
    make_of(("rope", "done", {20: 1.0, 40: 0.55, 80: 0.45}))
    levels = {str(n): {"exact": level, "token": 0.5} for n, level in ((20, 0.3), (40, 0.2), (80, 0.1))}
    assert set_manifest(tmp_path, lambda _: {"chance": levels}).tasks[0].levels == (
        {"guessing": {20: 0.3, 40: 0.2, 80: 0.1}},
    )
    del levels["80"]
    assert set_manifest(tmp_path, lambda _: {"chance": levels}).tasks[0].levels == ({},), (
        "one of the lengths is lacking"
    )


def test_a_run_fits_markov_chains_when_it_comes_near_the_best_prediction(make, tmp_path: Path):
    """The counts of pairs in the window cost 2.4 nats at 20 symbols, the longest training length."""
    runs = [("rope", seed, {20: loss, 40: 2.5}) for seed, loss in enumerate((2.41, 2.44, 2.46))]
    make(*runs, ("nope", 0, {20: 2.6, 40: 2.6}), task="markov", metric="loss_sliding")
    rows = summarise(read(tmp_path)).answer
    assert rows.fitted.isna().all(), "nothing says what is best"
    level = {"loss_sliding": {"unigram": 3.0, "bigram": 2.4}}
    task = set_manifest(tmp_path, lambda _: {"baselines": {"20": level, "40": level}}).tasks[0]
    rows = task.answer.set_index("variant")
    assert (rows.fitted["RoPE"], rows.fitted["NoPE"]) == (2, 0)
    assert task.unfitted == {"NoPE"}
    assert task.levels[0] == {"unigram model": {20: 3.0, 40: 3.0}, "best possible": {20: 2.4, 40: 2.4}}


def test_variants_on_other_windows_have_no_baseline_in_common(make, tmp_path: Path):
    """The best prediction has 1.93 on the windows of one variant and 2 on those of the other: one fits near its own."""
    best = {"rope": 1.93, "t5": 2.0}
    make(*[(n, s, {20: best[n] + 0.01, 40: 2.1}) for n in best for s in range(3)], task="markov", metric="loss_sliding")

    def tell(levels: dict[str, float]) -> Summary:
        level = lambda run: {"loss_sliding": {"bigram": levels[run.config["model"]["encoding"]["name"]]}}
        return set_manifest(tmp_path, lambda run: {"baselines": {"20": level(run), "40": level(run)}})

    apart, alike = tell(best), tell({"rope": 1.99, "t5": 1.99 + 1e-6})
    assert apart.tasks[0].levels == ({},)
    assert any("tested on different windows" in one for one in notes(apart))
    assert alike.tasks[0].levels[0]["best possible"] == pytest.approx({20: 1.99, 40: 1.99})
    assert not any("different windows" in one for one in notes(alike))


def test_runs_that_were_resumed_under_other_conditions_are_told(make_of, tmp_path: Path):
    """A manifest is a file that anybody may have written: what is no text is passed over."""
    changes = [["population"], ["population", "threads"], [], "population", ["<b>", 3, ["threads"]], None]
    make_of(*[("rope", "done", {20: 1.0, 80: 0.5})] * len(changes))
    seeds = lambda run: {"changed_on_resume": changes[run.config["seed"]]}
    (note,) = [note for note in notes(set_manifest(tmp_path, seeds)) if note.startswith("Resumed")]
    assert note.startswith("Resumed under other conditions: 3 of 6 runs (<b>: 1, population: 2, threads: 1).")


def test_an_early_end_is_an_end_and_its_learning_curve_goes_on(make_of, tmp_path: Path):
    from attnjax.report.scores import learning

    make_of(("rope", "done", {40: 1.0}), ("rope", "done", {40: 0.5}))
    for run in read(tmp_path).runs:
        last = 40 if run.config["seed"] == 0 else 80
        rows = [{"step": step, "loss": 80.0 - step} for step in range(20, last + 1, 20)]
        (tmp_path / run.id / "result" / "metrics.jsonl").write_text(lines(rows))
    summary = set_manifest(tmp_path, lambda run: {"stopped_at": 40} if run.config["seed"] == 0 else {})
    assert first(summary).done == 2
    assert any(
        note.startswith("Ended when they had fitted their task (train.until): 1 of 2 runs") for note in notes(summary)
    )
    assert sorted(summary.runs.remark) == ["", "fitted at step 40 of 400"]
    table = learning(summary.tasks[0].panel.variants[0])
    assert table.mean().to_dict() == {20: 60.0, 40: 40.0, 60: 30.0, 80: 20.0}


@pytest.mark.parametrize(
    ("key", "values", "factor"),
    [
        ("exact_match", [1.0, 0.95, 0.9, 0.89, 1.0], 2.0),
        ("exact_match", [0.89, 1, 1, 1, 1], 0.0),
        ("exact_match", [1.0, 1, 1, 1, 1], 8.0),
        ("exact_match", [0.9, 0, 0, 0, 0], 1.0),
        ("loss_sliding", [2.0, 1.9, 2.05, 2.051, 2.0], 2.0),
        ("loss_sliding", [2.0, 2.04, 2.0, 2.04, 2.04], 8.0),
        ("loss_sliding", [np.inf] * 5, 0.0),
        ("loss_sliding", [2.0, 2.0, np.inf, 2.0, 2.0], 1.5),
        ("exact_match", [1.0, np.nan, 1, 1, 1], np.nan),
    ],
)
def test_length_factor(key: str, values: list[float], factor: float):
    curve = pd.DataFrame([[9.0, *values]], columns=[10, 20, 30, 40, 80, 160])
    np.testing.assert_equal(length_factor(curve, 20, metric(key)).item(), factor)


def test_the_length_factor_is_in_the_answer(make_of):
    curves = [{20: 1.0, 40: 0.95, 80: 0.2}, {20: 1.0, 40: 0.5, 80: 0.2}, {20: 1.0, 40: 0.9, 80: 0.9}]
    row = first(make_of(*[("rope", "done", values) for values in curves]))
    assert (row.factor, row.factor_low, row.factor_high, row.factor_kind) == (2.0, 1.0, 4.0, "range")
