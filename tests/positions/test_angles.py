"""Angles against whole numbers of Python, exact at any position of either sign, and sines and cosines against NumPy."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.angles import angles, exact, sine_cosine
from tests.positions.hooks import close, run

RADIANS = 10_000.0 ** (-np.arange(32) / 32)
TWO_PI = Fraction("6.283185307179586476925286766559005768394338798750211641949889")
DRAWN = np.random.default_rng(0).integers(0, 2**20, 100)
FAR = np.unique(np.concatenate([np.arange(64), *(2**p + np.arange(-1, 2) for p in range(7, 31)), DRAWN, [2**31 - 1]]))


def true_angles(pos: np.ndarray, radians: np.ndarray) -> np.ndarray:
    """pos * frequency modulo a turn, as fractions of whole numbers."""
    turns = [Fraction(float(f)) / TWO_PI for f in radians]
    remainders = [[Fraction(float(p)) * f - round(Fraction(float(p)) * f) for f in turns] for p in pos]
    return np.array([[float(r * TWO_PI) for r in row] for row in remainders])


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance of two angles on the circle."""
    return np.abs((found.astype(np.float64) - expected + np.pi) % (2 * np.pi) - np.pi).max()


def test_whole_positions_are_exact_wherever_they_are():
    pos = np.concatenate([FAR, -FAR, [-(2**31)]]).astype(np.int32)
    found = run(lambda pos: angles(pos, exact(RADIANS)), pos)
    assert found.dtype == np.float32
    assert np.abs(found).max() <= np.float32(np.pi)
    assert apart(found, true_angles(pos, RADIANS)) < 4e-7


def test_fractional_positions_keep_their_fraction():
    pos = np.float32([0.25, -0.25, 3.5, -3.5, 1000.125, 1_000_000.5, -1_000_000.5, 2.0**30, *FAR[:64]])
    assert apart(run(lambda pos: angles(pos, exact(RADIANS)), pos), true_angles(pos, RADIANS)) < 1e-6


def test_frequencies_above_a_turn_count_modulo_a_turn():
    pos = np.arange(-1000, 1000)
    fast = np.array([7.5, -0.5])
    assert apart(run(lambda pos: angles(pos, exact(fast)), pos), true_angles(pos, fast)) < 1e-6
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="angular frequencies must be finite"):
            exact(np.array([1.0, bad]))


def errors(angle: np.ndarray) -> list[float]:
    found = run(sine_cosine, angle)
    return [np.abs(wave - f(angle.astype(np.float64))).max() for wave, f in zip(found, (np.sin, np.cos), strict=True)]


def test_sine_and_cosine_keep_their_bound():
    """Drawn, and two float32 numbers to each side of every multiple of pi / 4 up to 8 pi, where the quarters change."""
    draw = np.random.default_rng(0)
    drawn = [draw.uniform(-reach, reach, 50_000) for reach in (0.8, np.pi, 20.0, 1e4)]
    corner = (np.arange(-32, 33) * np.pi / 4).astype(np.float32)
    near = [corner, np.nextafter(corner, np.float32(np.inf)), np.nextafter(corner, np.float32(-np.inf))]
    assert max(errors(np.concatenate([*drawn, *near]).astype(np.float32))) < 1.2e-7


def test_sine_is_odd_and_cosine_even_and_nan_stays_nan():
    angle = np.append(np.random.default_rng(1).uniform(-30, 30, 1000), [0.0, np.nan, np.inf]).astype(np.float32)
    (sin, cos), (minus_sin, same_cos) = run(lambda x: (sine_cosine(x), sine_cosine(-x)), angle)
    np.testing.assert_array_equal(minus_sin, -sin)
    np.testing.assert_array_equal(same_cos, cos)
    assert (sin[1000], cos[1000]) == (0.0, 1.0)
    assert np.isnan([sin[1001:], cos[1001:]]).all()


def test_derivatives_of_any_order():
    def orders(x):
        f, found = lambda x: sine_cosine(x)[0], []
        for _ in range(4):
            found.append(jax.vmap(f)(x))
            f = jax.grad(f)
        return jnp.stack(found)

    x = np.linspace(-7.0, 7.0, 57, dtype=np.float32)
    true = x.astype(np.float64)
    close(run(orders, x), [np.sin(true), np.cos(true), -np.sin(true), -np.cos(true)], 2e-7)
