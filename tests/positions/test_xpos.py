"""xPos against NumPy in long double, as far as float32 reaches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax.positions.base import EncodingParams, Sizes, Trait
from attnjax.positions.xpos import XPos, power_of_two

H = 16
C = H // 2
REAL = np.longdouble
RNG = np.random.default_rng(0)
POS = np.concatenate([np.arange(40), RNG.integers(0, 16_385, 400), [16_383, 16_384], -RNG.integers(0, 16_385, 100)])
X = RNG.normal(size=(len(POS), H)).astype(np.float32)


def numpy_xpos(x, pos, sign, scale_base=512):
    """Half pairing in long double: (turned, factor of every pair)."""
    pos, k = np.asarray(pos, REAL)[:, None], np.arange(C, dtype=REAL)
    zeta = (k / C + REAL(4) / 10) / (REAL(14) / 10)
    factor = zeta ** (sign * pos / scale_base)
    angle = pos * REAL(10_000) ** (-k / C)
    a, b = x[:, :C].astype(REAL), x[:, C:].astype(REAL)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1), factor


def constants(xpos, width=H):
    return xpos.constants(Sizes(model=width, heads=1, kv_heads=1, head_dim=width))


def maps(xpos, width=H):
    """map_q and map_k of one head, under jit."""
    p = constants(xpos, width)
    return jax.jit(lambda x, pos: xpos.map_q(p, x, pos)), jax.jit(lambda x, pos: xpos.map_k(p, x, pos))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_accurate_to_16384(sign, dtype):
    turned = maps(XPos())[0 if sign == 1 else 1](X, POS.astype(dtype))
    expected, factor = numpy_xpos(X, POS, sign)
    error = np.asarray(turned, REAL) / np.tile(factor, 2) - expected
    length = np.hypot(X[:, :C], X[:, C:])
    assert np.abs(error / np.tile(length, 2)).max() < 1.2e-6
    assert np.isfinite(turned).all()


def test_factors_are_accurate_to_the_last_bits():
    rates = np.log2((np.arange(C) / C + 0.4) / 1.4) / 512
    factor = jax.jit(lambda pos: power_of_two(pos, rates, jnp.float32))(POS)
    _, expected = numpy_xpos(X, POS, 1)
    assert np.abs(np.asarray(factor, REAL) / expected - 1).max() < 4e-7


def test_scores_are_those_of_the_paper_at_the_end_of_the_reach():
    q_pos, k_pos = np.full(50, 16_384), 16_384 - np.arange(50) * 20
    q, k = X[:50], X[50:100]
    map_q, map_k = maps(XPos())
    score = np.sum(np.asarray(map_q(q, q_pos), REAL) * np.asarray(map_k(k, k_pos), REAL), axis=-1)
    turned_q, fade = numpy_xpos(q, q_pos - k_pos, 1)
    expected = np.sum(turned_q * np.tile(fade, 2) * k, axis=-1)
    assert np.abs(score - expected).max() < 2e-5


def test_layouts_are_equal_under_the_channel_permutation():
    swap = np.arange(H).reshape(2, -1).T.ravel()
    half = maps(XPos())[0](X, POS)
    mixed = maps(XPos(layout="interleaved"))[0](X[:, swap], POS)
    # Rounding is relative to the length of a pair: one channel of it may be as small as it likes.
    pairs = np.linalg.norm(np.reshape(mixed, (len(mixed), -1, 2)), axis=-1).repeat(2, axis=-1)
    np.testing.assert_allclose(mixed / pairs, half[:, swap] / pairs, atol=1e-6)


def test_beyond_reach_is_an_error_or_nan():
    assert 18_130 < XPos().reach < 18_131
    pos = np.array([18_130, 18_131])
    for known in (pos, jnp.asarray(pos), -pos):
        with pytest.raises(ValueError, match="holds positions up to 18130 in float32, got positions"):
            XPos().map_q(constants(XPos(), 4), jnp.ones((2, 4)), known)
    for hook in maps(XPos(), 4):
        fine, lost = hook(jnp.ones((2, 4)), jnp.asarray(pos))
        assert np.isfinite(fine).all()
        assert np.isnan(lost).all()


def test_a_larger_base_reaches_farther():
    pos = np.array([0, 100_000])
    assert np.isfinite(maps(XPos(scale_base=4096.0), 4)[1](jnp.ones((2, 4)), pos)).all()


def test_gradients_are_finite_at_the_end_of_the_reach():
    map_k = maps(XPos(), 4)[1]
    slope = jax.jit(jax.grad(lambda x, pos: map_k(x, pos).sum()))(jnp.ones((2, 4)), np.array([0, 18_130]))
    assert np.isfinite(slope).all()


def test_double_precision_follows_the_dtype(x64):
    turned = maps(XPos())[0](X.astype(np.float64), POS)
    expected, factor = numpy_xpos(X, POS, 1)
    assert turned.dtype == jnp.float64
    np.testing.assert_allclose(turned / np.tile(factor, 2).astype(np.float64), expected.astype(np.float64), atol=1e-10)


def test_nothing_is_learned():
    assert XPos().init(jax.random.key(0), Sizes(32, 2, 2, 16)) == EncodingParams()
    assert XPos().traits == Trait.MAPS


def test_mistakes_are_named():
    sizes = Sizes(32, 2, 2, 16)
    XPos().check(sizes=sizes, causal=True)
    XPos().check(causal=None)
    with pytest.raises(ValueError, match="needs a causal mask, got causal=False"):
        XPos().check(causal=False)
    with pytest.raises(ValueError, match="the head dimension must be even, got 3"):
        XPos().check(sizes=sizes._replace(head_dim=3))
    with pytest.raises(ValueError, match=r"scale_base must be positive and finite, got -1\.0"):
        XPos(scale_base=-1.0)
    with pytest.raises(ValueError, match="layout must be one of"):
        XPos(layout="quarter")


@pytest.mark.slow
def test_float16_reaches_as_far_as_float32():
    """Factors of 2^43 at position 12,000 are beyond float16, their products with one another are not."""
    pos = np.arange(12_000, 12_009)
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 9, 2, 8), jnp.float16) for i in range(3))
    options = {"encoding": XPos(), "q_pos": pos, "k_pos": pos, "mask": attnjax.Mask(causal=True)}
    expected = attnjax.attend(*(x.astype(jnp.float32) for x in (q, k, v)), **options)
    np.testing.assert_allclose(attnjax.attend(q, k, v, **options).astype(jnp.float32), expected, rtol=0, atol=4e-3)
