"""Rotary diagnostics of heads whose queries and keys are known, and of frequencies worked out by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.positions import NoPE, PositionInterpolation, RoPE, T5Bias, compose
from experiments.reading_positions import rotary
from tests.evaluation import planted_heads as planted

THETA = planted.frequencies(8)


def test_use_of_a_head_that_is_known():
    found = rotary.frequency_use(planted.previous_by_rotation(160.0), planted.tokens(2))
    assert found.shape == (1, 2, 8)
    # Queries of length 160 and keys of length 1 in every pair; the scale is 1/4.
    np.testing.assert_allclose(found[0, 0], 40.0, rtol=1e-5)
    assert not found[0, 1].any()


def test_mean_scores_of_a_head_that_is_known():
    found = rotary.mean_scores(planted.previous_by_rotation(160.0), planted.tokens(2))
    expected = 40 * np.cos((np.arange(32)[:, None] - 1) * THETA[None, :]).sum(1)
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-3)
    assert found[0, 0].argmax() == 1
    assert not found[0, 1].any()


@pytest.mark.quick("half-heads0")
@pytest.mark.parametrize(
    ("layout", "heads"), [("half", {}), ("interleaved", {"heads": 4, "kv_heads": 2, "model": 32, "head_dim": 8})]
)
def test_scores_are_those_of_the_model_and_within_the_use(layout, heads):
    subject = planted.drawn(planted.config(**{"encoding": RoPE(layout=layout), "layers": 2, **heads}))
    # Of the same token twice, both rows have the same query and key in every layer, turned or not.
    tokens = np.array([[3, 3], [5, 5], [8, 8]])
    found = rotary.mean_scores(subject, tokens)
    weights = np.asarray(subject.weights(tokens), np.float64)[:, :, :, 1]
    np.testing.assert_allclose(
        found[..., 1] - found[..., 0], np.log(weights[..., 0] / weights[..., 1]).mean(1), atol=1e-4
    )
    use = rotary.frequency_use(subject, tokens)
    assert use.shape == (2, subject.heads, subject.config.sizes.head_dim // 2)
    assert (np.abs(found).max(-1) <= use.sum(-1)).all()


def test_pairs_of_both_layouts():
    x = jnp.array([3.0, 5.0, 4.0, 12.0, 7.0, 7.0])
    np.testing.assert_allclose(rotary.pair_norms(x, 2, "half"), [5, 13])
    np.testing.assert_allclose(rotary.pair_norms(x, 2, "interleaved"), [math.hypot(3, 5), math.hypot(4, 12)], rtol=1e-6)


def test_angles_that_training_has_not_shown():
    # Four pairs at base 10,000: 1, 1/10, 1/100, 1/1000 radians a token, so 6.28, 62.8, 628 and 6283 tokens a turn.
    found = rotary.reach(RoPE(), 8, trained=64, tested=128)
    np.testing.assert_allclose(found.frequency, [1, 0.1, 0.01, 0.001])
    np.testing.assert_allclose(found.wavelength, 2 * math.pi * np.array([1, 10, 100, 1000]))
    np.testing.assert_allclose(found.trained_angle, [63, 6.3, 0.63, 0.063])
    np.testing.assert_allclose(found.tested_angle, [127, 12.7, 1.27, 0.127])
    assert found.leaves.tolist() == [False, False, True, True]
    assert rotary.reach(RoPE(), 8, trained=63, tested=64).leaves.tolist() == [False, True, True, True]
    assert not rotary.reach(RoPE(), 8, trained=64, tested=64).leaves.any()


def test_pairs_that_do_not_turn_and_scalings():
    kept = rotary.reach(RoPE(keep=0.5), 8, 64, 128)
    assert kept.leaves.tolist() == [False] * 4
    assert np.isinf(kept.wavelength[2:]).all()
    stretched = rotary.reach(RoPE(scaling=PositionInterpolation(2.0)), 8, 64, 128)
    np.testing.assert_allclose(stretched.frequency, [0.5, 0.05, 0.005, 0.0005])


def test_rope_is_found_inside_a_composition():
    assert rotary.rotary_encoding(compose(RoPE(theta=7.0), T5Bias())) == RoPE(theta=7.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rotary.rotary_encoding(T5Bias()), "rotary diagnostics need RoPE, got T5Bias"),
        (lambda: rotary.reach(RoPE(), 8, 0, 4), "lengths must be at least 1, got trained=0 and tested=4"),
        (
            lambda: rotary.frequency_use(
                LoadedModel(planted.blank(planted.config(encoding=NoPE()))), planted.tokens(1)
            ),
            "rotary diagnostics need RoPE, got NoPE",
        ),
        (
            lambda: rotary.mean_scores(planted.previous_by_rotation(), planted.tokens(1) + 20),
            r"tokens must be in 0..11 for previous by rotation, got values in 20..31",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
