"""PoPE against its formula in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import EncodingParams, Sizes, learns, resolve
from attnjax.positions.pope import PoPE

H = 6
RNG = np.random.default_rng(0)
Q, K = (RNG.normal(size=(5, H)).astype(np.float32) for _ in range(2))
DELTA = RNG.uniform(-7, 7, H).astype(np.float32)
Q_POS, K_POS = np.array([0, 3, 40, 1000, 65_536]), np.array([-2, 3, 41, 900, 65_000])


def given(delta=DELTA, theta=10_000.0):
    sizes = Sizes(model=H, heads=1, kv_heads=1, head_dim=H)
    return resolve(PoPE(theta), EncodingParams(head={"delta": jnp.asarray(delta)}), sizes)


def scores(q_pos, k_pos, delta=DELTA, theta=10_000.0):
    pope, p = PoPE(theta), given(delta, theta)
    q = jax.jit(lambda q, pos: pope.map_q(p, q, pos))(Q, q_pos)
    k = jax.jit(lambda k, pos: pope.map_k(p, k, pos))(K, k_pos)
    assert q.shape == k.shape == (5, 2 * H)
    return np.asarray(q, np.float64) @ np.asarray(k, np.float64).T


def formula(q_pos, k_pos, delta=DELTA, theta=10_000.0):
    """One frequency per channel, n = i - j, the phase subtracted."""
    n = (q_pos[:, None] - k_pos[None, :]).astype(np.float64)[..., None]
    cos = np.cos(n * theta ** (-np.arange(H) / H) - delta)
    q, k = (np.log1p(np.exp(x.astype(np.float64))) for x in (Q, K))
    return np.einsum("th,sh,tsh->ts", q, k, cos)


@pytest.mark.parametrize("theta", [10_000.0, 100.0])
def test_score_is_the_formula(theta):
    np.testing.assert_allclose(scores(Q_POS, K_POS, theta=theta), formula(Q_POS, K_POS, theta=theta), atol=1e-5)


def test_the_sign_of_the_phase_matters():
    assert np.abs(scores(Q_POS, K_POS) - formula(Q_POS, K_POS, -DELTA)).max() > 0.1


def test_the_phase_is_periodic():
    np.testing.assert_allclose(scores(Q_POS, K_POS, DELTA + 2 * np.pi), scores(Q_POS, K_POS), atol=1e-5)


def test_scores_depend_on_the_distance_only():
    np.testing.assert_allclose(scores(Q_POS + 65_536, K_POS + 65_536), scores(Q_POS, K_POS), atol=2e-5)


def test_init_is_one_phase_of_zero_per_head_and_channel():
    params = PoPE().init(jax.random.key(0), Sizes(model=24, heads=4, kv_heads=2, head_dim=H))
    np.testing.assert_array_equal(params.head["delta"], np.zeros((4, H)))
    assert params.shared == ()
    assert learns(PoPE())


def test_gradient_of_the_phase_is_that_of_the_formula():
    def total(delta):
        q = PoPE().map_q(given(delta), jnp.asarray(Q), np.arange(5))
        return (q @ PoPE().map_k(given(), jnp.asarray(K), np.arange(5)).T).sum()

    step, pos = 1e-5, np.arange(5)
    ends = [[formula(pos, pos, DELTA + s * step * unit).sum() for s in (1, -1)] for unit in np.eye(H)]
    expected = [(up - down) / (2 * step) for up, down in ends]
    np.testing.assert_allclose(jax.grad(total)(jnp.asarray(DELTA)), expected, rtol=1e-4, atol=1e-4)


def test_double_precision_follows_the_dtype(x64):
    q = PoPE().map_q(given(), jnp.asarray(Q, jnp.float64), np.arange(5))
    assert q.dtype == jnp.float64


def test_theta_must_be_positive():
    with pytest.raises(ValueError, match="PoPE: theta must be positive and finite, got inf"):
        PoPE(theta=float("inf"))
