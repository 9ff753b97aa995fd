import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions import indices

KEY = jax.random.key(0)


def test_arange_stays_known_under_jit():
    def inside(x):
        pos = indices.arange(4)
        assert isinstance(pos, np.ndarray)
        return x + pos

    np.testing.assert_array_equal(jax.jit(inside)(jnp.zeros(4, jnp.int32)), [0, 1, 2, 3])
    assert indices.arange(4).dtype == np.int32


@pytest.mark.parametrize(("length", "maximum"), [(1, 1), (5, 5), (7, 20), (40, 2048)])
def test_randomized_is_sorted_in_range_and_without_repeats(length, maximum):
    pos = jax.jit(lambda key: indices.randomized(key, length, maximum, batch=50))(KEY)
    assert pos.shape == (50, length)
    assert pos.dtype == jnp.int32
    assert np.all(np.diff(np.asarray(pos), axis=1) > 0)
    assert pos.min() >= 0
    assert pos.max() < maximum


def test_randomized_is_uniform_over_subsets():
    draws = np.asarray(indices.randomized(KEY, 2, 4, batch=6000))
    _, counts = np.unique(draws[:, 0] * 4 + draws[:, 1], return_counts=True)
    assert counts.shape == (6,)
    np.testing.assert_allclose(counts, 1000, atol=150)


def test_randomized_samples_the_real_tokens_of_each_row_and_puts_padding_last():
    counts = np.array([1, 3, 5])
    pos = np.asarray(jax.jit(lambda n: indices.randomized(KEY, 5, 20, batch=3, counts=n))(counts))
    for row, count in zip(pos, counts, strict=True):
        assert np.all(np.diff(row[:count]) > 0)
        assert set(row[count:].tolist()) <= {19}
    np.testing.assert_array_equal(pos[2], indices.randomized(KEY, 5, 20, batch=3)[2])
    alone = indices.randomized(KEY, 5, 20)
    np.testing.assert_array_equal(indices.randomized(KEY, 5, 20, counts=np.int32(5)), alone)


def test_randomized_real_tokens_are_uniform_over_subsets_of_their_number():
    draws = np.asarray(indices.randomized(KEY, 3, 4, batch=6000, counts=np.full(6000, 2)))
    assert set(draws[:, 2].tolist()) == {3}
    _, counts = np.unique(draws[:, 0] * 4 + draws[:, 1], return_counts=True)
    assert counts.shape == (6,)
    np.testing.assert_allclose(counts, 1000, atol=150)


def test_randomized_with_one_row_of_draws_shares_it():
    pos = np.asarray(indices.randomized(KEY, 5, 20, batch=1, counts=np.array([5, 5, 2])))
    np.testing.assert_array_equal(pos[:2], np.repeat(indices.randomized(KEY, 5, 20, batch=1), 2, axis=0))
    assert set(pos[2, :2].tolist()) < set(pos[0].tolist())


@pytest.mark.parametrize("draw", [indices.randomized, indices.offset])
def test_rows_are_drawn_independently_and_repeatably(draw):
    rows = draw(KEY, 10, 1000, batch=8)
    assert len({tuple(row) for row in np.asarray(rows).tolist()}) == 8
    np.testing.assert_array_equal(rows, draw(KEY, 10, 1000, batch=8))
    assert draw(KEY, 10, 1000).shape == (10,)
    assert not np.array_equal(draw(KEY, 10, 1000), draw(jax.random.key(1), 10, 1000))


def test_offset_reaches_every_start():
    pos = np.asarray(indices.offset(KEY, 3, 6, batch=4000))
    assert pos.dtype == np.int32
    np.testing.assert_array_equal(pos - pos[:, :1], np.broadcast_to([0, 1, 2], (4000, 3)))
    starts, counts = np.unique(pos[:, 0], return_counts=True)
    np.testing.assert_array_equal(starts, [0, 1, 2, 3])
    np.testing.assert_allclose(counts, 1000, atol=150)


def test_offset_at_the_largest_maximum():
    pos = np.asarray(indices.offset(KEY, 3, 2**31 - 1, batch=100))
    assert pos.min() >= 0
    assert np.all(np.diff(pos, axis=1) == 1)
    assert pos.max() > 2**30
    np.testing.assert_array_equal(indices.offset(KEY, 5, 5), [0, 1, 2, 3, 4])


