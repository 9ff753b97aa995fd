"""Reading between whole positions, by comparisons and by gathers, against NumPy and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.cope import sums_from_the_right
from attnjax.positions.interpolation import COMPARED, _compared, _gathered, interpolate


def drawn(P, s, t=3):
    """Values and positions of which a third are whole numbers and some are the last."""
    draw = np.random.default_rng(P + s)
    position = draw.uniform(0, P - 1, (t, s)) if P > 1 else np.zeros((t, s))
    position = np.where(draw.random((t, s)) < 0.3, np.round(position), position)
    position[:, 0] = P - 1
    return draw.normal(size=(t, P)), position, draw.normal(size=(t, s))


@pytest.mark.parametrize(("P", "s"), [(1, 5), (2, 16), (16, 40), (5, 300), (COMPARED + 1, 9)])
def test_values_against_numpy(x64, P, s):
    values, position, _ = drawn(P, s)
    expected = [np.interp(p, np.arange(P), v) for v, p in zip(values, position, strict=True)]
    np.testing.assert_allclose(jax.jit(interpolate)(values, position), expected, atol=1e-14)


@pytest.mark.parametrize(("P", "s"), [(1, 5), (2, 16), (16, 40), (5, 300)])
def test_derivatives_are_those_of_the_gathers(x64, P, s):
    """Backwards and forwards, at whole numbers and at the last position too."""
    values, position, weights = drawn(P, s)

    def both(read, values, position):
        back = jax.vjp(read, values, position)[1](weights)
        return back, jax.jvp(read, (values, position), (jnp.cos(values), weights))

    ours, theirs = (jax.jit(lambda *x, f=f: both(f, *x))(values, position) for f in (_compared, _gathered))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-13)


def test_slopes_by_hand():
    """To the right of a whole number, and 0 at the last."""
    values, position = jnp.array([[1.0, 3.0, 2.0]]), jnp.array([[0.0, 0.5, 1.0, 1.5, 2.0]])
    slopes = jax.jit(jax.grad(lambda p: interpolate(values, p).sum()))(position)
    np.testing.assert_array_equal(slopes, [[2, 2, -1, -1, 0]])


def test_whole_positions_read_the_very_numbers():
    values = np.random.default_rng(0).normal(size=(2, 16)).astype(np.float32)
    position = np.tile(np.arange(16, dtype=np.float32), (2, 1))
    np.testing.assert_array_equal(jax.jit(interpolate)(values, position), values)


def test_nothing_as_large_as_all_hats_waits_for_the_derivative():
    """Between value and gradient there are arrays of the size of the positions, not P times as large."""
    values, position = jnp.zeros((4, 16)), jnp.zeros((4, 64))
    _, pull = jax.vjp(interpolate, values, position)
    assert max(leaf.size for leaf in jax.tree.leaves(pull)) <= position.size


@pytest.mark.parametrize("s", [1, 31, 32, 100])
def test_sums_from_the_right(x64, s):
    x = np.random.default_rng(s).random((3, s))
    expected = np.cumsum(x[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_allclose(jax.jit(sums_from_the_right)(x), expected, rtol=1e-14)
