"""Angles against a float64 oracle: exact at any position, of either sign, known or traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.angles import angles, exact, geometric, rounded, select
from attnjax.positions.sinusoidal import sinusoidal_table

PAIRS = 32
RADIANS = 10_000.0 ** (-np.arange(PAIRS) / PAIRS)
FAR = np.concatenate([np.arange(200), np.random.default_rng(0).integers(0, 1_048_577, 2000), [1_048_575, 1_048_576]])


def table(pos):
    return angles(pos, exact(RADIANS))


def difference(angle: jax.Array, oracle: np.ndarray) -> float:
    """The largest distance of two angles on the circle."""
    turned = np.asarray(angle, np.float64) - oracle
    return np.abs((turned + np.pi) % (2 * np.pi) - np.pi).max()


def test_geometric_frequencies_are_those_of_the_paper():
    np.testing.assert_allclose(geometric(PAIRS, 10_000.0), RADIANS, rtol=1e-14)
    np.testing.assert_allclose(geometric(2, 10_000.0, width=8), [1.0, 0.1], rtol=1e-14)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("traced", [True, False])
def test_angles_are_accurate_up_to_a_million(sign, dtype, traced):
    pos = (sign * FAR).astype(dtype)
    angle = jax.jit(table)(pos) if traced else table(pos)
    assert angle.dtype == jnp.float32
    assert difference(angle, sign * FAR[:, None].astype(np.float64) * RADIANS) < 1e-6
    assert np.abs(angle).max() < 3.1416


def test_fractional_positions_keep_their_fraction():
    pos = np.array([0.25, -0.25, 3.5, -3.5, 1000.125, 1_000_000.5, -1_000_000.5])
    angle = jax.jit(table)(pos.astype(np.float32))
    assert difference(angle, pos[:, None] * RADIANS) < 1e-6


def test_two_positions_differ_by_the_angle_of_their_distance_wherever_they_are():
    far_table = jax.jit(table)
    near = far_table(jnp.arange(64))
    for offset in (65_536, 1_048_576, 2**31 - 64):
        far = np.asarray(far_table(jnp.arange(64) + offset), np.float64)
        assert difference(near - near[:1], far - far[:1]) < 1e-6


def test_all_positions_up_to_65535_are_distinct():
    rows = np.asarray(sinusoidal_table(jnp.arange(65_536), 2 * PAIRS))
    assert len(np.unique(rows, axis=0)) == 65_536


def test_frequencies_above_a_turn_count_modulo_a_turn():
    pos = np.arange(-1000, 1000)
    assert difference(angles(pos, exact(np.array([7.5]))), pos[:, None] * 7.5) < 1e-6


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_frequencies_must_be_finite(bad):
    with pytest.raises(ValueError, match="angular frequencies must be finite"):
        exact(np.array([1.0, bad]))


def test_rounded_frequencies_are_those_of_float32():
    angle = angles(jnp.arange(512), rounded(jnp.asarray(RADIANS, jnp.float32)))
    assert difference(angle, np.arange(512)[:, None] * RADIANS) < 512 * 2.0**-23


@pytest.mark.parametrize("start", [0, -3, 0.25, 1_000_000])
def test_the_derivative_by_a_frequency_is_the_position(start, x64):
    """Whole turns are integers, which passed no gradient on: a frequency in `params` was not learned, without a word."""
    pos, weights = start + np.arange(5), np.random.default_rng(0).normal(size=(5, PAIRS)).astype(np.float32)
    pos = jnp.asarray(pos, jnp.float32 if isinstance(start, float) else jnp.int32)
    total = lambda radians: (weights * angles(pos, rounded(radians))).sum()
    radians = jnp.asarray(RADIANS, jnp.float32)
    np.testing.assert_allclose(jax.grad(total)(radians), (weights * np.asarray(pos)[:, None]).sum(0), rtol=1e-5)
    _, forward = jax.jvp(total, (radians,), (jnp.ones_like(radians),))
    np.testing.assert_allclose(forward, (weights * np.asarray(pos)[:, None]).sum(), rtol=1e-5)


@pytest.mark.parametrize("flag", [True, False])
def test_select_takes_one_of_two_sets(flag):
    one, two = exact(RADIANS), exact(RADIANS / 2)
    chosen = jax.jit(lambda flag: angles(FAR, select(flag, one, two)))(flag)
    assert difference(chosen, FAR[:, None] * (RADIANS if flag else RADIANS / 2)) < 1e-6


def test_double_precision_follows_the_dtype(x64):
    pos = np.array([0.5, -3.0, 1_000.25])
    angle = angles(jnp.asarray(pos), exact(RADIANS), jnp.float64)
    assert angle.dtype == jnp.float64
    np.testing.assert_allclose(angle, pos[:, None] * RADIANS, rtol=1e-15)
