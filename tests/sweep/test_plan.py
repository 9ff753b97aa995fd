"""Sweeps: what the combinators make, and that runs, cells and populations are told apart as they should be."""

import pytest

from attnjax.config import cell_id, override, parse
from attnjax.sweep import chain, expand, groups, plan, population_key, product, seeds, vary

A, B = vary("train.steps", [5, 6]), vary("train.batch", [7, 8])


def test_product_changes_the_last_factor_fastest_and_chain_goes_on():
    assert product(A, B) == [
        {"train.steps": 5, "train.batch": 7},
        {"train.steps": 5, "train.batch": 8},
        {"train.steps": 6, "train.batch": 7},
        {"train.steps": 6, "train.batch": 8},
    ]
    assert product() == [{}]
    assert product(A, []) == []
    assert product(iter(A), (one for one in B)) == product(A, B)
    assert chain(A, B) == [{"train.steps": 5}, {"train.steps": 6}, {"train.batch": 7}, {"train.batch": 8}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: product(A, A), "two sweeps set 'train.steps'"),
        (lambda: plan({}, seeds(0)), "the sweep is empty"),
        (lambda: plan({}, []), "the sweep is empty"),
        (lambda: plan({}, [{}, {"train.stepz": 3}]), "entry 1 of the sweep: unknown key 'train.stepz' .did you mean"),
        (lambda: plan({}, [3]), "entry 0 of the sweep must be a table"),
    ],
)
def test_mistakes_are_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_plan_has_each_run_once_in_the_order_of_the_sweep():
    sweep = chain(vary("seed", [3, 1, 2]), vary("seed", [1, 4]), [{"train.steps": 1000}])
    runs = expand({}, sweep)
    assert [run.seed for run in runs] == [3, 1, 2, 4, 0]
    assert [one.changes for one in plan({}, sweep)][:2] == [{"seed": 3}, {"seed": 1}]


def test_populations_differ_only_in_seeds_and_rates():
    rates = vary("train.learning_rate", [1e-3, 1e-4])
    runs = expand({}, product(vary("model.encoding", ["rope", "alibi"]), rates, seeds(3)))
    assert len({cell_id(run) for run in runs}) == 4
    found = groups(runs)
    assert [len(group) for group in found] == [6, 6]
    assert [{run.model.encoding.name for run in group} for group in found] == [{"rope"}, {"alibi"}]
    assert [len(group) for group in groups(runs, limit=4)] == [4, 2, 4, 2]
    assert [len(group) for group in groups(runs, key=cell_id)] == [3, 3, 3, 3]


def test_any_other_difference_is_another_population():
    changes = [{"name": "x"}, {"train": {"batch": 3}}, {"train": {"warmup": 3}}, {"task": {"options": {"a": 1}}}]
    assert len({population_key(parse(change)) for change in [{}, *changes]}) == 5


def test_a_scaling_that_is_no_table_is_planned_and_left_to_the_check():
    found = plan({"model": {"encoding": {"name": "rope", "options": {"scaling": "yarn"}}}}, seeds(2))
    assert len(groups([one.config for one in found])) == 1


ENCODINGS = vary("model.encoding", ["rope", {"name": "rope", "options": {"theta": 1.0, "layout": "half"}}])
THETA, SEEDS = "model.encoding.options.theta", [{"seed": 5, "data_seed": 5}, {"seed": 6, "data_seed": 6}]


@pytest.mark.parametrize(
    ("sweep", "held", "factors", "expected"),
    [
        (A, {"train": {"batch": 3}}, [{}], [{}]),
        (product([{"model.encoding": "rope"}], vary(THETA, [5.0, 6.0])), {"model.encoding": "alibi"}, [{}], [{}]),
        (product(A, seeds(3)), {}, SEEDS, product(A, SEEDS)),
        (ENCODINGS, {THETA: 7.0}, [{}], ENCODINGS),
    ],
    ids=["a table", "a table around", "factors", "inside a table"],
)
def test_what_the_command_line_says_wins_over_the_sweep_and_equal_runs_are_one(sweep, held, factors, expected):
    """Each run is the config with what is held and its changes, the longer keys last."""
    runs = plan({}, sweep, held=held, factors=factors)
    assert [one.changes for one in runs] == expected
    assert [one.config for one in runs] == [parse(override({}, {**held, **changes})) for changes in expected]


def test_a_field_inside_of_encodings_by_layer_cannot_be_held():
    with pytest.raises(ValueError, match=f"entry 0 of the sweep: {THETA} cannot be set: .* per layer"):
        plan({}, vary("model.encoding", [["rope", "nope"]]), held={THETA: 7.0})


def test_runs_that_become_equal_do_not_count_against_the_bound(monkeypatch):
    monkeypatch.setattr("attnjax.config.files.MOST_RUNS", 40)
    assert len(plan({}, product(A, seeds(20)), factors=seeds(20))) == 40
    with pytest.raises(ValueError, match="at most 40 runs"):
        plan({}, product(A, seeds(20)), factors=seeds(21))
