"""Sweeps: what the combinators make, and that runs, cells and populations are told apart as they should be."""

import pytest

from attnjax.config import RunConfig, cell_id, parse, run_id
from attnjax.sweep import chain, expand, groups, plan, population_key, product, seeds, subsample, vary, zipped

A, B = vary("train.steps", [5, 6]), vary("train.batch", [7, 8])


def test_product_changes_the_last_factor_fastest():
    assert product(A, B) == [
        {"train.steps": 5, "train.batch": 7},
        {"train.steps": 5, "train.batch": 8},
        {"train.steps": 6, "train.batch": 7},
        {"train.steps": 6, "train.batch": 8},
    ]
    assert product() == [{}]
    assert product(A, []) == []


def test_zip_and_chain():
    assert zipped(A, B) == [{"train.steps": 5, "train.batch": 7}, {"train.steps": 6, "train.batch": 8}]
    assert chain(A, B) == [{"train.steps": 5}, {"train.steps": 6}, {"train.batch": 7}, {"train.batch": 8}]
    assert product(iter(A), (one for one in B)) == product(A, B)


def test_subsample_is_the_same_every_time_and_keeps_the_order():
    numbers = vary("seed", range(100))
    chosen = [one["seed"] for one in subsample(numbers, 10, seed=3)]
    assert chosen == [one["seed"] for one in subsample(numbers, 10, seed=3)] == sorted(chosen)
    assert len(set(chosen)) == 10
    assert chosen != [one["seed"] for one in subsample(numbers, 10, seed=4)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: product(A, A), "two sweeps set 'train.steps'"),
        (lambda: zipped(A, seeds(3)), "equally long, got 2, 3"),
        (lambda: seeds(0), "at least 1, got 0"),
        (lambda: seeds(True), "at least 1, got True"),
        (lambda: subsample(A, 3), "a count of 1 .. 2, got 3"),
        (lambda: plan({}, []), "the sweep is empty"),
        (lambda: plan({}, [{}, {"train.stepz": 3}]), "entry 1 of the sweep: unknown key 'train.stepz' .did you mean"),
        (lambda: plan({}, [{"train.steps": -1}]), "entry 0 of the sweep: train.steps must be"),
        (lambda: plan({}, [3]), "entry 0 of the sweep must be a table"),
        (lambda: groups([RunConfig()], limit=0), "at least 1 run, got 0"),
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


def test_encodings_may_be_swept_by_name_and_by_option():
    runs = expand({}, product(vary("model.encoding", ["rope", {"name": "rope", "options": {"fraction": 0.5}}]), A))
    assert len({run_id(run) for run in runs}) == 4
    runs = expand({}, product(vary("model.encoding", ["rope"]), vary("model.encoding.options.theta", [10.0, 20.0])))
    assert [run.model.encoding.options["theta"] for run in runs] == [10.0, 20.0]


def test_populations_differ_only_in_seeds_and_rates():
    rates = vary("train.learning_rate", [1e-3, 1e-4])
    runs = expand({}, product(vary("model.encoding", ["rope", "alibi"]), rates, seeds(3)))
    assert len({cell_id(run) for run in runs}) == 4
    found = groups(runs)
    assert [len(group) for group in found] == [6, 6]
    assert [{run.model.encoding.name for run in group} for group in found] == [{"rope"}, {"alibi"}]
    assert [len(group) for group in groups(runs, limit=4)] == [4, 2, 4, 2]
    assert [len(group) for group in groups(runs, key=cell_id)] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    "change", [{"name": "x"}, {"train": {"batch": 3}}, {"model": {"window": 3}}, {"task": {"options": {"a": 1}}}]
)
def test_any_other_difference_is_another_population(change):
    assert population_key(parse(change)) != population_key(RunConfig())
