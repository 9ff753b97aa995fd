import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import EncodingParams, Sizes
from attnjax.positions.sandwich import Sandwich

RATIOS = {4: [2, 4, 6, 8], 3: [8 / 3, 16 / 3, 8]}


def given(ratio):
    return EncodingParams(head={"ratio": ratio})


def by_loops(width, theta, ratio, n):
    return sum(math.cos(n * theta ** (-2 * c / width)) for c in range(width // 2)) / ratio


@pytest.mark.parametrize("heads", RATIOS)
def test_ratios(heads):
    ratios = Sandwich().constants(Sizes(model=8, heads=heads, kv_heads=1, head_dim=8)).head["ratio"]
    assert ratios.dtype == np.float64
    np.testing.assert_allclose(ratios, RATIOS[heads], rtol=1e-7)


@pytest.mark.parametrize("encoding", [Sandwich(), Sandwich(width=6, theta=100.0)])
def test_bias_against_loops(encoding):
    n = np.array([[0, 1, -1, 7], [100, -3000, 65_536, 1_000_003]], np.int32)
    bias = jax.jit(jax.vmap(lambda ratio: encoding.bias(given(ratio), jnp.asarray(n))))(np.array(RATIOS[4], np.float32))
    assert bias.shape == (4, 2, 4)
    assert bias.dtype == jnp.float32
    expected = [[[by_loops(encoding.width, encoding.theta, r, int(m)) for m in row] for row in n] for r in RATIOS[4]]
    np.testing.assert_allclose(bias, expected, atol=5e-6)


def test_bias_in_double_precision(x64):
    """A ratio of 8/3 has no float32, and cosines in float32 are off in the seventh digit."""
    n = np.array([0, 1, -7, 3000, 65_536], np.int32)
    ratios = Sandwich().constants(Sizes(model=8, heads=3, kv_heads=1, head_dim=8)).head["ratio"]
    bias = jax.vmap(lambda ratio: Sandwich().bias(given(ratio), jnp.asarray(n)))(ratios)
    assert bias.dtype == jnp.float64
    expected = [[by_loops(128, 10_000.0, r, int(m)) for m in n] for r in RATIOS[3]]
    np.testing.assert_allclose(bias, expected, atol=1e-10)
    assert Sandwich().bias(given(np.float32(2.0)), jnp.arange(3)).dtype == jnp.float32


def test_bias_is_largest_and_known_at_distance_zero():
    bias = Sandwich().bias(given(np.float32(2.0)), jnp.arange(1000))
    assert bias[0] == 32
    assert np.all(bias[1:] < bias[0])


def test_fractional_distances():
    n = np.array([0.5, -0.5, 1000.25], np.float32)
    expected = [by_loops(128, 10_000.0, 2.0, float(m)) for m in n]
    np.testing.assert_allclose(Sandwich().bias(given(np.float32(2.0)), jnp.asarray(n)), expected, atol=5e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(width=7), "width must be even, got 7"),
        (dict(width=0), "width must be at least 2, got 0"),
        (dict(width=128.0), "width must be an integer, got 128.0"),
        (dict(theta=float("nan")), "theta must be positive and finite, got nan"),
        (dict(theta=-1.0), "theta must be positive and finite, got -1.0"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        Sandwich(**options)
