"""Agreement of two contenders: what counts as the same, and what must not; lengths by the table of suites."""

import jax
import numpy as np
import pytest

from attnjax import Mask, attend
from attnjax.positions import encoding
from experiments.speed.harness import TOLERANCE, Settings, agree, difference
from experiments.speed.peers.jax_nn import attention
from experiments.speed.suites import FLAX, JAX_NN
from experiments.speed.suites import attention as suite


def test_relative_to_each_array():
    ours, theirs = (np.array([1.0, 100.0]), np.array([20.0])), (np.array([1.0, 101.0]), np.array([21.0]))
    assert difference(ours, theirs) == pytest.approx(1.0 / 21.0)


def test_rounding_of_a_gradient_that_is_zero_is_no_difference():
    assert difference((np.array([3.0]), np.array([2e-8])), (np.array([3.0]), np.array([-1e-8]))) == pytest.approx(1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_that_is_not_a_number_agrees(bad):
    assert difference(np.array([bad]), np.array([1.0])) == difference(np.array([1.0]), np.array([bad])) == float("inf")
    assert difference(np.array([bad]), np.array([bad])) > TOLERANCE


@pytest.mark.quick("xpos", "t5")
@pytest.mark.parametrize("name", [name for name in suite.attending() if suite.has_peer(name)])
def test_peers_are_one_function(name):
    """Both libraries have our result, also where the maps widen queries and keys."""
    chosen = encoding(name)
    params, q, k, v, _ = suite.arguments(chosen, 9, B=2, N=2, H=4)
    ours = attend(q, k, v, encoding=chosen, params=params, mask=Mask(causal=True))
    for peer in (JAX_NN, FLAX):
        assert difference(ours, attention(peer, chosen, params, q, k, v)) < 5e-6


@pytest.mark.parametrize("name", suite.attending())
def test_every_encoding_that_acts_in_attention_can_be_measured(name):
    args = jax.eval_shape(lambda: suite.arguments(encoding(name), 9, B=2, N=2, H=4))
    assert jax.eval_shape(suite.ours(encoding(name)), *args[:4]).shape == (2, 9, 2, 4)


def test_what_no_array_says_has_no_peer():
    without = [name for name in suite.attending() if not suite.has_peer(name)]
    assert {"cope", "transformer_xl", "stick_breaking", "dape", "mrope", "fox", "path"} <= set(without)
    assert not {"sinusoidal", "learned"} & set(suite.attending())


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ([1.0, 2.0], r"differ by 0\.5 of the largest entry, at most 0\.0001"),
        ([1.0, np.nan], "differ by inf of the largest entry"),
        ([1.0], r"ours has shapes \{'w': \(1,\)\}, the peer \{'w': \(2,\)\}"),
    ],
)
def test_a_disagreement_is_an_error(ours, message):
    with pytest.raises(ValueError, match=f"logits: .*{message}"):
        agree("logits", {"w": np.array(ours)}, {"w": np.array([1.0, 4.0])})


def test_agreement_is_relative_to_the_largest_entry():
    assert agree("logits", [np.zeros(2), np.ones(1)], [np.full(2, 1e-3), np.full(1, 10.0)], 1.0) == 0.9


def test_lengths_are_those_of_the_table():
    assert Settings(print).lengths("bias") == (1024, 2048)
    assert Settings(print, smoke=True).lengths("bias") == (128,)
