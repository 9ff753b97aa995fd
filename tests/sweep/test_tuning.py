"""Which families a sweep has, what each is tuned over, and which candidate hand-made scores choose."""

import json
import math
import pathlib
import re
import statistics

import pytest
from hypothesis import given, strategies as st
from ml_collections import ConfigDict

from attnjax.config import override, parse, run_id
from attnjax.sweep import groups, plan, prepare, product, run_here, seeds, vary
from attnjax.sweep.choices import Choice, Choices, Trial, asked, read
from attnjax.sweep.choosing import choose
from attnjax.sweep.tuning import Tuning, tuning

BASE = {"name": "small", "task": {"length_max": 20}, "evaluate": {"lengths": [10, 40], "validation_lengths": [10, 20]}}
RATES = vary("train.learning_rate", [1e-3, 3e-3])


def made(config, sweep, candidates=RATES, **options) -> Tuning:
    return tuning(config, plan(config, sweep, held=options.get("held")), candidates, **options)


def test_seeds_and_tuned_fields_make_no_family():
    sweep = product(vary("model.encoding", ["rope", "nope"]), vary("train.learning_rate", [1.0, 2.0]), seeds(3))
    found = made(BASE, sweep)
    assert [family.changes for family in found.families] == [{"model.encoding": "rope"}, {"model.encoding": "nope"}]
    assert found.family_of == (0,) * 6 + (1,) * 6
    assert len(found.tuned([0, 1])) == 6, "runs that differed in the tuned field alone are one"


def test_all_families_have_the_same_candidates_and_seeds_and_rates_share_a_program():
    sweep = product(vary("model.encoding", ["rope", "nope"]), seeds(2))
    candidates = product(vary("model.embed_scale", [False, True]), vary("train.learning_rate", [1e-3, 3e-3, 1e-2]))
    found = made(BASE, sweep, candidates)
    for family in found.families:
        tried = {
            (one.config.model.embed_scale, one.config.train.learning_rate, one.config.seed)
            for one in sum(family.runs, ())
        }
        assert tried == {
            (scale, rate, seed) for scale in (False, True) for rate in (1e-3, 3e-3, 1e-2) for seed in (10_000, 10_001)
        }
    assert [len(group) for group in groups([one.config for one in found.runs])] == [6] * 4


def test_a_derived_field_follows_the_candidate():
    config = ConfigDict({**BASE, "model": {"model": 32, "heads": 4}})
    config.model.hidden = 4 * config.model.get_ref("model")
    found = made(config, seeds(1), vary("model.model", [32, 64]))
    assert [runs[0].config.model.hidden for runs in found.families[0].runs] == [128, 256]
    assert found.tuned([1])[0].config.model.hidden == 256


def test_what_the_command_line_holds_also_holds_in_tuned_runs():
    held = {"train.steps": 7, "model.encoding.options.theta": 500.0, "seed": 3}
    sweep = vary("model.encoding", [{"name": "rope", "options": {"fraction": 0.5}}, "rope"])
    found = made(BASE, sweep, held=held)
    wanted = [parse(override(BASE, {**one, **held, "train.learning_rate": 3e-3})) for one in sweep]
    assert [run_id(one.config) for one in found.tuned([1, 1])] == [run_id(one) for one in wanted]
    assert {one.config.train.steps for one in found.runs} == {7}
    assert {one.config.seed for one in found.runs} == {10_000, 10_001}


def test_seeds_of_the_command_line_are_seeds_of_the_sweep():
    with pytest.raises(ValueError, match="seed 10000 is both a tuning seed and a seed of the sweep"):
        made(BASE, [{}], held={"data_seed": 10_000})


def choice(metric, *scores) -> Choice:
    trials = tuple(tuple(Trial("0" * 16, "done", one) for one in row) for row in scores)
    return Choice("0" * 16, {}, metric, trials)


def test_the_best_mean_is_chosen_and_of_equal_ones_the_first():
    rates = vary("train.learning_rate", [1, 2, 3])
    assert choice("exact_match", (0.5, 0.7), (0.9, 0.4), (0.0, 1.0)).best == 1
    assert choice("loss", (0.5, 0.7), (0.9, 0.4), (0.0, 1.0)).best == 2
    assert choice("loss", (math.inf, 0.1), (3.0, 3.0), (9.0, 9.0)).best == 1, "a failed run is the worst"
    tied = choice("exact_match", (0.5, 0.5), (1.0, 1.0), (1.0, 1.0))
    assert tied.best == 1
    assert tied.notes(rates) == ["2 of 3 candidates have the best score; the first of them was chosen"]


def test_candidates_with_as_many_right_answers_are_tied():
    """Of 256 examples of three lengths 1,508 are right under both, and the means differ by 1e-16."""
    mean = lambda *right: sum(count / 256 for count in right) / 3
    rows = (mean(251, 251, 251), mean(251, 251, 253)), (mean(251, 251, 252),) * 2
    one = choice("exact_match", *rows)
    assert one.means[0] < one.means[1]
    assert (one.best, one.tied) == (0, 1)
    rates = vary("train.learning_rate", [1, 2])
    assert "2 of 2 candidates have the best score; the first of them was chosen" in one.notes(rates)


