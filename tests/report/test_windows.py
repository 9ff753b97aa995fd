"""Which examples runs were tested on: texts, documents, batches, positions, and the baselines of the same windows."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnjax.records import examples
from attnjax.records.examples import Examples
from attnjax.report import intervals
from attnjax.report.csv_tables import csv_files
from attnjax.report.examples import bins, by_position, table
from attnjax.report.markdown_tables import table_md
from attnjax.report.page import page
from attnjax.report.records import Sweep, read
from attnjax.report.summarise import summarise
from attnjax.report.summary import Summary
from tests.report.synthetic import (
    EXAMPLES,
    canonical,
    rows_of,
    with_examples,
)


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
    assert not summary.tasks[0].improvement
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
