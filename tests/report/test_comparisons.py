"""What is compared with what: pairs of seeds, the same examples, and nothing that did not fit its task."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnjax.records.examples import Examples
from attnjax.records.typed import Sweep
from attnjax.report import intervals
from attnjax.report.comparisons import Difference
from attnjax.report.notes import notes
from attnjax.report.tables import summarise
from tests.report.synthetic import EXAMPLES, with_examples


def compared(sweep: Sweep) -> tuple[Difference, ...]:
    return summarise(sweep).tasks[0].compared


def is_t5(run: Any) -> bool:
    return run.config["model"]["encoding"]["name"] == "t5"


def changed(sweep: Sweep, change: Any) -> Sweep:
    """The sweep with fields of each run replaced by what `change` returns for it."""
    return dataclasses.replace(sweep, runs=tuple(dataclasses.replace(run, **change(run)) for run in sweep.runs))


def test_differences_are_of_runs_that_share_their_seeds(make):
    """Seeds 0 to 6 of one encoding, 1 to 7 of the other, in another order: six pairs."""
    rope = {seed: 2.0 + 0.3 * seed for seed in range(7)}
    alibi = {seed: 1.9 + 0.3 * seed + 0.01 * seed**2 for seed in reversed(range(1, 8))}
    runs = [(name, seed, {40: loss}) for name, of in (("rope", rope), ("alibi", alibi)) for seed, loss in of.items()]
    (found,) = compared(make(*runs, metric="loss"))
    by_hand = np.array([rope[seed] - alibi[seed] for seed in range(1, 7)])
    theirs = stats.ttest_rel([rope[seed] for seed in range(1, 7)], [alibi[seed] for seed in range(1, 7)])
    low, high = theirs.confidence_interval(0.95)
    np.testing.assert_allclose([found.mean.value, found.mean.low, found.mean.high], [by_hand.mean(), low, high])
    np.testing.assert_allclose([x for _, _, x in found.pairs], by_hand)
    assert (found.mean.kind, len(found.pairs), found.examples) == ("95 %", 6, 0)
    flips = stats.permutation_test((by_hand,), np.sum, permutation_type="samples", n_resamples=np.inf)
    assert found.p == found.holm == pytest.approx(flips.pvalue)


def test_few_runs_have_a_range_and_an_exact_p(make):
    runs = [(name, seed, {40: 2.0 + step + 0.1 * seed}) for name, step in (("rope", 0), ("t5", 1)) for seed in range(3)]
    (row,) = summarise(make(*runs, metric="loss")).differences.itertuples()
    assert (row.first, row.second, row.pairs, row.mean_kind) == ("RoPE", "T5 bias", 3, "range")
    assert (row.mean, row.p, row.p_holm) == (pytest.approx(-1), 0.25, 0.25)


def test_runs_without_two_common_seeds_are_not_compared(make):
    runs = [(name, seed + 2 * (name == "t5"), {40: 2.0 + seed / 9}) for name in ("rope", "t5") for seed in range(3)]
    assert compared(make(*runs, metric="loss")) == ()


def test_a_failed_run_does_not_make_the_correction_of_others_milder(make):
    """Of three pairs of variants, two have a run with an infinite loss: they have no difference, and stay among the tests."""
    runs = [(n, seed, {40: 2.0 + s + 0.01 * seed}) for n, s in (("rope", 0.0), ("alibi", 0.5)) for seed in range(6)]
    runs += [("t5", seed, {40: 3.0 if seed else float("nan")}) for seed in range(6)]
    found = compared(make(*runs, metric="loss"))
    kept = [item for item in found if np.isfinite(item.mean.value)]
    assert (len(found), len(kept)) == (3, 1)
    assert kept[0].holm == pytest.approx(3 * kept[0].p) == pytest.approx(3 * 2 / 64)
    assert [(item.p, item.holm) for item in found if item not in kept] == [(1, 1), (1, 1)]


def test_runs_whose_seeds_are_unknown_are_no_pairs(make):
    sweep = make(*[(name, seed, {40: 2.0 + seed}) for name in ("rope", "t5") for seed in range(3)], metric="loss")
    lost = changed(sweep, lambda run: {"config": run.config if run.config["seed"] else {**run.config, "seed": None}})
    assert (len(compared(sweep)[0].pairs), len(compared(lost)[0].pairs)) == (3, 2)


def test_what_did_not_fit_is_neither_ranked_nor_compared(make):
    """RoPE fits in two of three runs, T5 in one, ALiBi in all; T5 has the best score past training."""
    fits = {"rope": (1.0, 0.99, 0.5), "t5": (1.0, 0.5, 0.5), "alibi": (1.0, 1.0, 1.0)}
    past = {"rope": 0.4, "t5": 0.9, "alibi": 0.2}
    runs = [(n, seed, {20: fit, 40: past[n] + 0.01 * seed}) for n, of in fits.items() for seed, fit in enumerate(of)]
    summary = summarise(make(*runs))
    (task,) = summary.tasks
    assert [variant.label for variant in task.ranked] == ["RoPE", "ALiBi", "T5 bias"]
    assert task.unfitted == {"T5 bias"}
    assert [(item.first.label, item.second.label) for item in task.compared] == [("RoPE", "ALiBi")]
    assert any(
        note.startswith("Not fitted, and so greyed, not ranked and not compared: T5 bias") for note in notes(summary)
    )


def test_runs_that_answer_exactly_the_share_that_fits_have_fitted(make):
    """The mean of 0.99 three times over is 0.9899999999999999."""
    inside = {5: 0.99, 10: 0.99, 20: 0.99}
    assert np.mean(list(inside.values())) < 0.99
    task = summarise(make(*[(n, seed, {**inside, 40: 0.5}) for n in ("rope", "t5") for seed in range(6)])).tasks[0]
    assert task.answer.fitted.tolist() == [6, 6]


@pytest.mark.parametrize("names", [("rope", "t5"), ("t5", "rope")])
def test_as_many_right_answers_are_the_same_score_in_whatever_order(make, names: tuple[str, str]):
    """Means of the same five shares, summed in two orders, differ by 1e-16 in each of six pairs of runs."""
    orders = (0.99, 0.99, 0.98, 0.99, 0.99), (0.99, 0.99, 0.99, 0.99, 0.98)
    shares = dict(zip(names, orders, strict=True))
    assert np.mean(shares["rope"]) != np.mean(shares["t5"])
    past = {name: dict(zip((40, 60, 80, 120, 160), of, strict=True)) for name, of in shares.items()}
    task = summarise(make(*[(n, seed, {20: 1.0, **past[n]}) for n in past for seed in range(6)])).tasks[0]
    assert [one.p for one in task.compared] == [1.0]
    assert [variant.label for variant in task.ranked] == ["RoPE", "T5 bias"], "tied, so in the order of the task"


def paired(make, tables: dict[str, np.ndarray], task: str, documents: np.ndarray | None = None) -> Sweep:
    runs = [(name, seed, {20: 2.0, 40: 2.0}) for name in tables for seed in range(6)]
    return with_examples(make(*runs, task=task, metric="loss_sliding"), tables, documents=documents)


def test_scores_of_examples_are_in_the_intervals(make):
    """Six seeds, 40 windows with much in common: the interval of a difference is over both."""
    generator = np.random.default_rng(0)
    windows = generator.normal(2, 0.5, EXAMPLES)
    tables = {name: windows + generator.normal(step, 0.05, (6, EXAMPLES)) for name, step in (("rope", 0), ("t5", 0.1))}
    (found,) = compared(paired(make, tables, "markov"))
    expected = intervals.of_runs_and_examples(tables["rope"] - tables["t5"])
    assert expected is not None
    assert (found.examples, found.documents) == (EXAMPLES, 0)
    assert (found.mean.value, found.mean.low, found.mean.high) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )
    assert found.mean.high < 0, "what windows have in common is not in the difference"


DOCUMENTS = np.repeat(np.arange(8.0), 5)


def test_windows_of_one_document_are_not_independent(make):
    """Forty windows of eight documents, which differ: the interval is over documents, as of a mean over each by hand."""
    generator = np.random.default_rng(1)
    tables = {name: generator.normal(step, 0.05, (6, EXAMPLES)) for name, step in (("rope", 0), ("t5", 0.1))}
    tables["rope"] += generator.normal(2, 0.5, 8)[DOCUMENTS.astype(int)]
    sweep = paired(make, tables, "text", DOCUMENTS)
    (found,) = compared(sweep)
    expected = intervals.of_runs_and_examples((tables["rope"] - tables["t5"]).reshape(6, 8, 5).mean(2))
    assert expected is not None
    assert (found.examples, found.documents) == (EXAMPLES, 8)
    assert (found.mean.low, found.mean.high) == pytest.approx((expected.low, expected.high))
    (few,) = compared(with_examples(sweep, tables, documents=np.minimum(DOCUMENTS, 4)))
    assert few.examples == 0, "five documents have no interval"


def test_windows_of_unknown_files_may_all_be_of_one(make):
    """Records of text of an earlier version have no files, and those of another text have other files."""
    tables = {name: np.random.default_rng(1).normal(2, 0.5, (6, EXAMPLES)) for name in ("rope", "t5")}
    sweep = paired(make, tables, "text", DOCUMENTS)
    for other in (with_examples(sweep, tables), with_examples(sweep, tables, documents=DOCUMENTS[::-1])):
        known = {run.id: run.examples for run in other.runs}
        mixed = changed(sweep, lambda run, known=known: {"examples": known[run.id] if is_t5(run) else run.examples})
        assert compared(mixed)[0].examples == 0


def test_runs_of_different_texts_are_no_pairs(make):
    runs = [(name, seed, {20: 2.0, 40: 2.0 + seed / 10}) for name in ("rope", "t5") for seed in range(3)]
    sweep = make(*runs, task="text", metric="loss_sliding")
    text = lambda run: "b" if is_t5(run) and not run.config["seed"] else "a"
    told = changed(sweep, lambda run: {"manifest": {**run.manifest, "data_sha256": {"train": text(run)}}})
    assert len(compared(told)[0].pairs) == 2
    (odd,) = [run.id for run in told.runs if text(run) == "b"]
    (note,) = [one for one in notes(summarise(told)) if "sha256" in one]
    assert f"5 runs read one, and others another: {odd}." in note
    assert not any("sha256" in one for one in notes(summarise(sweep)))


@pytest.mark.parametrize(("state", "pairs"), [("failed", 8), ("done", 6)])
def test_only_a_failed_run_that_names_no_text_is_paired_by_its_seeds(make, state: str, pairs: int):
    """A run may fail before its manifest names the text. One that is done, of a text nobody knows, is no pair."""
    runs = [(name, seed, {20: 2.0, 40: 2.0 + (name == "t5")}) for name in ("rope", "t5") for seed in range(8)]
    lost = lambda run: is_t5(run) and run.config["seed"] < 2
    text = lambda run: {} if lost(run) else {"data_sha256": {"test": "a"}}
    sweep = make(*runs, task="text", metric="loss_sliding")
    told = changed(
        sweep, lambda run: {"manifest": {**run.manifest, **text(run)}, "state": state if lost(run) else "done"}
    )
    (found,) = compared(told)
    assert len(found.pairs) == pairs


def test_examples_of_other_batches_are_no_pairs(make):
    """Example w of a batch of 64 is another one than example w of a batch of 128: the interval is over runs alone."""
    tables = {name: np.random.default_rng(2).normal(2, 0.5, (6, EXAMPLES)) for name in ("rope", "t5")}
    sweep = paired(make, tables, "markov")
    batch = lambda run: {**run.config, "evaluate": {**run.config["evaluate"], "batch": 64 if is_t5(run) else 128}}
    other = changed(sweep, lambda run: {"config": batch(run)})
    assert [(len(one.pairs), one.examples) for one in (*compared(sweep), *compared(other))] == [(6, EXAMPLES), (6, 0)]


def test_a_failed_run_has_no_scores_of_examples(make):
    """It may have failed when they were written; it counts with the worst score there is."""
    sweep = make(*[(name, seed, {20: 1.0, 40: 0.5}) for name in ("rope", "t5") for seed in range(6)])
    scores = Examples(400, {("test", 40, "exact_match"): np.full(EXAMPLES, 0.5)})
    lost = lambda run: is_t5(run) and run.config["seed"] == 0
    told = changed(sweep, lambda run: {"examples": scores, "state": "failed" if lost(run) else "done"})
    (found,) = compared(told)
    assert found.examples == 0
    assert found.mean.value == pytest.approx(0.5 / 6)
