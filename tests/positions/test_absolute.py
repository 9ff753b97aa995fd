"""Sinusoidal positions against published numbers and NumPy, and learned ones, which are never the row of a neighbour."""

import jax
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions.absolute import sinusoidal_table
from tests.positions.hooks import close, run

TABLE = np.float32([[1, 2], [3, 4], [5, 6]])
X = np.float32([[0.5, 0.25], [-1, 0]])


def by_numpy(pos, width, theta=10_000.0):
    """[sin | cos], in float64."""
    angle = np.asarray(pos, np.float64)[:, None] * theta ** (-2 * np.arange(width // 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def test_published_rows_of_width_4():
    """And the sum with an embedding, which is not scaled."""
    p = aj.Sinusoidal().constants(aj.Sizes(4, 1, 1, 4))
    x = np.float32([[0] * 4] * 3 + [[0.5, 0.3, -0.1, 0.8]])
    published = [
        [0, 1, 0, 1],
        [0.841, 0.540, 0.010, 1.000],
        [0.141, -0.990, 0.030, 1.000],
        [0.641, -0.690, -0.070, 1.800],
    ]
    close(run(lambda x, pos: aj.Sinusoidal().embed(p, x, pos), x, np.array([0, 1, 3, 3])), published, 5e-4)


@pytest.mark.parametrize("pos", [np.array([0, 1, 7, -7, 1000, 1_048_576, -(2**31)]), np.float32([0.5, 2.25])])
def test_the_orders_are_the_formula_and_its_permutation(pos):
    both = lambda pos: [sinusoidal_table(pos, 16, 100.0, order) for order in ("concatenated", "interleaved")]
    concatenated, interleaved = run(both, pos)
    close(concatenated, by_numpy(pos, 16, 100.0), 1e-6)
    np.testing.assert_array_equal(interleaved, concatenated[:, np.arange(16).reshape(2, -1).T.ravel()])


def test_double_precision(x64):
    pos = np.array([0, 3, 99_999])
    close(run(lambda pos: sinusoidal_table(pos, 6, order="concatenated"), pos), by_numpy(pos, 6), 1e-10)


def test_refuses_an_odd_width():
    for make in (lambda: sinusoidal_table(np.arange(3), 5), lambda: aj.Sinusoidal().constants(aj.Sizes(5, 1, 1, 4))):
        with pytest.raises(ValueError, match="the width must be even, got 5"):
            make()


def learned(table, pos):
    return aj.Learned(3).embed({"table": table}, X, pos)


def test_learned_rows_are_added_and_others_are_nan():
    """The gradient counts how often a row was used, and stays finite beside a row that does not exist."""
    for pos, expected in (
        ([2, 0], [[5.5, 6.25], [0, 2]]),
        *(([1, bad], [[3.5, 4.25], [np.nan] * 2]) for bad in (3, -1, -3)),
    ):
        np.testing.assert_array_equal(np.asarray(jax.jit(learned)(TABLE, np.array(pos))), expected)
    slope = jax.jit(jax.grad(lambda table, pos: learned(table, pos)[:1].sum() + learned(table, pos)[0].sum()))
    np.testing.assert_array_equal(slope(TABLE, np.array([2, 9])), [[0, 0], [0, 0], [2, 2]])


def test_learned_positions_outside_the_table_are_refused_where_known():
    aj.Learned(3).check(np.array([[0, 2]]))
    for bad in (3, -1, 1_000_000):
        with pytest.raises(ValueError, match=r"Learned has rows for positions 0\.\.2, got positions"):
            aj.embed(aj.Learned(3), {"table": TABLE}, X[None], np.array([1, bad]))
    with pytest.raises(ValueError, match=r"integer positions .*, got float32"):
        learned(TABLE, np.float32([0, 1]))
    with pytest.raises(ValueError, match=r"the table must have shape \(3, 2\), got \(2, 2\)"):
        learned(TABLE[:2], np.array([0, 1]))
