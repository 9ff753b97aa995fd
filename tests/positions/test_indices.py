"""Position indices: ranges, draws, documents, digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions import indices
from tests.positions.hooks import golden, run

KEY = jax.random.key(0)


@pytest.mark.parametrize(("length", "maximum"), [(5, 5), (7, 2048)])
def test_randomized_is_sorted_in_range_and_without_repeats(length, maximum):
    pos = run(lambda key: indices.randomized(key, length, maximum, batch=50), KEY)
    assert (pos.shape, pos.dtype) == ((50, length), np.int32)
    assert np.all(np.diff(pos, axis=1) > 0)
    assert 0 <= pos.min() <= pos.max() < maximum
    assert len(np.unique(pos, axis=0)) == (1 if length == maximum else 50)


def test_draws_are_uniform():
    """Subsets of 2 of 4, also as the real tokens of a row; and starts of 3 of 6 positions."""
    draw = lambda key: (
        indices.randomized(key, 2, 4, batch=6000),
        indices.randomized(key, 3, 4, batch=6000, counts=np.full(6000, 2)),
        indices.offset(key, 3, 6, batch=4000),
    )
    pairs, padded, starts = run(draw, KEY)
    assert set(padded[:, 2].tolist()) == {3}
    for pos in (pairs, padded):
        _, counts = np.unique(pos[:, 0] * 4 + pos[:, 1], return_counts=True)
        np.testing.assert_allclose(counts, np.full(6, 1000), atol=150)
    np.testing.assert_array_equal(starts - starts[:, :1], np.broadcast_to([0, 1, 2], (4000, 3)))
    np.testing.assert_allclose(np.bincount(starts[:, 0]), np.full(4, 1000), atol=150)


def test_randomized_samples_the_real_tokens_and_puts_padding_last():
    """With one row of draws all rows share it."""
    draw = lambda key, counts: (
        indices.randomized(key, 5, 20, batch=3, counts=counts),
        indices.randomized(key, 5, 20, batch=3),
        indices.randomized(key, 5, 20, batch=1, counts=counts),
        indices.randomized(key, 5, 20, counts=counts[0]),
        indices.randomized(key, 5, 20),
    )
    counts = np.array([5, 1, 3])
    rows, whole, shared, alone, one = run(draw, KEY, counts)
    for pos in (rows, shared):
        for row, count in zip(pos, counts, strict=True):
            assert np.all(np.diff(row[:count]) > 0)
            assert set(row[count:].tolist()) <= {19}
    np.testing.assert_array_equal(rows[0], whole[0])
    np.testing.assert_array_equal(alone, one)
    assert set(shared[2, :3].tolist()) < set(shared[0].tolist())


def test_offset_at_the_largest_maximum():
    pos, only = run(lambda key: (indices.offset(key, 3, 2**31 - 1, batch=100), indices.offset(key, 5, 5)), KEY)
    assert pos.min() >= 0
    assert np.all(np.diff(pos, axis=1) == 1)
    assert pos.max() > 2**30
    np.testing.assert_array_equal(only, [0, 1, 2, 3, 4])


def test_from_segments_by_hand():
    ids = np.array([[5, 5, 5, 7, 7, 5], [0, 1, 1, 1, 1, 2]], np.uint8)
    np.testing.assert_array_equal(run(indices.from_segments, ids), [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 0]])


def test_zigzag_gives_every_device_as_many_visible_pairs():
    order = indices.zigzag(24, devices=3)
    pairs = [(row[:, None] >= np.arange(24)).sum() for row in order.reshape(3, 8)]
    assert len(set(pairs)) == 1
    assert sorted(order) == list(range(24))


def test_abacus_by_hand():
    """21 + 654 = 576, with 10 for "+" and 11 for "=": reversed digits of 12 + 456 = 675."""
    tokens = np.array([[2, 1, 10, 6, 5, 4, 11, 5, 7, 6], [3, 3, 10, 10, 3, 10, 3, 3, 3, 3]], np.uint8)
    first, moved, two = run(
        lambda tokens: (indices.abacus(tokens, range(10)), indices.abacus(tokens, range(10), np.array([7, 40])),
                        indices.abacus(tokens[0], [6, 5], 2)),
        tokens,
    )  # fmt: skip
    by_hand = np.array([[1, 2, 0, 1, 2, 3, 0, 1, 2, 3], [1, 2, 0, 0, 1, 0, 1, 2, 3, 4]])
    np.testing.assert_array_equal(first, by_hand)
    np.testing.assert_array_equal(moved, np.where(by_hand > 0, by_hand + np.array([[7], [40]]), 0))
    np.testing.assert_array_equal(two, [0, 0, 0, 3, 4, 0, 0, 3, 0, 3])


def test_coupled_positions_are_those_of_the_authors():
    """Their addition, whose answer is reversed; they begin at 1. And by hand with a start, and padding at the start."""
    arrays = golden("recent_coupled")
    expected = arrays["positions"].astype(int)
    np.testing.assert_array_equal(indices.coupled(arrays["tokens"].astype(int), range(10), 1, 2), expected)
    other = indices.coupled(np.array([[4, 10, 1, 2, 11, 5, 5, 12]] * 2), range(10), np.array([0, 7]))
    np.testing.assert_array_equal(other, np.array([1, 0, 1, 2, 0, 1, 2, 0])[None] + np.array([[0], [7]]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: indices.arange(0), "arange: length must be at least 1, got 0"),
        (lambda: indices.randomized(KEY, 9, 8), "randomized: length must be at most maximum = 8, got 9"),
        (lambda: indices.randomized(KEY, 4, 2**31), r"randomized: maximum must be at most 2\^31 - 1"),
        (lambda: indices.randomized(KEY, 4, 8, 2, counts=np.ones(3, int)), r"counts must be integers \[2\], got int"),
        (lambda: indices.randomized(KEY, 4, 8, 1, counts=np.ones(3)), r"counts must be integers \[3\], got float"),
        (lambda: indices.offset(jnp.zeros(2, jnp.uint32), 4, 8), "offset: key must be one typed key"),
        (lambda: indices.from_segments(np.array([0.5])), "from_segments: segment_ids must be integers"),
        (lambda: indices.zigzag(10, 2), "zigzag: length must be a multiple of .* 4, got 10"),
        (lambda: indices.abacus(np.array([0.5]), range(10)), "abacus: tokens must be integers"),
        (lambda: indices.abacus(np.array([1]), ()), "abacus: digits must name at least one token id"),
        (lambda: indices.abacus(np.array([1]), ["1"]), "abacus: digits must be an integer, got '1'"),
        (lambda: indices.abacus(np.array([1]), [1], start=-1), "abacus: start must be at least 0, got -1"),
        (lambda: indices.coupled(np.array([1]), [1], 0, -1), "coupled: highest_first must be at least 0, got -1"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(call)
