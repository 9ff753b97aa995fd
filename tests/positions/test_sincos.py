"""Sine and cosine against those of NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.sincos import HALF_PI, sine_cosine


def error(angle):
    found = jax.jit(sine_cosine)(angle)
    true = np.asarray(angle, np.float64)
    return [np.abs(np.asarray(got, np.float64) - f(true)).max() for got, f in zip(found, (np.sin, np.cos))]


@pytest.mark.parametrize("reach", [0.8, np.pi, 20.0, 1e4])
def test_error_is_below_the_promise(reach):
    angle = np.random.default_rng(0).uniform(-reach, reach, 200_000).astype(np.float32)
    assert max(error(angle)) < 1.2e-7


def test_where_quarters_meet():
    """Two float32 numbers to each side of every multiple of pi/4 up to 8 pi."""
    corner = (np.arange(-32, 33) * np.pi / 4).astype(np.float32)
    near = [corner, np.nextafter(corner, np.float32(np.inf)), np.nextafter(corner, np.float32(-np.inf))]
    assert max(error(np.concatenate(near))) < 1.2e-7


def test_exact_at_zero_and_odd_and_even():
    angle = np.random.default_rng(1).uniform(-30, 30, 1000).astype(np.float32)
    (sin, cos), (minus_sin, same_cos) = sine_cosine(angle), sine_cosine(-angle)
    np.testing.assert_array_equal(minus_sin, -sin)
    np.testing.assert_array_equal(same_cos, cos)
    assert [float(x) for x in sine_cosine(jnp.float32(0.0))] == [0.0, 1.0]


def test_parts_of_half_pi_are_exact_in_products():
    assert abs(sum(HALF_PI) - np.pi / 2) < 1e-14
    n = np.arange(1, 6400, dtype=np.float32)
    for part in HALF_PI[:2]:
        assert np.float32(part) == part
        np.testing.assert_array_equal((n * np.float32(part)).astype(np.float64), n.astype(np.float64) * part)


def test_derivatives_of_any_order_and_not_a_number():
    x = jnp.linspace(-7.0, 7.0, 57)
    sin = lambda x: sine_cosine(x)[0]
    for order, expected in enumerate((np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x))):
        f = sin
        for _ in range(order):
            f = jax.grad(f)
        np.testing.assert_allclose(jax.vmap(f)(x), expected(np.asarray(x, np.float64)), atol=2e-7)
    assert np.isnan(np.asarray(sine_cosine(jnp.asarray([jnp.nan, jnp.inf])))).all()


def test_double_precision_is_that_of_the_library(x64):
    angle = np.random.default_rng(2).uniform(-1e6, 1e6, 1000)
    assert max(error(angle)) < 1e-15