def test_from_segments_by_hand():
    ids = np.array([[5, 5, 5, 7, 7, 5], [0, 1, 1, 1, 1, 2]])
    np.testing.assert_array_equal(indices.from_segments(ids), [[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 0]])
    np.testing.assert_array_equal(jax.jit(indices.from_segments)(ids[0].astype(np.uint8)), [0, 1, 2, 0, 1, 0])
    np.testing.assert_array_equal(indices.from_segments(ids[None])[0, 1], [0, 0, 1, 2, 3, 0])


def test_abacus_by_hand():
    # 21 + 654 = 576, with 10 for "+" and 11 for "=": reversed digits of 12 + 456 = 675.
    tokens = np.array([2, 1, 10, 6, 5, 4, 11, 5, 7, 6])
    expected = [1, 2, 0, 1, 2, 3, 0, 1, 2, 3]
    np.testing.assert_array_equal(indices.abacus(tokens, range(10)), expected)
    np.testing.assert_array_equal(
        jax.jit(lambda t: indices.abacus(t, tuple(range(10)), 7))(tokens), [8, 9, 0, 8, 9, 10, 0, 8, 9, 10]
    )
    np.testing.assert_array_equal(indices.abacus(tokens, [6, 5]), [0, 0, 0, 1, 2, 0, 0, 1, 0, 1])


def test_abacus_starts_per_example():
    tokens = np.array([[10, 3, 3], [3, 10, 3]], np.uint8)
    pos = indices.abacus(tokens, range(10), start=jnp.array([0, 40]))
    assert pos.dtype == jnp.int32
    np.testing.assert_array_equal(pos, [[0, 1, 2], [41, 0, 41]])


def test_types_do_not_depend_on_x64(x64):
    for pos in (
        indices.arange(4),
        indices.randomized(KEY, 4, 8),
        indices.offset(KEY, 4, 8),
        indices.from_segments(np.array([1, 1, 2])),
        indices.abacus(np.array([1, 11, 2]), range(10)),
    ):
        assert pos.dtype == np.int32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: indices.arange(0), "arange: length must be at least 1, got 0"),
        (lambda: indices.arange(2.0), "arange: length must be an integer, got 2.0"),
        (lambda: indices.arange(2**31), "arange: length must be at most maximum = 2147483647"),
        (lambda: indices.randomized(KEY, 9, 8), "randomized: length must be at most maximum = 8, got 9"),
        (lambda: indices.randomized(KEY, -1, 8), "randomized: length must be at least 1, got -1"),
        (lambda: indices.randomized(KEY, 4, float("nan")), "randomized: maximum must be an integer, got nan"),
        (lambda: indices.randomized(KEY, 4, 8, batch=0), "randomized: batch must be at least 1, got 0"),
        (lambda: indices.randomized(KEY, 4, 2**31), r"randomized: maximum must be at most 2\^31 - 1"),
        (lambda: indices.randomized(KEY, 4, 8, counts=np.array([4])), r"counts must be integers \[\], got int32\[1\]"),
        (
            lambda: indices.randomized(KEY, 4, 8, 2, counts=np.ones(3, int)),
            r"counts must be integers \[2\], got int32\[3\]",
        ),
        (
            lambda: indices.randomized(KEY, 4, 8, 1, counts=np.ones(3)),
            r"counts must be integers \[3\], got float32\[3\]",
        ),
        (lambda: indices.offset(KEY, 9, 8), "offset: length must be at most maximum = 8, got 9"),
        (lambda: indices.offset(KEY, 4, 2**31), r"offset: maximum must be at most 2\^31 - 1"),
        (lambda: indices.offset(KEY, 4, 8, batch=1.5), "offset: batch must be an integer, got 1.5"),
        (
            lambda: indices.offset(jnp.zeros(2, jnp.uint32), 4, 8),
            "offset: key must be one typed key made by jax.random.key",
        ),
        (lambda: indices.randomized(jax.random.split(KEY), 4, 8), "randomized: key must be one typed key"),
        (lambda: indices.randomized(0, 4, 8), "randomized: key must be one typed key"),
        (lambda: indices.from_segments(np.array([0.5])), "from_segments: segment_ids must be integers"),
        (lambda: indices.from_segments(np.array(3)), "from_segments: segment_ids must be integers"),
        (lambda: indices.abacus(np.array([0.5]), range(10)), "abacus: tokens must be integers"),
        (lambda: indices.abacus(np.array([1]), ()), "abacus: digits must name at least one token id"),
        (lambda: indices.abacus(np.array([1]), ["1"]), "abacus: digits must be an integer, got '1'"),
        (lambda: indices.abacus(np.array([1]), [1], start=-1), "abacus: start must be at least 0, got -1"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
