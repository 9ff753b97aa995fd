"""What is compared with what: pairs of seeds, tables of examples, and nothing that did not fit its task."""

import csv
import dataclasses
import io
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnjax.records import examples
from attnjax.records.examples import DOCUMENT, Examples
from attnjax.report import intervals
from attnjax.report.comparisons import pairs_of
from attnjax.report.csv_tables import csv_files
from attnjax.report.examples import bins, by_position, table
from attnjax.report.markdown_tables import ranking, table_md
from attnjax.report.page import page
from attnjax.report.records import Sweep, read
from attnjax.report.significance import holm
from attnjax.report.summarise import summarise
from attnjax.report.summary import Summary
from tests.report.synthetic import canonical, config, lines, run_id, write_run, write_spec

Values = Mapping[int, float]
EXAMPLES = 40


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Sweep]:
    """The records of runs given as (encoding, seed, {length: value})."""

    def build(*runs: tuple[str, int, Values], task: str = "copy", metric: str = "exact_match") -> Sweep:
        configs = [config(task, name, seed) for name, seed, _ in runs]
        write_spec(tmp_path, configs)
        for fields, (_, _, values) in zip(configs, runs, strict=True):
            row = {"run": run_id(fields), "step": 400, "metric": metric, "count": EXAMPLES}
            rows = [row | {"length": n, "value": v, "split": "train" if n <= 20 else "test"} for n, v in values.items()]
            write_run(tmp_path, fields, results=lines(rows))
        return read(tmp_path)

    return build


def with_examples(
    sweep: Sweep, tables: Mapping[str, np.ndarray], length: int = 40, documents: np.ndarray | None = None
) -> Sweep:
    """The sweep with scores of examples [seeds, examples] of each encoding, and the results that are their means."""

    def filled(run: Any) -> Any:
        scores = tables[run.config["model"]["encoding"]["name"]][run.config["seed"]]
        positions = {("test", length, "loss"): np.arange(length) + 1.0}
        positions[("test", length, "accuracy")] = np.linspace(0, 1, length)
        known = {} if documents is None else {("test", length, DOCUMENT): documents}
        stored = Examples(400, {("test", length, "loss_sliding"): scores, **known}, positions)
        results = [dataclasses.replace(r, value=float(scores.mean())) if r.length == length else r for r in run.results]
        return dataclasses.replace(run, examples=stored, results=tuple(results))

    return dataclasses.replace(sweep, runs=tuple(map(filled, sweep.runs)))


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


def test_the_loss_by_position(make: Callable[..., Sweep]):
    tables = {"rope": np.ones((6, EXAMPLES))}
    sweep = with_examples(make(*[("rope", s, {40: 2.0}) for s in range(6)], task="text", metric="loss_sliding"), tables)
    scored = summarise(sweep).tasks[0].rows["loss_sliding"][0].scored
    found = by_position(scored, 40, "loss", 20)
    assert found is not None
    np.testing.assert_allclose(found.value, found.x, err_msg="the mean of positions is the middle of their bin")
    assert found.x[0] == 1
    assert 39 <= found.x[-1] <= 40
    assert by_position(scored, 80, "loss", 20) is None
    assert by_position(scored, 40, "other", 20) is None


@pytest.mark.parametrize(("last", "longest"), [(1, 0), (40, 20), (512, 64), (4096, 1000), (64, 64), (64, 100)])
def test_bins_of_positions_hold_each_once_and_none_straddles_the_trained_length(last: int, longest: int):
    edges = bins(last, longest)
    assert (edges[0], edges[-1]) == (1, last + 1)
    assert all(b > a for a, b in itertools.pairwise(edges))
    assert longest + 1 in edges or not 0 < longest < last
    widths = np.diff(edges)
    assert widths.max() <= max(1, 0.1 * last), "fine enough to show where a curve breaks"


def test_scores_of_examples_are_read_from_the_folder_of_a_run(make: Callable[..., Sweep], tmp_path: Path):
    sweep = make(("rope", 0, {20: 2.0, 40: 2.0}), task="text", metric="loss_sliding")
    assert sweep.runs[0].examples is None
    folder, scores = tmp_path / sweep.runs[0].id, np.array([1.0, 3.0])
    examples.write(folder, Examples(400, {("test", 40, "loss_sliding"): scores}, {}))
    found = table(read(tmp_path).runs, (40,), "loss_sliding")
    assert found is not None
    np.testing.assert_array_equal(found, [scores])
    examples.write(folder, Examples(399, {("test", 40, "loss_sliding"): scores}, {}))
    assert table(read(tmp_path).runs, (40,), "loss_sliding") is None, "they are of another evaluation"
    (folder / examples.FILE).write_bytes(b"PK no archive")
    damaged = read(tmp_path)
    assert damaged.runs[0].examples is None
    (note,) = [note for note in damaged.skipped if note.path.endswith(examples.FILE)]
    assert "is damaged" in note.reason


