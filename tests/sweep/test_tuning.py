"""Which families a sweep has, what each is tuned over, and which candidate hand-made scores choose."""

import math
import pathlib

import pytest
from ml_collections import ConfigDict

from attnjax.config import override, parse, run_id
from attnjax.sweep import groups, plan, prepare, product, run_here, seeds, vary
from attnjax.sweep.choices import Choice, Trial, choose, ranked, read
from attnjax.sweep.tuning import Tuning, tuning

BASE = {"name": "small", "task": {"length_max": 20}, "evaluate": {"lengths": [10, 40], "validation_lengths": [10, 20]}}
RATES = vary("train.learning_rate", [1e-3, 3e-3])


def made(config, sweep, candidates=RATES, **options) -> Tuning:
    return tuning(config, plan(config, sweep, held=options.get("held")), candidates, **options)


def test_seeds_and_tuned_fields_make_no_family():
    sweep = product(vary("model.encoding", ["rope", "nope"]), vary("train.learning_rate", [1.0, 2.0]), seeds(3))
    found = made(BASE, sweep)
    assert [family.changes for family in found.families] == [{"model.encoding": "rope"}, {"model.encoding": "nope"}]
    assert [len(family.planned) for family in found.families] == [6, 6]
    assert len(found.tuned([0, 1])) == 6, "runs that differed in the tuned field alone are one"


def test_all_families_have_the_same_candidates_and_seeds_and_rates_share_a_program():
    sweep = product(vary("model.encoding", ["rope", "nope"]), seeds(2))
    candidates = product(vary("model.embed_scale", [False, True]), vary("train.learning_rate", [1e-3, 3e-3, 1e-2]))
    found = made(BASE, sweep, candidates)
    wanted = {(*one.values(), seed) for one in candidates for seed in (10_000, 10_001)}
    for family in found.families:
        configs = [one.config for one in sum(family.runs, ())]
        assert {(one.model.embed_scale, one.train.learning_rate, one.seed) for one in configs} == wanted
    # Two encodings that have a program in common, three rates, two seeds.
    assert [len(group) for group in groups([one.config for one in found.runs])] == [12, 12]


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


def chosen(metric, rows) -> Choice:
    """The choice from rows of (score, loss, state), one for each candidate."""
    trials = tuple(tuple(Trial("0" * 16, *(*one[2:], "done")[:1], *one[:2]) for one in row) for row in rows)
    ranks = ranked(metric, trials)
    return Choice("0" * 16, {}, metric, trials, ranks.index(min(ranks)))


def choice(metric, *scores) -> Choice:
    return chosen(metric, [[(score, math.inf) for score in row] for row in scores])


def test_the_best_mean_is_chosen():
    assert choice("exact_match", (0.5, 0.7), (0.9, 0.4), (0.0, 1.0)).best == 1
    assert choice("loss", (0.5, 0.7), (0.9, 0.4), (0.0, 1.0)).best == 2
    assert choice("loss", (math.inf, 0.1), (3.0, 3.0), (9.0, 9.0)).best == 1, "a failed run is the worst"


def test_ties_of_a_saturated_score_are_broken_by_the_validation_loss():
    """As for copying, where every candidate answers all examples within the trained lengths."""
    losses = [(0.3, 0.5), (0.2, 0.1), (0.1, 0.4)]
    tied = chosen("exact_match", [[(1.0, loss) for loss in row] for row in losses])
    assert (tied.best, tied.tied) == (1, 2)
    (note,) = tied.notes(vary("train.learning_rate", [1, 2, 3]))
    assert "3 of 3 candidates" in note
    assert "lower validation loss" in note
    assert choice("exact_match", (0.5, 0.5), (1.0, 1.0), (1.0, 1.0)).best == 1, "the first, where no loss is known"


def test_candidates_with_as_many_right_answers_are_tied():
    """Of 256 examples of three lengths 1,508 are right under both, and the means differ by 1e-16."""
    mean = lambda *right: sum(count / 256 for count in right) / 3
    one = choice("exact_match", (mean(251, 251, 251), mean(251, 251, 253)), (mean(251, 251, 252),) * 2)
    assert one.means[0] < one.means[1]
    assert (one.best, one.tied) == (0, 1)


