"""From records to numbers: which runs count, as what, over which lengths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnjax.report.comparisons import Improvement
from attnjax.report.records import read
from attnjax.report.summarise import summarise
from attnjax.report.summary import Row, Summary, Task, above, guess
from tests.report.synthetic import canonical, config, lines, run_id, write_run, write_spec, write_sweep

Values = dict[int, float]


def results(fields: dict[str, Any], metric: str, values: Values, step: int = 400, split: str | None = None) -> str:
    """results.jsonl with these values by length."""
    trained = fields["task"]["length_max"]
    row = {"schema": 1, "run": run_id(fields), "step": step, "metric": metric, "count": 512}
    rows = [
        row | {"length": n, "value": v, "split": split or ("train" if n <= trained else "test")}
        for n, v in values.items()
    ]
    return lines(rows)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Summary]:
    """A summary of runs given as (encoding, state, {length: value}), one seed after the other."""

    def build(*runs: tuple[str, str, Values], metric: str = "exact_match", protocol: str = "") -> Summary:
        configs = [config("copy", name, seed) for seed, (name, _, _) in enumerate(runs)]
        write_spec(tmp_path, configs, protocol=protocol)
        for fields, (_, state, values) in zip(configs, runs, strict=True):
            if state != "absent":
                write_run(tmp_path, fields, state, results=results(fields, metric, values))
        return summarise(read(tmp_path))

    return build


def first_row(summary: Summary, key: str = "exact_match") -> Row:
    return summary.tasks[0].rows[key][0]


def test_scores_past_and_within_training(make: Callable[..., Summary]):
    """Trained to 20: the score past training is the mean over 40 and 80, the one within it over 10 and 20."""
    summary = make(*[("rope", "done", {10: 1.0, 20: 0.5 + x, 40: x, 80: x / 2}) for x in (0.2, 0.4, 0.0, 0.1)])
    row = first_row(summary)
    assert sorted(row.scored.past) == pytest.approx([0.0, 0.075, 0.15, 0.3])
    assert row.past is not None
    assert row.past.value == pytest.approx((0.075 + 0.15) / 2), "the median of four"
    assert (row.past.low, row.past.high, row.past.kind) == (0.0, pytest.approx(0.3), "range")
    assert row.within is not None
    assert row.within.value == pytest.approx((0.8 + 0.85) / 2)
    assert row.mean == pytest.approx(0.13125)
    assert row.iqm == pytest.approx(0.1125), "the best and the worst of four are cut"
    assert row.best == pytest.approx(0.3)
    assert row.scored.beyond == (40, 80)
    assert list(row.curve.x) == [10, 20, 40, 80]
    assert list(row.curve.count) == [4, 4, 4, 4]


def test_a_failed_run_counts_with_nothing_right(make: Callable[..., Summary]):
    summary = make(("rope", "done", {20: 1.0, 40: 0.8}), ("rope", "failed", {}), ("rope", "done", {20: 1.0, 40: 0.7}))
    row, (counts,) = first_row(summary), summary.tasks[0].counts
    assert row.mean == pytest.approx(0.5)
    assert row.past is not None
    assert row.past.value == pytest.approx(0.7), "the median of 0, 0.7 and 0.8"
    assert row.fitted == pytest.approx(0.75), "the mean of those that fitted is what dropping it would print"
    assert (counts.planned, counts.done, counts.failed, counts.fit, counts.ended) == (3, 2, 1, 2, 3)
    assert any(note.startswith("Failed: 1 of 3") for note in summary.notes)


def test_a_failed_run_counts_with_an_infinite_loss(make: Callable[..., Summary]):
    done = [("rope", "done", {20: 1.0, 40: 2.0 + x}) for x in (0.0, 0.1, 0.2)]
    row = first_row(make(*done, ("rope", "failed", {}), metric="loss"), "loss")
    assert row.past is not None
    assert row.past.value == pytest.approx(2.15), "the median of four"
    assert row.past.high == np.inf
    assert row.best == pytest.approx(2.0), "the best loss is the lowest"


def test_a_failed_run_counts_even_if_it_measured_something(make: Callable[..., Summary]):
    row = first_row(make(("rope", "done", {40: 0.8}), ("rope", "failed", {40: 0.9})))
    assert sorted(row.scored.past) == [0.0, 0.8]


@pytest.mark.parametrize("state", ["running", "preempted", "pending", "absent"])
def test_an_unfinished_run_is_shown_and_in_no_statistic(make: Callable[..., Summary], state: str):
    summary = make(("rope", "done", {40: 0.8}), ("rope", state, {40: 0.1}))
    assert first_row(summary).mean == pytest.approx(0.8)
    assert summary.tasks[0].counts[0].unfinished == 1
    assert summary.notes[0] == (
        f"Not complete: 1 of 2 runs are done; 1 is still in training or was not started (1 {state}). "
        "The numbers are without them."
    )


def test_a_done_run_without_results_is_unfinished(make: Callable[..., Summary]):
    summary = make(("rope", "done", {40: 0.8}), ("rope", "done", {}))
    assert summary.tasks[0].counts[0].unfinished == 1
    assert summary.notes[0] == (
        "Not complete: 1 of 2 runs are done; the records of 1 more are damaged or missing (see Skipped records). "
        "The numbers are without them."
    )


def test_a_value_that_is_not_finite_is_the_worst(tmp_path: Path):
    fields = config("copy", "rope", 0)
    text = results(fields, "loss", {20: 1.0, 40: 7.0}).replace("7.0", "null")
    text += results(fields, "exact_match", {40: 0.25}).replace("0.25", "NaN")
    write_run(tmp_path, fields, results=text)
    summary = summarise(read(tmp_path))
    assert first_row(summary, "loss").scored.past.tolist() == [np.inf]
    assert first_row(summary, "exact_match").scored.past.tolist() == [0.0]


def test_a_lost_record_leaves_the_run_out_of_what_needs_it(make: Callable[..., Summary]):
    summary = make(("rope", "done", {20: 1.0, 40: 0.8, 80: 0.2}), ("rope", "done", {20: 0.9, 80: 0.6}))
    row = first_row(summary)
    assert row.mean == pytest.approx(0.5), "only the first run has both lengths past training"
    assert row.within is not None
    assert row.within.value == pytest.approx(0.95)
    assert list(row.curve.count) == [2, 1, 2]
    assert any("Some lengths are missing" in note for note in summary.notes)


def test_validation_lengths_are_neither_drawn_nor_counted(tmp_path: Path):
    fields = config("copy", "rope", 0)
    text = results(fields, "exact_match", {20: 1.0, 40: 0.5}) + results(
        fields, "exact_match", {30: 0.0}, split="validation"
    )
    write_run(tmp_path, fields, results=text)
    row = first_row(summarise(read(tmp_path)))
    assert row.mean == 0.5
    assert list(row.curve.x) == [20, 40]


def test_the_last_evaluation_counts_and_of_a_length_the_last_record(tmp_path: Path):
    fields = config("copy", "rope", 0)
    text = results(fields, "exact_match", {40: 0.9}, step=100) + results(fields, "exact_match", {40: 0.2})
    write_run(tmp_path, fields, results=text + results(fields, "exact_match", {40: 0.3}))
    assert first_row(summarise(read(tmp_path))).mean == pytest.approx(0.3)


def test_test_examples_count_at_a_length_that_was_validated_too(tmp_path: Path):
    fields = config("copy", "rope", 0)
    text = results(fields, "exact_match", {40: 0.5}) + results(fields, "exact_match", {40: 0.9}, split="validation")
    write_run(tmp_path, fields, results=text)
    assert list(first_row(summarise(read(tmp_path))).curve.value) == [0.5]


def test_runs_tested_within_training_only_have_no_score_past_it(make: Callable[..., Summary]):
    """Also the failed ones: without lengths past training there is nothing that they could have failed at."""
    summary = make(("rope", "done", {10: 1.0, 20: 0.8}), ("rope", "failed", {}), ("alibi", "done", {10: 1.0, 20: 1.0}))
    row, (counts, _) = first_row(summary), summary.tasks[0].counts
    assert row.past is None
    assert row.within is not None
    assert row.within.value == pytest.approx(0.45)
    assert (counts.done, counts.failed, counts.fit) == (1, 1, 0)
    assert summary.tasks[0].improvement == {}


def test_improvement_follows_the_direction_of_the_metric(make: Callable[..., Summary]):
    runs = [("rope", "done", {40: 0.9}), ("alibi", "done", {40: 0.2})] * 3
    assert make(*runs).tasks[0].improvement == {
        (0, 1): Improvement(1.0, pytest.approx(0.1), pytest.approx(0.1)),
        (1, 0): Improvement(0.0, pytest.approx(0.1), pytest.approx(0.1)),
    }


def test_a_lower_loss_is_an_improvement(make: Callable[..., Summary]):
    runs = [("rope", "done", {40: 0.9}), ("alibi", "done", {40: 0.2})] * 3
    assert make(*runs, metric="loss").tasks[0].improvement[1, 0].probability == 1


def test_chance_comes_from_the_manifests(make: Callable[..., Summary], tmp_path: Path):
    make(("rope", "done", {20: 1.0, 40: 0.55, 80: 0.45}))
    run = next(path for path in tmp_path.iterdir() if path.is_dir())
    levels = {str(n): {"exact": level, "token": 0.5} for n, level in ((20, 0.3), (40, 0.2), (80, 0.1))}
    (run / "manifest.json").write_text(canonical({"schema": 1, "chance": levels}))
    task = summarise(read(tmp_path)).tasks[0]
    assert list(task.chance["exact_match"]) == [0.3, 0.2, 0.1]
    assert guess(task, task.rows["exact_match"][0]) == pytest.approx(0.15)
    assert above(task, task.rows["exact_match"][0]) == pytest.approx((0.5 - 0.15) / 0.85)
    del levels["80"]
    (run / "manifest.json").write_text(canonical({"schema": 1, "chance": levels}))
    assert summarise(read(tmp_path)).tasks[0].chance == {}, "levels that lack one of the lengths are not used"


def test_the_protocol_may_name_the_primary_metric(tmp_path: Path):
    write_sweep(tmp_path, ("copy",), ("rope",), 1)
    assert keys(summarise(read(tmp_path)).tasks[0])[0] == "exact_match"
    write_spec(
        tmp_path, [config("copy", "rope", 0)], protocol="Three seeds.\nPrimary metric: token_accuracy, loss_sliding"
    )
    found = summarise(read(tmp_path))
    assert keys(found.tasks[0]) == ["token_accuracy", "exact_match", "exact_match_oracle_length"]
    assert "The protocol names a metric that no run measured: loss_sliding." in found.notes


def test_lengths_below_the_shortest_trained_one_are_not_within_training(tmp_path: Path):
    """Of tasks with an answer; windows of text begin with all shorter ones."""
    for name, metric, within in (("copy", "exact_match", 1.0), ("markov", "loss_sliding", 0.6)):
        base = config(name, "rope", 0)
        fields = config(name, "rope", 0, task={**base["task"], "length_min": 10})
        write_run(tmp_path / name, fields, results=results(fields, metric, {5: 0.2, 20: 1.0, 40: 0.5}))
        row = first_row(summarise(read(tmp_path / name)), metric)
        assert row.within is not None
        assert row.within.value == pytest.approx(within)


def keys(task: Task) -> list[str]:
    return [metric.key for metric in task.metrics]


def test_text_has_losses_first_and_no_fit_rate(tmp_path: Path):
    write_sweep(tmp_path, ("text",), ("rope", "alibi"), 2)
    task = summarise(read(tmp_path)).tasks[0]
    assert keys(task) == ["loss_sliding", "loss_nonoverlapping"]
    assert [counts.fit for counts in task.counts] == [None, None]


def test_several_tasks_are_strata(tmp_path: Path):
    write_sweep(tmp_path, ("copy", "sort"), ("rope", "learned"), 3)
    summary = summarise(read(tmp_path))
    rows = {(row.label, row.metric.key): row for row in summary.overall}
    row = rows["RoPE", "exact_match"]
    scores = np.sort(np.concatenate([task.rows["exact_match"][1].scored.past for task in summary.tasks]))
    assert row.tasks == 2
    assert sorted(row.runs) == sorted(run.id for run in summary.sweep.runs if "rope" in str(run.config))
    assert row.past.value == pytest.approx(scores[1:-1].mean())
    assert row.past.kind == "none", "3 runs a task are too few for an interval"


def test_learning_curves_end_where_a_run_fails(tmp_path: Path):
    write_sweep(tmp_path, ("copy",), ("learned",), 2)
    (curve,) = summarise(read(tmp_path)).tasks[0].learning
    assert list(curve.count) == [2.0] * 8 + [1.0] * 13
    assert curve.x[-1] == 400


def test_nothing_measured_yet_is_a_clear_error(make: Callable[..., Summary]):
    with pytest.raises(ValueError, match="has measured anything at a test length yet: .* is running"):
        make(("rope", "running", {}))


def test_the_order_of_files_does_not_matter(tmp_path: Path):
    configs = write_sweep(tmp_path / "a", ("copy",), ("rope", "learned"), 3)
    write_spec(tmp_path / "b", configs[::-1])
    for fields in reversed(configs):
        (tmp_path / "a" / run_id(fields)).rename(tmp_path / "b" / run_id(fields))
    there = read(tmp_path / "b").runs
    assert [run.id for run in there] == sorted(map(run_id, configs))


def test_runs_that_were_resumed_under_other_conditions_are_told(tmp_path: Path):
    """A manifest is a file that anybody may have written: what it names besides is passed over."""
    changes = [["population"], ["population", "threads"], [], "population", ["<b>", 3, ["threads"]], None]
    configs = [config("copy", "rope", seed) for seed in range(len(changes))]
    write_spec(tmp_path, configs)
    for fields, names in zip(configs, changes, strict=True):
        manifest = canonical({"schema": 1, "changed_on_resume": names, "state": "done"})
        write_run(tmp_path, fields, manifest=manifest, results=results(fields, "exact_match", {20: 1.0, 80: 0.5}))
    (note,) = [note for note in summarise(read(tmp_path)).notes if note.startswith("Resumed")]
    assert note == (
        "Resumed under other conditions: 2 of 6 runs (another number of threads: 1, another population: 2). Their numbers are "
        "not those of an uninterrupted run bit by bit, but up to rounding."
    )


def test_nothing_is_said_of_runs_that_were_resumed_as_they_began(make: Callable[..., Summary]):
    assert not [note for note in make(("rope", "done", {20: 1.0, 80: 0.5})).notes if note.startswith("Resumed")]