def test_the_page_has_the_loss_by_position(make: Callable[..., Sweep]):
    tables = {"rope": np.ones((6, EXAMPLES))}
    sweep = with_examples(make(*[("rope", s, {40: 2.0}) for s in range(6)], task="text", metric="loss_sliding"), tables)
    text = page(summarise(sweep), {})
    assert "Loss and accuracy by position in the longest windows" in text
    assert "text: loss by position in windows of 40" in text
    assert "text: accuracy by position in windows of 40" in text
    assert "by position" not in page(summarise(dataclasses.replace(sweep, runs=without(sweep.runs))), {})


def without(runs: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dataclasses.replace(run, examples=None) for run in runs)


def test_n_gram_models_of_the_manifests_are_drawn_and_in_the_tables(make: Callable[..., Sweep], tmp_path: Path):
    sweep = make(("rope", 0, {20: 2.0, 40: 2.5}), task="text", metric="loss_sliding")
    path = tmp_path / sweep.runs[0].id / "manifest.json"
    level = lambda x: {"loss_sliding": {"unigram": 3.0 + x, "bigram": 2.4 + x, "trigram": 2.1 + x}}
    path.write_text(canonical({"schema": 1, "baselines": {"20": level(0), "40": level(0.1)}}))
    summary = summarise(read(tmp_path))
    np.testing.assert_array_equal(summary.tasks[0].baselines["loss_sliding"]["bigram"], [2.4, 2.5])
    rows = {row["length"]: row for row in rows_of(csv_files(summary)["lengths.csv"])}
    assert [rows["40"][name] for name in ("unigram", "bigram", "trigram")] == ["3.1", "2.5", "2.2"]
    text = page(summary, {})
    assert ">bigram</text>" in text
    assert ">trigram</text>" in text
    assert 'class="trimmed"' in text, "the loss at the trained length goes on as a dashed line"
    path.write_text(canonical({"schema": 1, "baselines": {"20": level(0)}}))
    assert summarise(read(tmp_path)).tasks[0].baselines == {}, "levels that lack one of the lengths are not used"


def test_a_run_fits_markov_chains_when_it_comes_near_the_best_prediction(make: Callable[..., Sweep], tmp_path: Path):
    """The counts of pairs in the window cost 2.4 nats at 20 symbols, the longest training length."""
    losses = {0: 2.41, 1: 2.44, 2: 2.46}
    runs = [("rope", seed, {20: loss, 40: 2.5}) for seed, loss in losses.items()]
    sweep = make(*runs, ("nope", 0, {20: 2.6, 40: 2.6}), task="markov", metric="loss_sliding")
    assert [count.fit for count in summarise(sweep).tasks[0].counts] == [None, None], "nothing says what is best"
    level = {"loss_sliding": {"unigram": 3.0, "bigram": 2.4}}
    for run in sweep.runs:
        path = tmp_path / run.id / "manifest.json"
        path.write_text(canonical({"schema": 1, "baselines": {"20": level, "40": level}}))
    (task,) = summarise(read(tmp_path)).tasks
    found = {variant.encoding: count for variant, count in zip(task.panel.variants, task.counts, strict=True)}
    assert (found["rope"].fit, found["nope"].fit) == (2, 0)
    assert [task.panel.variants[place].encoding for place in task.unfitted] == ["nope"]


def test_windows_of_one_document_are_not_independent(make: Callable[..., Sweep]):
    """Forty windows of eight documents, which differ: the intervals are over documents, as of a sum over each by hand."""
    generator = np.random.default_rng(1)
    documents = np.repeat(np.arange(8.0), 5)
    tables = {name: generator.normal(step, 0.05, (6, EXAMPLES)) for name, step in (("rope", 0), ("t5", 0.1))}
    tables["rope"] += generator.normal(2, 0.5, 8)[documents.astype(int)]
    runs = [(name, seed, {20: 2.0, 40: 2.0}) for name in tables for seed in range(6)]
    swept = make(*runs, task="text", metric="loss_sliding")
    summary = summarise(with_examples(swept, tables, documents=documents))
    (task,) = summary.tasks
    assert "mean, 95 % interval over runs and documents" in table_md(summary)
    (found,) = task.differences
    assert (found.examples, found.documents) == (EXAMPLES, 8)
    by_document = (tables["rope"] - tables["t5"]).reshape(6, 8, 5).mean(2)
    expected = intervals.of_runs_and_examples(by_document)  # documents of equal size are examples
    assert expected is not None
    assert (found.mean.low, found.mean.high) == pytest.approx((expected.low, expected.high))
    alone = intervals.of_runs_and_examples(tables["rope"] - tables["t5"])
    assert alone is not None
    assert found.mean.high - found.mean.low > 1.5 * (alone.high - alone.low)
    assert "over pairs and 40 examples of 8 documents" in table_md(summary)
    few = summarise(with_examples(swept, tables, documents=np.minimum(documents, 4))).tasks[0]
    assert few.rows["loss_sliding"][0].over_examples is None, "five documents have no interval"
    assert few.differences[0].examples == 0


