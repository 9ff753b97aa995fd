import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import EncodingParams, Sizes
from attnjax.positions.t5 import T5Bias, bucket, edges

CAUSAL = [*range(1, 17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
BIDIRECTIONAL = [*range(1, 9), 12, 16, 23, 32, 46, 64, 91]


def bias(encoding, table, n):
    return encoding.bias(EncodingParams(head={"table": table}), n)


def by_logarithm(m, buckets, max_distance):
    """The published formula in float64, nudged so that exact boundaries do not fall below themselves."""
    exact = buckets // 2
    if m < exact:
        return m
    steps = math.log(m / exact) / math.log(max_distance / exact) * (buckets - exact)
    return min(buckets - 1, exact + math.floor(steps + 1e-9))


def test_edges_are_the_published_ones():
    np.testing.assert_array_equal(edges(32, 128), CAUSAL)
    np.testing.assert_array_equal(edges(16, 128), BIDIRECTIONAL)


@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (32, 200), (16, 64), (64, 1000), (5, 40), (2, 3), (32, 17)]
)
def test_buckets_follow_the_published_formula(buckets, max_distance):
    n = np.arange(1200)
    expected = np.array([by_logarithm(m, buckets, max_distance) for m in n])
    np.testing.assert_array_equal(bucket(n, buckets, max_distance), expected)
    np.testing.assert_array_equal(bucket(-n, buckets, max_distance), 0)
    np.testing.assert_array_equal(bucket(n, 2 * buckets, max_distance, bidirectional=True), expected)
    np.testing.assert_array_equal(bucket(-n[1:], 2 * buckets, max_distance, bidirectional=True), expected[1:] + buckets)


def test_bias_by_hand():
    table = jnp.arange(32.0)
    n = jnp.array([[0, 15, 18, 19], [112, 113, 2**30, -1]])
    np.testing.assert_array_equal(bias(T5Bias(), table, n), [[0, 15, 16, 17], [30, 31, 31, 0]])
    both = T5Bias(bidirectional=True)
    np.testing.assert_array_equal(bias(both, table, -n), [[0, 25, 26, 26], [31, 31, 31, 1]])
    np.testing.assert_array_equal(bias(both, table, n), [[0, 9, 10, 10], [15, 15, 15, 17]])


def test_fractional_distances_are_rounded_down():
    made = bias(T5Bias(), jnp.arange(32.0), jnp.array([0.5, 18.99, 19.0, 1e9, -3.5]))
    np.testing.assert_array_equal(made, [0, 16, 17, 31, 0])


@pytest.mark.parametrize("encoding", [T5Bias(), T5Bias(bidirectional=True)])
def test_gradient_counts_the_pairs_of_each_bucket(encoding):
    n = np.arange(150)[:, None] - np.arange(150)[None, :]
    gradient = jax.grad(lambda table: bias(encoding, table, jnp.asarray(n)).sum())(jnp.zeros(32))
    counts = np.bincount(bucket(n, bidirectional=encoding.bidirectional).ravel(), minlength=32)
    np.testing.assert_array_equal(gradient, counts)


def test_heads_by_vmap_and_double_precision(x64):
    table = np.random.default_rng(0).normal(size=(3, 32))
    n = np.arange(-5, 200)
    made = jax.jit(jax.vmap(lambda table: bias(T5Bias(), table, jnp.asarray(n))))(jnp.asarray(table))
    assert made.dtype == jnp.float64
    np.testing.assert_array_equal(made, table[:, [by_logarithm(max(m, 0), 32, 128) for m in n]])


def test_bias_is_float32_of_a_bfloat16_table():
    table = jnp.arange(32, dtype=jnp.bfloat16)
    assert bias(T5Bias(), table, jnp.arange(3)).dtype == jnp.float32


def test_init():
    params = T5Bias().init(jax.random.key(0), Sizes(model=64, heads=100, kv_heads=100, head_dim=8))
    assert params.head["table"].shape == (100, 32)
    np.testing.assert_allclose(np.std(params.head["table"]), 1 / 8, rtol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(buckets=1), "buckets must be at least 2, got 1"),
        (dict(buckets=2, bidirectional=True), "buckets must be at least 4, got 2"),
        (dict(buckets=7, bidirectional=True), "buckets must be even where bidirectional, got 7"),
        (dict(buckets=float("nan")), "buckets must be an integer, got nan"),
        (dict(max_distance=128.0), "max_distance must be an integer, got 128.0"),
        (dict(max_distance=0), "max_distance must be at least 1, got 0"),
        (dict(max_distance=16), "max_distance must exceed the 16 exact buckets, got 16"),
        (dict(max_distance=8, bidirectional=True), "max_distance must exceed the 8 exact buckets, got 8"),
        (dict(bidirectional="yes"), "bidirectional must be True or False, got 'yes'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        T5Bias(**options)