def test_a_candidate_whose_runs_failed_is_not_chosen_over_those_that_score_nothing():
    done, failed = [(0.0, math.inf)] * 2, [(0.0, math.inf, "failed")] * 2
    found = chosen("exact_match", [failed, done, done])
    assert found.best == 1
    notes = found.notes(vary("model.embed_scale", [None, False, True]))
    assert "fewer failed" in notes[0]
    assert "2 of 6" in notes[1]


@pytest.mark.parametrize(
    "path",
    sorted((pathlib.Path(__file__).parents[2] / "experiments").glob("**/tuning.json")),
    ids=lambda path: path.parent.name,
)
def test_committed_choices_are_read_and_are_those_of_the_rule(path):
    for one in read(path.parent).families:
        ranks = ranked(one.metric, one.trials)
        assert one.best == ranks.index(min(ranks))


def test_an_edge_is_that_of_each_number_and_of_no_word():
    candidates = product(vary("train.learning_rate", [1e-3, 3e-3, 1e-2]), vary("model.embed_scale", [False, True]))
    for best, told in ((0, ["0.001 is the smallest"]), (5, ["0.01 is the largest"]), (2, [])):
        notes = choice("exact_match", *[(float(number == best),) for number in range(6)]).notes(candidates)
        assert [word for word in told if word in notes[0]] == told
        assert len(notes) == len(told)


def test_a_loss_of_text_is_chosen_by_its_mean_over_validation_lengths_at_the_last_step(tmp_path):
    """Three candidates by hand: 2.5 and 1.5 make 2.0; 1.0 and 2.8 make 1.9; the third one is not finite."""
    measured = {1e-3: (2.5, 1.5), 3e-3: (1.0, 2.8), 1e-2: (0.1, None)}

    def train(configs, directories, context):
        for config, directory in zip(configs, directories, strict=True):
            for step, better in ((5, 1.0), (10, 0.0)):  # at step 5 the first was best
                values = measured[config.train.learning_rate]
                values = [one and one - better * (config.train.learning_rate == 1e-3) for one in values]
                for length, value in zip((10, 20), values, strict=True):
                    for metric in ("token_accuracy", "loss_nonoverlapping", "loss_sliding"):
                        row = {"step": step, "length": length, "metric": metric, "value": value}
                        context.results(directory, {**row, "count": 1, "split": "validation"})

    found = made(BASE, seeds(2), vary("train.learning_rate", list(measured)), seeds=[8, 9])
    store = prepare(tmp_path / "tuning", "small", found.runs)
    run_here(store, train)
    (one,) = choose(found, store)
    assert (one.metric, one.means, one.best) == ("loss_nonoverlapping", [2.0, 1.9, math.inf], 1)


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


@pytest.mark.parametrize(
    ("candidates", "seeds", "told"),
    [
        ([{"train.steps": 2}], [5], "at least 2 .* got 1"),
        ([{"train.steps": 2}, 3], [5], "candidate 1 .* got 3"),
        ([{"train.steps": 2}, {"train.batch": 2}], [5], "candidate 1 changes train.batch"),
        ([{"train.steps": 2}, {"train.steps": 2}], [5], "the same"),
        ([{"evaluate.examples": 2}, {"evaluate.examples": 4}], [5], "evaluate.examples"),
        ([{"train.steps": 2}, {"train.steps": -1}], [5], "candidate 1 .*steps"),
        (RATES, [1, 1], r"got \[1, 1\]"),
        (RATES, [-1], "seed must .* got -1"),
        (RATES, [], r"got \[\]"),
        (RATES, [0], "seed 0 is both"),
    ],
)
def test_what_cannot_be_tuned_is_named(candidates, seeds, told):
    with pytest.raises(ValueError, match=told):
        made(BASE, vary("model.encoding", ["rope", "nope"]), candidates, seeds=seeds)


@pytest.mark.parametrize(("lengths", "told"), [([], "empty"), ([10, 40], "1 .. .*20, .* 40")])
def test_validation_is_within_the_trained_lengths(lengths, told):
    with pytest.raises(ValueError, match=told):
        made({**BASE, "evaluate": {"lengths": [40], "validation_lengths": lengths}}, seeds(1))