def is_t5(run: Any) -> bool:
    return run.config["model"]["encoding"]["name"] == "t5"


def test_windows_of_unknown_files_may_all_be_of_one(make: Callable[..., Sweep]):
    """Records of text of an earlier version have no files, and those of another text have other files."""
    generator = np.random.default_rng(1)
    documents = np.repeat(np.arange(8.0), 5)
    tables = {name: generator.normal(2, 0.5, (6, EXAMPLES)) for name in ("rope", "t5")}
    runs = [(name, seed, {20: 2.0, 40: 2.0}) for name in tables for seed in range(6)]
    swept = with_examples(make(*runs, task="text", metric="loss_sliding"), tables, documents=documents)
    earlier = with_examples(swept, tables)
    other = with_examples(swept, tables, documents=documents[::-1])
    takes = lambda second: [b if is_t5(a) else a for a, b in zip(swept.runs, second.runs, strict=True)]
    for second in (other, earlier):
        (task,) = summarise(dataclasses.replace(swept, runs=tuple(takes(second)))).tasks
        assert task.differences[0].examples == 0
    rope, t5 = task.rows["loss_sliding"]
    assert rope.over_examples is not None
    assert t5.over_examples is None
    two = dataclasses.replace(swept, runs=(*earlier.runs[:1], *swept.runs[1:]))
    assert sum(row.over_examples is None for row in summarise(two).tasks[0].rows["loss_sliding"]) == 1


def test_runs_of_different_texts_are_no_pairs(make: Callable[..., Sweep]):
    runs = [(name, seed, {20: 2.0, 40: 2.0 + seed / 10}) for name in ("rope", "t5") for seed in range(3)]
    swept = make(*runs, task="text", metric="loss_sliding")
    text = lambda run: "a" if run.config["model"]["encoding"]["name"] == "rope" or run.config["seed"] else "b"
    told = tuple(
        dataclasses.replace(run, manifest={**run.manifest, "data_sha256": {"train": text(run), "test": "c"}})
        for run in swept.runs
    )
    summary = summarise(dataclasses.replace(swept, runs=told))
    assert [item.mean.runs for item in summary.tasks[0].differences] == [2]
    (odd,) = [run.id for run in told if text(run) == "b"]
    note = f"5 runs read one, and others another: {odd}. Their losses do not compare, and they are not paired."
    assert [one.partition("sha256: ")[2] for one in summary.notes if "sha256" in one] == [note]
    assert not any("sha256" in one for one in summarise(swept).notes)


def test_a_failed_run_that_names_no_text_is_paired_by_its_seeds(make: Callable[..., Sweep]):
    """A run that fails before its manifest is written counts as failed, as one that fails later does."""
    runs = [
        (name, seed, {20: 2.0, 40: 2.0 + is_second})
        for is_second, name in enumerate(("rope", "t5"))
        for seed in range(8)
    ]
    swept = make(*runs, task="text", metric="loss_sliding")
    failed = lambda run: is_t5(run) and run.config["seed"] < 2
    for known in (True, False):
        text = lambda run, known=known: {"data_sha256": {"test": "a"}} if known or not failed(run) else {}
        told = (
            dataclasses.replace(run, manifest=run.manifest | text(run), **({"state": "failed"} if failed(run) else {}))
            for run in swept.runs
        )
        (found,) = summarise(dataclasses.replace(swept, runs=tuple(told))).tasks[0].differences
        assert (found.mean.runs, found.p) == (8, 1.0)
    lost = tuple(dataclasses.replace(run, manifest={**run.manifest, **text(run)}) for run in swept.runs)
    (found,) = summarise(dataclasses.replace(swept, runs=lost)).tasks[0].differences
    assert found.mean.runs == 6, (
        "a run that is done, of a text that nobody knows, is no pair of one whose text is known"
    )


