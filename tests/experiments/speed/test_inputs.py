"""Agreement of two contenders: what counts as the same, and what must not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import Mask, Sizes, attend
from attnjax.positions import encoding, learns
from experiments.speed.inputs import TOLERANCE, difference
from experiments.speed.peers.attention import FLAX, JAX_NN, NNX, attention


def test_relative_to_each_array():
    ours, theirs = (np.array([1.0, 100.0]), np.array([20.0])), (np.array([1.0, 101.0]), np.array([21.0]))
    assert difference(ours, theirs) == pytest.approx(1.0 / 21.0)


def test_rounding_of_a_gradient_that_is_zero_is_no_difference():
    assert difference((np.array([3.0]), np.array([2e-8])), (np.array([3.0]), np.array([-1e-8]))) == pytest.approx(1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_that_is_not_a_number_agrees(bad):
    assert difference(np.array([bad]), np.array([1.0])) == difference(np.array([1.0]), np.array([bad])) == float("inf")
    assert difference(np.array([bad]), np.array([bad])) > TOLERANCE


@pytest.mark.parametrize("name", ["nope", "rope", "pope", "fire"])
def test_peers_are_one_function(name):
    """Three libraries, one result, also where the maps widen queries and keys."""
    q, k, v = (jnp.asarray(np.random.default_rng(i).normal(size=(2, 9, 2, 4)), jnp.float32) for i in range(3))
    chosen = encoding(name)
    params = chosen.init(jax.random.key(0), Sizes(8, 2, 2, 4)) if learns(chosen) else None
    ours = attend(q, k, v, encoding=chosen, params=params, mask=Mask(causal=True))
    for peer in (JAX_NN, FLAX, NNX):
        assert difference(attention(peer, chosen, params, q, k, v), ours) < 2e-6
