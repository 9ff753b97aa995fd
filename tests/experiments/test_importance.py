"""Importance is the gradient of each document's loss in each gate: planted heads, finite differences, documents alone."""

import numpy as np
import pytest

from experiments.head_pruning.importance import gate_gradients, head_importance, normalize_layers
from tests.evaluation import planted_models
from tests.evaluation.planted_models import HEADS, LAYERS

ONLY = 4
"""Head 1 of layer 1."""


def test_a_head_that_reaches_nothing_has_no_importance_at_all():
    found = head_importance(planted_models.with_only(ONLY), planted_models.documents())
    others = np.delete(found.score.reshape(-1), ONLY)
    assert (others == 0).all()
    assert (np.delete(found.documents.reshape(4, -1), ONLY, axis=1) == 0).all()
    assert found.score.reshape(-1)[ONLY] > 1e-4
    assert found.normalized.tolist() == [[0, 0, 0], [0, 1, 0]]


@pytest.mark.quick("3")
@pytest.mark.parametrize("last", [None, 3])
def test_gradients_are_finite_differences(x64, last):
    """Central differences of the loss, in double precision: their error of order step^2 is far below what is asked.

    The library takes the softmax in float32, so that gradients agree to its rounding.
    """
    model = planted_models.subject(dtype="float64", param_dtype="float64")
    tokens, step = planted_models.documents(), 1e-4
    at = np.array([[1.0, 0.7, 1.0], [0.2, 1.0, 1.3]])
    loss = lambda gate: planted_models.losses(model.logits(tokens, gate), tokens)[:, -(last or 8) :].mean(1)
    expected = np.zeros((4, LAYERS, HEADS))
    for place in np.ndindex(LAYERS, HEADS):
        up, down = at.copy(), at.copy()
        up[place] += step
        down[place] -= step
        expected[:, *place] = (loss(up) - loss(down)) / (2 * step)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(gate_gradients(model, tokens, at, last), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_every_document_has_its_own_gradient():
    model, tokens = planted_models.subject(), planted_models.documents()
    together = gate_gradients(model, tokens)
    alone = np.concatenate([gate_gradients(model, tokens[i : i + 1]) for i in range(len(tokens))])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-7)
    found = head_importance(model, tokens)
    np.testing.assert_array_equal(found.score, np.abs(together).mean(0))


def test_a_layer_is_divided_by_its_norm():
    np.testing.assert_allclose(normalize_layers(np.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0.0, 0.0]])


TOKENS = planted_models.documents()
WRONG = [
    (dict(tokens=TOKENS[:, :1]), r"a document of 2 tokens or more, .*, got \(4, 1\)"),
    (dict(tokens=TOKENS[:0]), r"a document of 2 tokens or more, .*, got \(0, 9\)"),
    (dict(tokens=TOKENS[0]), r"integers \[documents, length\], got int64 \(9,\)"),
    (dict(tokens=TOKENS.astype(float)), r"integers \[documents, length\], got float64 \(4, 9\)"),
    (dict(tokens=[[1, 2]]), r"integers \[documents, length\], got list"),
    (dict(gate=np.ones(3)), r"gate must have shape \(2, 3\), one factor per layer and head, got \(3,\)"),
    (dict(gate=np.ones((2, 4, 3))), r"gate must have shape \(2, 3\), .*, got \(2, 4, 3\)"),
    (dict(last=9), r"last must be in 1\.\.8 for documents of 9 tokens, got 9"),
    (dict(last=0), r"last must be in 1\.\.8 for documents of 9 tokens, got 0"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        head_importance(planted_models.subject(), **{"tokens": TOKENS, **change})
