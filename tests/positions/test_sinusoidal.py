"""Sinusoidal positions against published numbers and plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import EncodingParams, Sizes, Trait, learns
from attnjax.positions.sinusoidal import Sinusoidal, sinusoidal_table


def numpy_table(pos, width, theta=10_000.0):
    """[sin | cos], in float64."""
    angle = np.asarray(pos, np.float64)[:, None] * theta ** (-2 * np.arange(width // 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def embed(encoding, x, pos):
    width = x.shape[1]
    p = encoding.constants(Sizes(model=width, heads=1, kv_heads=1, head_dim=width))
    return jax.jit(lambda x, pos: encoding.embed(p, x, pos))(x, pos)


@pytest.mark.parametrize(
    ("pos", "row"),
    [(0, [0, 1, 0, 1]), (1, [0.841, 0.540, 0.010, 1.000]), (3, [0.141, -0.990, 0.030, 1.000])],
)
def test_published_rows_of_width_4(pos, row):
    np.testing.assert_allclose(sinusoidal_table(np.array([pos]), 4)[0], row, atol=5e-4)


def test_published_sum_with_an_embedding():
    x = jnp.array([[0.5, 0.3, -0.1, 0.8]])
    np.testing.assert_allclose(embed(Sinusoidal(), x, jnp.array([3]))[0], [0.641, -0.690, -0.070, 1.800], atol=5e-4)


def test_concatenated_order_is_the_numpy_formula_and_interleaved_its_permutation():
    pos, width = np.array([0, 1, 7, -7, 1000, 1_048_576]), 16
    table = numpy_table(pos, width)
    np.testing.assert_allclose(sinusoidal_table(pos, width, order="concatenated"), table, atol=1e-6)
    interleaved = np.arange(width).reshape(2, -1).T.ravel()
    np.testing.assert_allclose(sinusoidal_table(pos, width), table[:, interleaved], atol=1e-6)


def test_theta_and_fractional_positions():
    pos = np.array([0.5, 2.25], np.float32)
    table = sinusoidal_table(pos, 8, theta=100.0, order="concatenated")
    np.testing.assert_allclose(table, numpy_table(pos, 8, 100.0), atol=1e-6)


def test_a_step_is_the_same_rotation_at_every_position():
    table = np.asarray(sinusoidal_table(np.arange(0, 4000, 7), 2, order="concatenated"), np.float64)
    sin, cos = np.sin(21.0), np.cos(21.0)
    np.testing.assert_allclose(table[3:], table[:-3] @ np.array([[cos, -sin], [sin, cos]]), atol=2e-6)


def test_bounded_by_one():
    assert np.abs(sinusoidal_table(jnp.arange(0, 1_000_000, 991), 32)).max() <= 1.0


def test_embed_does_not_scale_the_embedding_and_follows_its_dtype(x64):
    pos = jnp.arange(5)
    for dtype, tolerance in ((jnp.float32, 1e-6), (jnp.float64, 1e-14)):
        x = jnp.ones((5, 6), dtype)
        y = embed(Sinusoidal("concatenated"), x, pos)
        assert y.dtype == dtype
        np.testing.assert_allclose(y, 1 + numpy_table(pos, 6), atol=tolerance)


def test_nothing_is_learned():
    assert Sinusoidal().init(jax.random.key(0), Sizes(8, 2, 2, 4)) == EncodingParams()
    assert not learns(Sinusoidal())
    assert Sinusoidal().traits == Trait.EMBED


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="the width must be even, got 5"):
        sinusoidal_table(np.arange(3), 5)
    with pytest.raises(ValueError, match="the width must be even, got 5"):
        embed(Sinusoidal(), jnp.ones((3, 5)), jnp.arange(3))
    with pytest.raises(ValueError, match="the width must be even, got 5"):
        Sinusoidal().check(sizes=Sizes(5, 1, 1, 4))
    with pytest.raises(ValueError, match=r"order must be one of .*interleaved.*concatenated.*got 'mixed'"):
        Sinusoidal("mixed")
    with pytest.raises(ValueError, match="theta must be positive and finite, got nan"):
        Sinusoidal(theta=float("nan"))
