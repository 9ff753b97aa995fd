"""Statistics of attention weights against hand calculation and slow formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.analysis import weights as w

UNIFORM = np.tri(4) / np.arange(1, 5)[:, None]


def drawn(*shape, seed=0) -> np.ndarray:
    """Random causal weights [..., T, T]."""
    logits = np.random.default_rng(seed).normal(size=shape) * 2
    exp = np.where(np.tri(shape[-1], dtype=bool), np.exp(logits), 0)
    return (exp / exp.sum(-1, keepdims=True)).astype(np.float32)


def test_entropy_by_hand():
    rows = jnp.array([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.25, 0.5, 0], [0.25, 0.25, 0.25, 0.25]])
    expected = [0.0, math.log(2), 1.5 * math.log(2), math.log(4)]
    np.testing.assert_allclose(w.entropy(rows), expected, atol=1e-6)
    normalised = [np.nan, 1.0, 1.5 * math.log(2) / math.log(3), 1.0]
    np.testing.assert_allclose(w.normalised_entropy(rows, w.causal(4)), normalised, atol=1e-6)


def test_mean_distance_by_hand():
    # A uniform causal row i has mean distance i / 2; a key in the future is as far as one in the past.
    np.testing.assert_allclose(w.mean_distance(jnp.asarray(UNIFORM)), [0, 0.5, 1, 1.5], atol=1e-6)
    np.testing.assert_allclose(
        w.mean_distance(jnp.array([[0, 0, 1.0], [0, 1, 0], [0.5, 0, 0.5]])), [2, 0, 1], atol=1e-6
    )


def test_histogram_by_hand():
    assert w.past_edges(8) == (0, 1, 2, 4, 8)
    assert w.past_edges(5) == (0, 1, 2, 4, 5)
    assert w.past_edges(1) == (0, 1)
    assert w.signed_edges(4) == (-3, -1, 0, 1, 2, 4)
    found = w.distance_histogram(jnp.asarray(UNIFORM), w.past_edges(4))
    # Rows 0..3 have 1, 1/2, 1/3, 1/4 at each distance they see; two distances share the last bin.
    expected = np.array([1 + 1 / 2 + 1 / 3 + 1 / 4, 1 / 2 + 1 / 3 + 1 / 4, 1 / 3 + 1 / 4 + 1 / 4]) / 4
    np.testing.assert_allclose(found, expected, atol=1e-6)
    ahead = w.distance_histogram(jnp.array([[0, 0, 1.0], [0, 0, 1.0], [0, 0, 1.0]]), w.signed_edges(3))
    np.testing.assert_allclose(ahead, np.array([1, 1, 1, 0, 0]) / 3, atol=1e-6)


def test_sink_mass_by_hand():
    found = w.sink_mass(jnp.asarray(UNIFORM), w.causal(4))
    np.testing.assert_allclose(found, [np.nan, 1 / 2, 1 / 3, 1 / 4], atol=1e-6)
    two = w.sink_mass(jnp.asarray(UNIFORM), w.causal(4), first=2)
    np.testing.assert_allclose(two, [np.nan, np.nan, 2 / 3, 1 / 2], atol=1e-6)


@pytest.mark.parametrize("shape", [(6, 6), (2, 3, 6, 6)])
def test_all_statistics_against_loops(shape):
    weights = drawn(*shape)
    flat = weights.reshape(-1, 6, 6).astype(np.float64)
    entropy, distance, histogram = np.zeros((len(flat), 6)), np.zeros((len(flat), 6)), np.zeros((len(flat), 4))
    for b, i, j in np.ndindex(flat.shape):
        a = flat[b, i, j]
        entropy[b, i] -= a * math.log(a) if a > 0 else 0
        distance[b, i] += a * abs(i - j)
        if j <= i:
            histogram[b, {0: 0, 1: 1, 2: 2, 3: 2, 4: 3, 5: 3}[i - j]] += a / 6
    close = lambda found, expected: np.testing.assert_allclose(np.reshape(found, expected.shape), expected, atol=1e-5)
    close(w.entropy(jnp.asarray(weights)), entropy)
    close(w.mean_distance(jnp.asarray(weights)), distance)
    close(w.distance_histogram(jnp.asarray(weights), w.past_edges(6)), histogram)
    most = np.log(np.maximum(np.arange(1, 7), 2))
    close(w.normalised_entropy(jnp.asarray(weights), w.causal(6))[..., 1:], (entropy / most)[:, 1:])


def jsd(p: np.ndarray, q: np.ndarray) -> float:
    """By the definition, one row."""
    total = 0.0
    for a, b in zip(p.astype(np.float64), q.astype(np.float64)):
        for x in (a, b):
            total += 0.5 * x * math.log(x / ((a + b) / 2)) if x > 0 else 0
    return total


def test_divergence_of_rows():
    p = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    q = jnp.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    # (1/2, 1/2) against (1, 0): entropy of (3/4, 1/4) less half of ln 2.
    last = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) - 0.5 * math.log(2)
    np.testing.assert_allclose(w.jensen_shannon(p, q), [math.log(2), 0, last], atol=1e-6)
    np.testing.assert_allclose(w.jensen_shannon(q, p), w.jensen_shannon(p, q), atol=1e-7)


def test_divergence_of_heads_and_layers():
    a, b = drawn(2, 3, 2, 5, 5), drawn(2, 3, 4, 5, 5, seed=1)
    b[1, :, 2] = a[1, :, 0]
    found = jax.jit(w.head_divergence)(jnp.asarray(a), jnp.asarray(b))
    expected = np.zeros((2, 2, 4))
    for layer, n, m in np.ndindex(expected.shape):
        rows = [jsd(a[layer, x, n, t], b[layer, x, m, t]) for x in range(3) for t in range(5)]
        expected[layer, n, m] = np.mean(rows)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    nearest = w.layer_divergence(jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_allclose(nearest, [expected[0].min(), 0.0], atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: w.entropy(a[0]), r"weights must be \[..., T, S\], got shape \(4,\)"),
        (
            lambda a: w.sink_mass(a, w.causal(3)),
            r"visible must be booleans \[4, 4\] or as the weights, got bool\[3, 3\]",
        ),
        (lambda a: w.sink_mass(a, np.ones((4, 4))), r"visible must be booleans \[4, 4\].*, got float64"),
        (lambda a: w.sink_mass(a, w.causal(4), first=4), r"sink_mass: first must be in 1..3, got 4"),
        (lambda a: w.distance_histogram(a, (0, 2, 2)), r"edges must ascend, at least two, got \(0, 2, 2\)"),
        (lambda a: w.distance_histogram(a, (0,)), r"edges must ascend, at least two, got \(0,\)"),
        (lambda a: w.jensen_shannon(a, a[:3]), r"must have the same shape, got \(4, 4\) and \(3, 4\)"),
        (lambda a: w.head_divergence(a, a), r"weights must be \[L, B, heads, T, S\] alike"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.asarray(UNIFORM))
