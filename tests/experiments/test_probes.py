"""Probes find positions where they are planted, and nothing where there is nothing."""

import jax
import numpy as np
import pytest

from attnjax.positions import NoPE, Sinusoidal
from experiments.reading_positions.probes import linear_probe, position_probe, positions, ridge, shuffled, untrained
from tests.evaluation import planted_models

DOCUMENTS, LENGTH, FITTED, WIDTH = 32, 20, 12, 6
TARGET = positions(DOCUMENTS, LENGTH)


def noise(seed=0, width=WIDTH):
    return np.random.default_rng(seed).normal(size=(DOCUMENTS, LENGTH, width))


def test_a_position_that_is_there_is_found_at_every_length():
    direction = np.random.default_rng(3).normal(size=WIDTH)
    hidden = noise()
    hidden -= (hidden @ direction / (direction @ direction))[..., None] * direction
    states = np.stack([hidden + TARGET[..., None] * direction, noise(seed=1)])
    found = linear_probe(states, TARGET, FITTED)
    for scores in (found.within, found.beyond):
        assert scores.value[0] == pytest.approx(1, abs=1e-9)
        assert scores.low[0] == pytest.approx(1, abs=1e-9)
    assert found.penalty[0] == 1e-8
    assert (found.within.low <= found.within.value).all()
    assert (found.within.value <= found.within.high).all()


def test_noise_holds_no_position():
    """80 features and 192 tokens to fit: what is learned by heart does not carry over."""
    found = linear_probe(np.stack([noise(width=80), noise(seed=1, width=80)]), TARGET, FITTED)
    assert (found.within.value < 0.05).all()
    assert (found.within.low < 0).all()
    assert (found.beyond.value < 0.05).all()
    assert (found.penalty >= 0.1).all(), "the strongest penalties are best where there is nothing to find"


def test_what_stops_counting_fails_beyond():
    """min(t, 11) is exact at 0 .. 11 and 11 from there on: R2 = 1 - sum_{n=1..8} n^2 / sum_{12..19} (t - 15.5)^2."""
    states = np.minimum(TARGET, FITTED - 1)[None, ..., None].astype(float)
    found = linear_probe(states, TARGET, FITTED)
    assert found.within.value[0] == pytest.approx(1, abs=1e-9)
    assert found.beyond.value[0] == pytest.approx(1 - 204 / 42, rel=1e-6)


def test_no_positions_beyond():
    assert linear_probe(noise()[None], TARGET, LENGTH).beyond is None


def test_ridge_is_least_squares_with_more_rows():
    """|w|^2 is the squared error of D rows more, sqrt(n penalty) on the diagonal and 0 as their target."""
    x, y = np.random.default_rng(5).normal(size=(50, 4)) + 3.0, np.random.default_rng(6).normal(size=50)
    penalties = np.array([1e-6, 0.1, 10.0])
    weights, level = ridge(x, y, penalties)
    for penalty, w, b in zip(penalties, weights, level):
        rows = np.concatenate([x - x.mean(0), np.sqrt(50 * penalty) * np.eye(4)])
        expected = np.linalg.lstsq(rows, np.concatenate([y - y.mean(), np.zeros(4)]), rcond=None)[0]
        np.testing.assert_allclose(w, expected, rtol=1e-10, atol=1e-12)
        assert b == pytest.approx(y.mean() - x.mean(0) @ expected, rel=1e-10)


def test_shuffled_positions_cannot_be_learned():
    mixed = shuffled(TARGET, FITTED, seed=0)
    assert (np.sort(mixed[:, :FITTED]) == np.arange(FITTED)).all()
    assert (np.sort(mixed[:, FITTED:]) == np.arange(FITTED, LENGTH)).all()
    assert (mixed == shuffled(TARGET, FITTED, seed=0)).all()
    assert (mixed != shuffled(TARGET, FITTED, seed=1)).any()
    assert linear_probe(TARGET[None, ..., None].astype(float), mixed, FITTED).within.value[0] < 0.05


@pytest.mark.slow
def test_sinusoids_are_read_from_the_input_and_tokens_say_nothing():
    """The input of the first layer: sines of the position and a token, or a token alone."""
    tokens = planted_models.documents(DOCUMENTS, LENGTH)
    first = {}
    for encoding in (Sinusoidal(), NoPE()):
        model = planted_models.subject(encoding=encoding, layers=1)
        probes = position_probe(model, tokens, FITTED)
        assert probes.trained.within.value.shape == (2,)
        first[type(encoding)] = [probe.within.value[0] for probe in probes]
    trained, control, mixed = first[Sinusoidal]
    assert trained > 0.8, "the tokens beside them are all that stands in the way"
    assert control > 0.8
    assert mixed < 0.05
    assert max(first[NoPE]) < 0.05


def test_an_untrained_model_has_the_same_config_and_other_numbers():
    model = planted_models.subject()
    one, same, other = untrained(model, 0), untrained(model, 0), untrained(model, 1)
    assert one.config == model.config
    shapes = lambda subject: jax.tree.map(lambda leaf: leaf.shape, subject.params)
    assert shapes(one) == shapes(model)
    embedding = lambda subject: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(subject.params)])
    assert (embedding(one) == embedding(same)).all()
    assert (embedding(one) != embedding(other)).any()
    assert (embedding(one) != embedding(model)).any()


WRONG = [
    (dict(states=noise()), r"states must be \[layers, B, T, D\] and target \[B, T\], got \(32, 20, 6\) and \(32, 20\)"),
    (dict(target=TARGET[:, 1:]), r"states must be .*, got \(1, 32, 20, 6\) and \(32, 19\)"),
    (dict(states=noise()[None, :7], target=TARGET[:7]), "needs 8 documents or more, .*, got 7"),
    (dict(fitted=1), "fitted must leave 2 positions or more to fit, .*, of 20, got 1"),
    (dict(fitted=19), "and none or 2 or more beyond, of 20, got 19"),
    (dict(fitted=21), "of 20, got 21"),
    (dict(penalties=[]), r"penalties must be finite numbers above 0, got \[\]"),
    (dict(penalties=[0.0]), r"penalties must be finite numbers above 0, got \[0\.0\]"),
    (dict(states=noise()[None] * np.nan), "states must be finite"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        linear_probe(**{"states": noise()[None], "target": TARGET, "fitted": FITTED, **change})