@given(
    st.sampled_from(["exact_match", "loss"]),
    st.lists(st.lists(st.sampled_from([None, 0.0, 0.25, 1.0]), min_size=2, max_size=2), min_size=2, max_size=5),
)
def test_no_candidate_has_a_better_mean_or_the_same_and_fewer_failed_runs_than_the_chosen_one(metric, rows):
    worst = math.inf if metric == "loss" else 0.0
    trials = tuple(
        tuple(Trial("0" * 16, "failed" if one is None else "done", worst if one is None else one) for one in row)
        for row in rows
    )
    found = Choice("0" * 16, {}, metric, trials)
    better = min if metric == "loss" else max
    means = [statistics.fmean(trial.score for trial in row) for row in trials]
    best = [number for number, mean in enumerate(means) if mean == better(means)]
    fewest = min(rows[number].count(None) for number in best)
    left = [number for number in best if rows[number].count(None) == fewest]
    assert (found.best, found.tied) == (left[0], len(left) - 1)


def test_a_candidate_whose_runs_failed_is_not_chosen_over_those_that_score_nothing():
    failed = tuple(Trial("0" * 16, "failed", 0.0) for _ in range(2))
    done = tuple(Trial("0" * 16, "done", 0.0) for _ in range(2))
    found = Choice("0" * 16, {}, "exact_match", (failed, done, done))
    assert found.best == 1
    assert found.notes(vary("model.embed_scale", [None, False, True])) == [
        "3 of 3 candidates have the best score; the first of them with the fewest failed runs was chosen",
        "2 of 6 tuning runs failed",
    ]


@pytest.mark.parametrize(
    "path", sorted((pathlib.Path(__file__).parents[2] / "experiments").glob("**/tuning.json")), ids=str
)
def test_committed_choices_are_read_and_are_those_of_the_rule(path):
    choices = read(path.parent)
    chosen = [family["chosen"] for family in json.loads(path.read_text())["families"]]
    assert choices.chosen == chosen


def test_a_family_that_chose_among_other_tuning_runs_is_refused_and_a_new_one_has_not_chosen():
    """Under the first candidate the runs are the same, and under the second the derived width is another one."""
    linked = ConfigDict({**BASE, "model": {"model": 32, "heads": 4, "hidden": 128}})
    plain = linked.to_dict()
    linked.model.hidden = 4 * linked.model.get_ref("model")
    both, widths = vary("model.encoding", ["rope", "nope"]), vary("model.model", [32, 64])
    found = made(linked, both[:1], widths)
    trials = tuple(tuple(Trial(run, "done", 1.0) for run in row) for row in found.families[0].ids)
    chosen = Choice(found.families[0].id, found.families[0].changes, "exact_match", trials)
    choices = Choices("", *asked(found), (chosen,))
    assert choices.of(made(linked, both, widths)) == (chosen,)
    told = (
        "tuning.json: model.encoding=rope chose among other tuning runs than those of the config. Choose another folder"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(told)} \\(--out\\)$"):
        choices.of(made(plain, both, widths))


def test_an_edge_is_that_of_each_number_and_of_no_word():
    candidates = product(vary("train.learning_rate", [1e-3, 3e-3, 1e-2]), vary("model.embed_scale", [False, True]))
    scores = [(0.0,)] * 6
    first, last = [(1.0,), *scores[1:]], [*scores[1:], (1.0,)]
    (small,), (large,) = (choice("exact_match", *rows).notes(candidates) for rows in (first, last))
    assert small == "train.learning_rate=0.001 is the smallest value that was tried: a better one may lie beyond"
    assert large.startswith("train.learning_rate=0.01 is the largest value")
    assert choice("exact_match", *scores[:2], (1.0,), *scores[3:]).notes(candidates) == []


def test_a_loss_of_text_is_chosen_by_its_mean_over_validation_lengths_at_the_last_step(tmp_path):
    """Three candidates by hand: 2.5 and 1.5 make 2.0; 1.0 and 2.8 make 1.9; the third one is not finite."""
    measured = {1e-3: (2.5, 1.5), 3e-3: (1.0, 2.8), 1e-2: (0.1, None)}

    def train(configs, directories, context):
        for config, directory in zip(configs, directories, strict=True):
            for step, better in ((5, 1.0), (10, 0.0)):  # at step 5 the first was best
                values = measured[config.train.learning_rate]
                values = [one and one - better * (config.train.learning_rate == 1e-3) for one in values]
                rows = [
                    {
                        "step": step,
                        "length": length,
                        "metric": metric,
                        "value": value,
                        "count": 1,
                        "split": "validation",
                    }
                    for length, value in zip((10, 20), values, strict=True)
                    for metric in ("token_accuracy", "loss_nonoverlapping", "loss_sliding")
                ]
                context.results(directory, *rows)

    found = made(BASE, seeds(2), vary("train.learning_rate", list(measured)), seeds=[8, 9])
    store = prepare(tmp_path / "tuning", "small", found.runs)
    with pytest.raises(ValueError, match=r"tuning run \w{16} in .* has not ended"):
        choose(found, store)
    run_here(store, train)
    made_choice = choose(found, store)
    assert made_choice.families[0].metric == "loss_nonoverlapping"
    assert made_choice.families[0].means == [2.0, 1.9, math.inf]
    assert made_choice.chosen == [1]


def test_a_score_that_is_missing_is_an_error(tmp_path):
    def train(configs, directories, context):
        row = {"step": 1, "length": 10, "metric": "exact_match", "value": 1.0, "count": 1, "split": "validation"}
        for directory in directories:
            context.results(directory, row)

    found = made(BASE, seeds(1))
    store = prepare(tmp_path / "tuning", "small", found.runs)
    run_here(store, train)
    with pytest.raises(ValueError, match="is done and has no exact_match at validation length 20"):
        choose(found, store)
