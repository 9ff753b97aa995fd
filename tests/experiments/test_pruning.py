"""Pruning removes what the order says and nothing else: planted heads, slow formulas, one program for all gates."""

import numpy as np
import pytest

from experiments.head_pruning import pruning
from experiments.head_pruning.gates import gate_without
from experiments.head_pruning.importance import head_importance
from experiments.head_pruning.pruning import (
    ablation,
    every_head,
    importance_order,
    measure,
    pruning_curve,
    pruning_curves,
    random_orders,
    tenths,
)
from tests.evaluation import planted_models

ONLY, TOTAL = 4, 6
TOKENS = planted_models.documents()


def test_heads_that_reach_nothing_go_for_free_and_the_one_that_does_not():
    model = planted_models.with_only(ONLY)
    order = importance_order(model, TOKENS)
    assert order.tolist() == [0, 1, 2, 3, 5, ONLY]
    curve = pruning_curve(model, TOKENS, order)
    assert curve.kept.tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert (curve.loss[:6] == curve.loss[0]).all()
    assert (np.abs(curve.loss[6] - curve.loss[0]) > 1e-5).all()
    first = pruning_curve(model, TOKENS, [ONLY, 0, 1, 2, 3, 5])
    assert (first.loss[1:] == curve.loss[6]).all()
    alone = ablation(model, TOKENS).reshape(4, -1)
    assert (np.delete(alone, ONLY, axis=1) == 0).all()
    np.testing.assert_array_equal(alone[:, ONLY], curve.loss[6] - curve.loss[0])


@pytest.mark.quick("3")
@pytest.mark.parametrize("last", [None, 3])
def test_loss_and_accuracy_are_those_of_the_gated_logits(last):
    model = planted_models.subject()
    gate = np.array([[1, 0, 1], [1, 1, 0]], np.float32)
    logits, counted = np.asarray(model.logits(TOKENS, gate)), slice(-(last or 8), None)
    found = measure(model, TOKENS, gate, last)
    np.testing.assert_allclose(found.loss, planted_models.losses(logits, TOKENS)[:, counted].mean(1), rtol=1e-5)
    right = logits[:, :-1].argmax(2) == TOKENS[:, 1:]
    np.testing.assert_allclose(found.accuracy, right[:, counted].mean(1), rtol=1e-6)


def test_a_curve_removes_one_head_after_another():
    model, order = planted_models.subject(), [5, 0, 3, 1, 4, 2]
    curve = pruning_curve(model, TOKENS, order, stops=[6, 4, 1, 0])
    for place, removed in enumerate([[], [5, 0], [5, 0, 3, 1, 4], order]):
        gate = np.array([[float(layer * 3 + head not in removed) for head in range(3)] for layer in range(2)])
        np.testing.assert_array_equal(curve.loss[place], measure(model, TOKENS, gate).loss)
    assert len(np.unique(curve.loss.mean(1))) == 4


def test_ablation_is_the_loss_without_each_head_alone():
    model = planted_models.subject()
    found, whole = ablation(model, TOKENS), measure(model, TOKENS, np.ones((2, 3))).loss
    for layer, head in np.ndindex(2, 3):
        gate = np.ones((2, 3))
        gate[layer, head] = 0
        np.testing.assert_array_equal(found[:, layer, head], measure(model, TOKENS, gate).loss - whole)


def test_importance_is_computed_anew_with_the_heads_removed_so_far():
    model, removed = planted_models.subject(scale=0.8), []
    while len(removed) < TOTAL:
        score = head_importance(model, TOKENS, gate_without(model, removed)).normalized.reshape(-1)
        removed.append(min(set(range(TOTAL)) - set(removed), key=lambda head: score[head]))
    assert importance_order(model, TOKENS, recompute=True).tolist() == removed
    once = head_importance(model, TOKENS).normalized.reshape(-1)
    assert importance_order(model, TOKENS).tolist() == sorted(range(TOTAL), key=lambda head: once[head])
    assert importance_order(model, TOKENS).tolist() != removed, "a model in which this test can fail"
    assert importance_order(model, TOKENS, recompute=True, stops=[6, 0]).tolist() == sorted(
        range(TOTAL), key=lambda head: once[head]
    )


def test_one_program_measures_all_gates():
    model = planted_models.subject()
    pruning_curve(model, TOKENS, range(TOTAL))
    before = pruning._measure._cache_size()
    orders = random_orders(model, range(5))
    curves = pruning_curves(model, TOKENS, orders)
    ablation(model, TOKENS)
    assert pruning._measure._cache_size() == before
    assert [curve.order.tolist() for curve in curves] == [order.tolist() for order in orders]
    assert pruning_curves(model, TOKENS, []) == []


def test_random_orders_are_those_of_their_seeds():
    model = planted_models.subject()
    first, again = (random_orders(model, range(8)) for _ in range(2))
    assert [order.tolist() for order in first] == [order.tolist() for order in again]
    assert all(sorted(order.tolist()) == list(range(TOTAL)) for order in first)
    assert len({tuple(order.tolist()) for order in first}) > 4
    (fifth,) = random_orders(model, [5])
    assert fifth.tolist() == first[5].tolist()


def test_steps_by_hand():
    assert every_head(3) == [3, 2, 1, 0]
    assert tenths(20) == [20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0]
    assert tenths(144) == [144, 130, 115, 101, 86, 72, 58, 43, 29, 14, 0]
    assert tenths(3) == [3, 2, 1, 0]


WRONG = [
    (dict(order=[0, 1, 2, 3, 4, 6]), r"each of the heads 0\.\.5 once, got \[0, 1, 2, 3, 4, 6\]"),
    (dict(order=[0, 1, 2, 3, 4, 4]), r"each of the heads 0\.\.5 once"),
    (dict(order=[0, 1]), r"each of the heads 0\.\.5 once, got \[0, 1\]"),
    (dict(stops=[5, 0]), r"stops must descend from all 6 heads to 0, got \[5, 0\]"),
    (dict(stops=[6, 3]), r"stops must descend from all 6 heads to 0, got \[6, 3\]"),
    (dict(stops=[6, 3, 4, 0]), "stops must descend"),
    (dict(stops=[]), r"stops must descend from all 6 heads to 0, got \[\]"),
    (dict(tokens=TOKENS[:, :1]), r"a document of 2 tokens or more, .*, got \(4, 1\)"),
    (dict(last=9), r"last must be in 1\.\.8"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_bad_input_of_a_curve(change, message):
    arguments = {"tokens": TOKENS, "order": list(range(TOTAL)), **change}
    with pytest.raises(ValueError, match=message):
        pruning_curve(planted_models.subject(), **arguments)


UNKNOWN = [
    ([6], r"heads are numbered 0\.\.5 \(layer \* 3 \+ head\), got \[6\]"),
    ([0, -1], r"heads are numbered 0\.\.5 .*, got \[-1\]"),
    ([2, 2], r"each head can be removed once, got \[2, 2\]"),
    ([0.5], r"heads to remove must be a list of whole numbers, got \[0\.5\]"),
    (3, "heads to remove must be a list of whole numbers, got 3"),
]


@pytest.mark.parametrize(("removed", "message"), UNKNOWN)
def test_unknown_heads(removed, message):
    with pytest.raises(ValueError, match=message):
        gate_without(planted_models.subject(), removed)


def test_a_gate_of_another_shape():
    with pytest.raises(ValueError, match=r"gate must have shape \(2, 3\), .*, got \(3, 2\)"):
        measure(planted_models.subject(), TOKENS, np.ones((3, 2)))
