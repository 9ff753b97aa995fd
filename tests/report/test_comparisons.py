"""What is compared with what: pairs of seeds, tables of examples, and nothing that did not fit its task."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from attnjax.report import intervals
from attnjax.report.comparisons import pairs_of
from attnjax.report.csv_tables import csv_files
from attnjax.report.examples import table
from attnjax.report.markdown_tables import ranking, table_md
from attnjax.report.records import Sweep
from attnjax.report.significance import holm
from attnjax.report.summarise import summarise
from attnjax.report.summary import Summary
from tests.report.synthetic import EXAMPLES, rows_of, with_examples


def test_differences_are_of_runs_that_share_their_seeds(make: Callable[..., Sweep]):
    """Seeds 0 to 6 of one encoding, 1 to 7 of the other, in another order: six pairs."""
    rope = {seed: 2.0 + 0.3 * seed for seed in range(7)}
    alibi = {seed: 1.9 + 0.3 * seed + 0.01 * seed**2 for seed in reversed(range(1, 8))}
    runs = [(name, seed, {40: loss}) for name, of in (("rope", rope), ("alibi", alibi)) for seed, loss in of.items()]
    (found,) = summarise(make(*runs, metric="loss")).tasks[0].differences
    by_hand = np.array([rope[seed] - alibi[seed] for seed in range(1, 7)])
    theirs = stats.ttest_rel([rope[seed] for seed in range(1, 7)], [alibi[seed] for seed in range(1, 7)])
    low, high = theirs.confidence_interval(0.95)
    np.testing.assert_allclose([found.mean.value, found.mean.low, found.mean.high], [by_hand.mean(), low, high])
    assert (found.mean.kind, found.mean.runs, found.examples) == ("95 %", 6, 0)
    flips = stats.permutation_test((by_hand,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert found.p == found.holm == pytest.approx(flips.pvalue)


def test_holm_is_over_all_pairs_of_a_task(make: Callable[..., Sweep]):
    step = {"rope": 0.0, "alibi": 0.2, "t5": 0.25}
    runs = [(n, seed, {40: 2.0 + s + 0.1 * np.sin(7 * seed + 9 * s)}) for n, s in step.items() for seed in range(6)]
    task = summarise(make(*runs, metric="loss")).tasks[0]
    assert len(task.differences) == 3
    assert [item.holm for item in task.differences] == holm([item.p for item in task.differences])
    pairs = [(0, 1), (0, 2), (1, 2)]
    assert [task.improvement[pair].holm for pair in pairs] == holm([task.improvement[pair].p for pair in pairs])


def test_few_runs_have_a_range_and_an_exact_p(make: Callable[..., Sweep]):
    runs = [(name, seed, {40: 2.0 + step + 0.1 * seed}) for name, step in (("rope", 0), ("t5", 1)) for seed in range(3)]
    files = csv_files(summarise(make(*runs, metric="loss")))
    (pair,) = rows_of(files["paired.csv"])
    assert (pair["pairs"], pair["mean_difference"], pair["mean_difference_interval"]) == ("3", "-1", "range")
    assert (pair["p"], pair["p_holm"]) == ("0.25", "0.25")
    improved = rows_of(files["improvement.csv"])
    assert set(improved[0]) == {"task", "metric", "variant", "beats", "probability", "p", "p_holm"}
    assert [(row["probability"], row["p"]) for row in improved] == [("1", "0.1"), ("0", "0.1")]
    assert {row["median_past_interval"] for row in rows_of(files["table.csv"])} == {"range"}


def test_nothing_is_said_of_pairs_of_which_a_score_is_lost(make: Callable[..., Sweep]):
    runs = [("rope", seed, {40: 2.0}) for seed in range(3)] + [("t5", seed, {20: 1.0}) for seed in range(3)]
    assert summarise(make(*runs, metric="loss")).tasks[0].differences == ()


def test_a_failed_run_does_not_make_the_correction_of_others_milder(make: Callable[..., Sweep]):
    """Of three pairs of variants, two have a run with an infinite loss: they have no difference, and stay among the tests."""
    runs = [(n, seed, {40: 2.0 + s + 0.01 * seed}) for n, s in (("rope", 0.0), ("alibi", 0.5)) for seed in range(6)]
    runs += [("t5", seed, {40: 3.0 if seed else float("nan")}) for seed in range(6)]
    summary = summarise(make(*runs, metric="loss"))
    task = summary.tasks[0]
    kept = [item for item in task.differences if np.isfinite(item.mean.value)]
    assert (len(task.differences), len(kept)) == (3, 1)
    assert kept[0].holm == pytest.approx(3 * kept[0].p) == pytest.approx(3 * 2 / 64)
    assert [(item.p, item.holm) for item in task.differences if item not in kept] == [(1, 1), (1, 1)]
    assert "2 pairs with failed runs have no difference, and count as p = 1." in table_md(summary)


def test_runs_whose_seeds_are_unknown_are_no_pairs(make: Callable[..., Sweep]):
    runs = [(name, seed, {40: 2.0 + seed}) for name in ("rope", "t5") for seed in range(3)]
    sweep = make(*runs, metric="loss")
    lost = lambda run: dataclasses.replace(run, config={**run.config, "seed": None, "data_seed": None})
    first, second = (row.scored for row in summarise(sweep).tasks[0].rows["loss"])
    assert len(pairs_of(first, second)) == 3
    first, second = (
        dataclasses.replace(one, runs=tuple(run if run.config["seed"] else lost(run) for run in one.runs))
        for one in (first, second)
    )
    assert len(pairs_of(first, second)) == 2


def fitted_and_not(make: Callable[..., Sweep]) -> Summary:
    """RoPE fits in two of three runs, T5 in one, ALiBi in all; T5 has the best score past training."""
    fits = {"rope": (1.0, 0.99, 0.5), "t5": (1.0, 0.5, 0.5), "alibi": (1.0, 1.0, 1.0)}
    past = {"rope": 0.4, "t5": 0.9, "alibi": 0.2}
    runs = [(n, seed, {20: fit, 40: past[n] + 0.01 * seed}) for n, of in fits.items() for seed, fit in enumerate(of)]
    return summarise(make(*runs))


def test_what_did_not_fit_is_neither_ranked_nor_compared(make: Callable[..., Sweep]):
    summary = fitted_and_not(make)
    (task,) = summary.tasks
    labels = [variant.label for variant in task.panel.variants]
    assert [labels[place] for place in ranking(task)] == ["RoPE", "ALiBi", "T5 bias"]
    assert [task.label(place) for place in ranking(task)][-1] == "T5 bias (not fitted)"
    assert {labels[i] for pair in task.improvement for i in pair} == {"RoPE", "ALiBi"}
    assert {labels[i] for item in task.differences for i in (item.first, item.second)} == {"RoPE", "ALiBi"}
    assert "| *T5 bias (not fitted)* |" in table_md(summary)
    assert any(
        note.startswith("Not fitted, and so greyed, not ranked and not compared: T5 bias on copy.")
        for note in summary.notes
    )
    told = {row["variant"]: row["not_fitted"] for row in rows_of(csv_files(summary)["table.csv"])}
    assert told == {"RoPE": "", "ALiBi": "", "T5 bias": "yes"}


def test_runs_that_answer_exactly_the_share_that_fits_have_fitted(make: Callable[..., Sweep]):
    """The mean of 0.99 three times over is 0.9899999999999999."""
    inside = {5: 0.99, 10: 0.99, 20: 0.99}
    assert np.mean(list(inside.values())) < 0.99
    task = summarise(make(*[(n, seed, {**inside, 40: 0.5}) for n in ("rope", "t5") for seed in range(6)])).tasks[0]
    assert [(one.fit, one.unfitted) for one in task.counts] == [(6, False)] * 2
    assert len(task.differences) == 1


@pytest.mark.parametrize("names", [("rope", "t5"), ("t5", "rope")])
def test_as_many_right_answers_are_the_same_score_in_whatever_order(make: Callable[..., Sweep], names: tuple[str, str]):
    """Means of the same five shares, summed in two orders, differ by 1e-16 in each of six pairs of runs."""
    orders = (0.99, 0.99, 0.98, 0.99, 0.99), (0.99, 0.99, 0.99, 0.99, 0.98)
    shares = dict(zip(names, orders, strict=True))
    assert np.mean(shares["rope"]) != np.mean(shares["t5"])
    past = {name: dict(zip((40, 60, 80, 120, 160), of, strict=True)) for name, of in shares.items()}
    task = summarise(make(*[(n, seed, {20: 1.0, **past[n]}) for n in past for seed in range(6)])).tasks[0]
    assert [one.p for one in task.differences] == [1.0]
    assert {(one.probability, one.p) for one in task.improvement.values()} == {(0.5, 1.0)}
    assert ranking(task) == [0, 1], "tied, so in the order of the task"


def test_a_text_has_no_notion_of_fit(make: Callable[..., Sweep]):
    runs = [(name, seed, {20: 3.0, 40: 5.0}) for name in ("rope", "t5") for seed in range(3)]
    (task,) = summarise(make(*runs, task="text", metric="loss_sliding")).tasks
    assert task.unfitted == frozenset()
    assert len(task.differences) == 1


def test_reach_is_in_the_tables_of_runs_and_of_variants(make: Callable[..., Sweep]):
    curves = [{20: 1.0, 40: 0.95, 80: 0.2}, {20: 1.0, 40: 0.5, 80: 0.2}, {20: 1.0, 40: 0.9, 80: 0.9}]
    files = csv_files(summarise(make(*[("rope", seed, values) for seed, values in enumerate(curves)])))
    runs = {row["seed"]: row for row in rows_of(files["runs.csv"])}
    assert [runs[seed]["length_factor"] for seed in "012"] == ["2", "1", "4"]
    area = [(0.5 * (v[20] + v[40]) + 0.5 * (v[40] + v[80])) / 2 for v in curves]
    assert [float(runs[seed]["area_over_log_length"]) for seed in "012"] == pytest.approx(area)
    (row,) = rows_of(files["table.csv"])
    assert [row[f"length_factor{end}"] for end in ("", "_low", "_high", "_interval")] == ["2", "1", "4", "range"]
    assert float(row["area_over_log_length"]) == pytest.approx(sorted(area)[1])
    assert row["reach_metric"] == "exact_match"


def test_scores_of_examples_are_in_the_intervals(make: Callable[..., Sweep]):
    """Six seeds, 40 windows with much in common: the interval over both, of a cell and of a difference."""
    generator = np.random.default_rng(0)
    windows = generator.normal(2, 0.5, EXAMPLES)
    tables = {name: windows + generator.normal(step, 0.05, (6, EXAMPLES)) for name, step in (("rope", 0), ("t5", 0.1))}
    runs = [(name, seed, {20: 2.0, 40: 2.0}) for name in tables for seed in range(6)]
    summary = summarise(with_examples(make(*runs, task="markov", metric="loss_sliding"), tables))
    (task,) = summary.tasks
    for row, name in zip(task.rows["loss_sliding"], ("rope", "t5"), strict=True):
        assert row.over_examples is not None
        expected = intervals.of_runs_and_examples(tables[name])
        assert expected is not None
        assert dataclasses.astuple(row.over_examples)[:3] == pytest.approx(dataclasses.astuple(expected)[:3])
        assert row.past is not None
        assert row.over_examples.high - row.over_examples.low > 5 * (row.past.high - row.past.low)
    assert "mean, 95 % interval over runs and examples" in table_md(summary)
    lengths = {(row["variant"], row["length"]): row for row in rows_of(csv_files(summary)["lengths.csv"])}
    assert lengths["RoPE", "20"]["mean_over_examples"] == "", "no scores of examples were stored at 20"
    assert float(lengths["RoPE", "40"]["mean_over_examples"]) == pytest.approx(tables["rope"].mean())
    assert lengths["RoPE", "40"]["mean_over_examples_interval"] == "95 %"
    (found,) = task.differences
    expected = intervals.of_runs_and_examples(tables["rope"] - tables["t5"])
    assert expected is not None
    assert found.examples == EXAMPLES
    assert found.mean.value == pytest.approx(expected.value)
    assert (found.mean.low, found.mean.high) == pytest.approx((expected.low, expected.high))
    assert found.mean.high < 0, "what windows have in common is not in the difference"


def test_runs_without_scores_of_examples_have_intervals_over_runs_alone(make: Callable[..., Sweep]):
    tables = {"rope": np.random.default_rng(0).normal(2, 0.5, (6, EXAMPLES))}
    sweep = with_examples(make(*[("rope", seed, {40: 2.0}) for seed in range(6)], metric="loss_sliding"), tables)
    sweep = dataclasses.replace(sweep, runs=(dataclasses.replace(sweep.runs[0], examples=None), *sweep.runs[1:]))
    (row,) = summarise(sweep).tasks[0].rows["loss_sliding"]
    assert row.over_examples is None
    assert row.past is not None
    assert row.past.kind == "95 %"
    assert table(sweep.runs, (40,), "loss_sliding") is None
    assert table(sweep.runs[1:], (40,), "loss_sliding") is not None