def test_variants_on_other_windows_have_baselines_of_their_own(make: Callable[..., Sweep], tmp_path: Path):
    """The best prediction has 1.93 on the windows of one variant and 2 on those of the other: each is 0.01 above its own."""
    best = {"rope": 1.93, "t5": 2.0}
    runs = [(name, seed, {20: best[name] + 0.01, 40: 2.1}) for name in best for seed in range(3)]
    sweep = make(*runs, task="markov", metric="loss_sliding")

    def tell(levels: Mapping[str, float]) -> Summary:
        for run in sweep.runs:
            level = {"loss_sliding": {"bigram": levels[run.config["model"]["encoding"]["name"]]}}
            text = canonical({"schema": 1, "baselines": {"20": level, "40": level}})
            (tmp_path / run.id / "manifest.json").write_text(text)
        return summarise(read(tmp_path))

    apart, alike = tell(best), tell({"rope": 1.99, "t5": 1.99 + 1e-6})
    assert [count.fit for count in apart.tasks[0].counts] == [3, 3]
    assert apart.tasks[0].baselines == {}
    assert [one for one in apart.notes if "different windows" in one] == [
        "Variants on markov were tested on different windows, or count different tokens of them: no n-gram model stands beside "
        "all of them, and losses do not compare."
    ]
    assert alike.tasks[0].baselines["loss_sliding"]["bigram"] == pytest.approx([1.99, 1.99])
    assert not any("different windows" in one for one in alike.notes)


def test_examples_of_other_batches_are_no_pairs(make: Callable[..., Sweep]):
    """Example w of a batch of 64 is another one than example w of a batch of 128: the interval is over runs alone."""
    tables = {name: np.random.default_rng(2).normal(2, 0.5, (6, EXAMPLES)) for name in ("rope", "t5")}
    runs = [(name, seed, {20: 2.0, 40: 2.0 + seed / 10}) for name in tables for seed in range(6)]
    swept = with_examples(make(*runs, task="markov", metric="loss_sliding"), tables)
    other = lambda run: {**run.config, "evaluate": {**run.config["evaluate"], "batch": 64 if is_t5(run) else 128}}
    for runs_of, examples_of in (
        (swept.runs, EXAMPLES),
        ([dataclasses.replace(run, config=other(run)) for run in swept.runs], 0),
    ):
        (found,) = summarise(dataclasses.replace(swept, runs=tuple(runs_of))).tasks[0].differences
        assert (found.mean.runs, found.examples) == (6, examples_of)


def test_a_failed_run_has_the_worst_at_every_position(make: Callable[..., Sweep]):
    tables = {"rope": np.ones((7, EXAMPLES))}
    sweep = with_examples(make(*[("rope", s, {40: 2.0}) for s in range(7)], task="text", metric="loss_sliding"), tables)
    failed = tuple(dataclasses.replace(run, state="failed") if run.config["seed"] < 4 else run for run in sweep.runs)
    scored = summarise(dataclasses.replace(sweep, runs=failed)).tasks[0].rows["loss_sliding"][0].scored
    for name, median in (("loss", np.inf), ("accuracy", 0.0)):
        found = by_position(scored, 40, name, 20)
        assert found is not None
        assert (found.value == median).all()


def test_a_failed_run_has_no_scores_of_examples(make: Callable[..., Sweep]):
    """It may have failed when they were written; it counts with the worst score there is, in every column."""
    tables = {name: np.full((6, EXAMPLES), 0.5) + np.arange(6)[:, None] / 100 for name in ("rope", "t5")}
    runs = [(name, seed, {20: 1.0, 40: 0.5}) for name in tables for seed in range(6)]
    swept = make(*runs)
    key = ("test", 40, "exact_match")
    filled = [
        dataclasses.replace(run, examples=Examples(400, {key: tables["rope"][run.config["seed"]]}, {}))
        for run in swept.runs
    ]
    (task,) = summarise(dataclasses.replace(swept, runs=tuple(filled))).tasks
    assert all(row.over_examples is not None for row in task.rows["exact_match"])
    lost = lambda run: is_t5(run) and run.config["seed"] == 0
    failed = [dataclasses.replace(run, state="failed") if lost(run) else run for run in filled]
    (task,) = summarise(dataclasses.replace(swept, runs=tuple(failed))).tasks
    assert [row.over_examples is None for row in task.rows["exact_match"]] == [False, True]
    (found,) = task.differences
    assert found.examples == 0
    assert found.mean.value == pytest.approx(0.5 / 6)
