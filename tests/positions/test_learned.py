"""Learned positions: rows of a table, and never the row of a neighbour."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import EncodingParams, Sizes, learns
from attnjax.positions.learned import Learned

TABLE = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
X = jnp.array([[0.5, 0.25], [-1.0, 0.0]])


def embed(pos, x=X, table=TABLE):
    return Learned(3).embed(EncodingParams(shared={"table": jnp.asarray(table)}), x, pos)


def test_rows_are_added():
    np.testing.assert_array_equal(embed(np.array([2, 0])), [[5.5, 6.25], [0.0, 2.0]])
    np.testing.assert_array_equal(jax.jit(embed)(jnp.array([2, 0])), [[5.5, 6.25], [0.0, 2.0]])


@pytest.mark.parametrize("bad", [3, 4, 1_000_000, -1, -3])
def test_a_position_outside_the_table(bad):
    for pos in (np.array([1, bad]), jnp.array([1, bad])):
        with pytest.raises(ValueError, match=r"Learned has rows for positions 0..2, got positions"):
            embed(pos)
    row, hidden = jax.jit(embed)(jnp.array([1, bad]))
    np.testing.assert_array_equal(row, [3.5, 4.25])
    assert np.isnan(hidden).all()


def test_known_positions_are_checked_under_jit_too():
    with pytest.raises(ValueError, match=r"positions 0..2, got positions 7..7"):
        jax.jit(lambda x: embed(np.array([7, 7]), x))(X)


def test_gradient_counts_how_often_a_row_was_used():
    pos = np.array([2, 2])
    slope = jax.grad(lambda table: embed(pos, table=table).sum())(TABLE)
    np.testing.assert_array_equal(slope, [[0, 0], [0, 0], [2, 2]])


def test_gradient_is_finite_with_a_row_outside_the_table():
    slope = jax.jit(jax.grad(lambda table, pos: jnp.nansum(embed(pos, table=table))))(TABLE, jnp.array([1, 9]))
    np.testing.assert_array_equal(slope, [[0, 0], [1, 1], [0, 0]])


def test_fractional_positions_are_refused():
    with pytest.raises(ValueError, match=r"needs integer positions .*got float32"):
        embed(jnp.array([0.0, 1.0]))


def test_init_draws_the_published_deviation():
    params = Learned(512).init(jax.random.key(0), Sizes(model=64, heads=4, kv_heads=4, head_dim=16))
    table = params.shared["table"]
    assert table.shape == (512, 64)
    assert params.head == ()
    np.testing.assert_allclose(np.std(table), 0.02, rtol=0.02)
    np.testing.assert_allclose(np.mean(table), 0.0, atol=0.001)
    assert learns(Learned(512))


def test_init_is_float32_in_double_precision_too(x64):
    sizes = Sizes(model=4, heads=1, kv_heads=1, head_dim=4)
    assert Learned(3).init(jax.random.key(0), sizes).shared["table"].dtype == jnp.float32


def test_follows_the_dtype_of_the_embeddings(x64):
    assert embed(np.array([0, 1]), X.astype(jnp.float64)).dtype == jnp.float64
    assert embed(np.array([0, 1]), X.astype(jnp.float32)).dtype == jnp.float32


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"the table must have shape \(3, 2\), got \(2, 2\)"):
        embed(np.array([0, 1]), table=TABLE[:2])
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        Learned(0)
    with pytest.raises(ValueError, match=r"length must be an integer, got 8\.0"):
        Learned(8.0)
    with pytest.raises(ValueError, match="std must be positive and finite, got 0"):
        Learned(8, std=0)
