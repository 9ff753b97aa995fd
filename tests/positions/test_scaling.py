"""Every rule that stretches the frequencies of RoPE, against its formula in NumPy float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import Sizes, Trait
from attnjax.positions.rope import RoPE
from attnjax.positions.scaling import Llama3, NTKAware, PositionInterpolation, YaRN
from attnjax.positions.scaling_dynamic import DynamicNTK, LongRoPE

D = 16
C = D // 2
THETA = 10_000.0
SIZES = Sizes(model=D, heads=1, kv_heads=1, head_dim=D)
BASE = THETA ** (-2 * np.arange(C) / D)
SHORT, LONG = tuple(1 + 0.1 * k for k in range(C)), tuple(2.0 + k for k in range(C))
LONGROPE = LongRoPE(SHORT, LONG, original_length=64, factor=4.0)
Q = np.random.default_rng(0).normal(size=(7, D)).astype(np.float32)


def dynamic(length, factor=2.0, original=64):
    """The frequencies of dynamic NTK as the papers write them."""
    if length <= original:
        return BASE
    base = THETA * (factor * length / original - (factor - 1)) ** (D / (D - 2))
    return base ** (-2 * np.arange(C) / D)


def rotated(radians, x, pos, gain=1.0):
    z = (x[:, :C] + 1j * x[:, C:]) * np.exp(1j * np.asarray(pos)[:, None] * radians) * gain
    return np.concatenate([z.real, z.imag], axis=-1)


def turn(rope, x, pos, length=None):
    """map_q with a traced length and traced positions."""

    def one(x, pos, length):
        return rope.map_q(rope.constants(SIZES, length), x, pos)

    return jax.jit(one)(jnp.asarray(x), pos, length)


def test_position_interpolation():
    np.testing.assert_allclose(PositionInterpolation(4.0).radians(C, THETA), BASE / 4, rtol=1e-14)


def test_ntk_aware():
    radians = NTKAware(4.0).radians(C, THETA)
    np.testing.assert_allclose(radians, (THETA * 4 ** (16 / 14)) ** (-2 * np.arange(C) / D), rtol=1e-13)
    np.testing.assert_allclose(radians[[0, -1]], [1.0, BASE[-1] / 4], rtol=1e-13)


def test_yarn_by_hand():
    # d = 128, L = 4096: dim(32) = 20.95, dim(1) = 45.03, so the ramp runs from pair 20 to pair 46.
    base = THETA ** (-np.arange(64) / 64)
    ramp = np.array([0.0] * 20 + [i / 26 for i in range(27)] + [1.0] * 17)
    yarn = YaRN(16.0, 4096)
    np.testing.assert_allclose(yarn.radians(64, THETA), base * (1 - ramp) + base / 16 * ramp, rtol=1e-13)
    assert yarn.gain == pytest.approx(0.1 * math.log(16) + 1)


def test_yarn_options():
    # d = 16, L = 1024: dim(8) = 2.62 and dim(2) = 3.82, so the ramp runs from pair 2 to pair 4.
    ramp = np.array([0, 0, 0, 0.5, 1, 1, 1, 1])
    yarn = YaRN(8.0, 1024, beta_fast=8.0, beta_slow=2.0, attention_factor=1.3)
    np.testing.assert_allclose(yarn.radians(C, THETA), BASE * (1 - ramp) + BASE / 8 * ramp, rtol=1e-13)
    assert yarn.gain == 1.3


def test_yarn_with_a_ramp_of_no_length():
    # L = 4: both ends are clamped to 0; the first pair is kept and the others are divided.
    np.testing.assert_allclose(YaRN(4.0, 4).radians(4, THETA) / THETA ** (-np.arange(4) / 4), [1, 0.25, 0.25, 0.25])


def test_yarn_of_an_original_length_beyond_all_wavelengths():
    """Of 4 pairs at base 10, 32 turns are made up to 10^(2 - 1/4) at index 7, the last, and up to 10^2 at index 8."""
    ratios = lambda length: YaRN(4.0, length).radians(4, 10.0) / 10.0 ** -(np.arange(4) / 4)
    for length in (round(64 * math.pi * 10**1.75) + 1, round(64 * math.pi * 100) - 1):
        np.testing.assert_allclose(ratios(length), 1, rtol=1e-12)
    np.testing.assert_allclose(ratios(round(64 * math.pi * 100) + 1), 0.25, rtol=1e-12)


def test_llama3():
    wavelength = 2 * np.pi / BASE
    expected = []
    for f, w in zip(BASE, wavelength, strict=True):
        if w < 64 / 4:
            expected.append(f)
        elif w > 64 / 1:
            expected.append(f / 8)
        else:
            smooth = (64 / w - 1) / (4 - 1)
            expected.append((1 - smooth) * f / 8 + smooth * f)
    assert (wavelength < 16).sum() == 1
    assert ((wavelength >= 16) & (wavelength <= 64)).sum() == 2
    np.testing.assert_allclose(Llama3(8.0, 64).radians(C, THETA), expected, rtol=1e-13)
    assert Llama3(8.0, 64).gain == 1.0


@pytest.mark.parametrize("length", [1, 63, 64, 65, 100, 4096])
def test_dynamic_ntk_of_a_known_length(length):
    np.testing.assert_allclose(DynamicNTK(2.0, 64).radians(C, THETA, length), dynamic(length), rtol=1e-13)


@pytest.mark.parametrize("length", [1, 64, 65, 4096])
@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_dynamic_ntk_of_a_traced_length(length, dtype):
    rule = DynamicNTK(2.0, 64)
    known = rule.frequencies(C, THETA, length)
    traced = jax.jit(lambda length: rule.frequencies(C, THETA, length))(dtype(length))
    turns = np.asarray(traced.high, np.float64) * 2.0**-32 + np.asarray(traced.low, np.float64) * 2.0**-64
    np.testing.assert_allclose(turns, dynamic(length) / (2 * np.pi), rtol=1e-6)
    exact_pairs = slice(None) if length <= 64 else slice(0, 1)
    for ours, theirs in zip(traced[:2], known[:2], strict=True):
        np.testing.assert_array_equal(ours[exact_pairs], theirs[exact_pairs])


def test_dynamic_ntk_resets_after_a_long_sequence_and_has_one_length_per_example():
    rope, pos = RoPE(scaling=DynamicNTK(2.0, 64)), jnp.arange(7) + 30
    both = jax.vmap(lambda length: turn(rope, Q, pos, length))(jnp.array([500, 40]))
    np.testing.assert_allclose(both[0], rotated(dynamic(500), Q, pos), atol=4e-5)
    np.testing.assert_allclose(both[1], rotated(BASE, Q, pos), atol=2e-6)


@pytest.mark.parametrize(("length", "factors"), [(64, SHORT), (65, LONG), (1, SHORT), (1000, LONG)])
def test_longrope_chooses_its_list_by_length(length, factors):
    rope, pos = RoPE(scaling=LONGROPE), jnp.arange(7) * 9_000
    gain = math.sqrt(1 + math.log(4) / math.log(64))
    expected = rotated(BASE / np.array(factors), Q, pos, gain)
    np.testing.assert_allclose(turn(rope, Q, pos, length), expected, atol=4e-6)
    known = rope.map_k(rope.constants(SIZES, length), jnp.asarray(Q), np.asarray(pos))
    np.testing.assert_allclose(known, expected, atol=4e-6)


def test_longrope_attention_factor():
    assert LongRoPE(SHORT, LONG, 4096, attention_factor=1.19).gain == 1.19
    assert LongRoPE(SHORT, LONG, 4096, factor=32.0).gain == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
    assert LongRoPE(SHORT, LONG, 4096).gain == 1.0


def test_attention_factor_multiplies_the_rotary_channels_only():
    rope, pos = RoPE(fraction=0.5, scaling=YaRN(4.0, 64, attention_factor=3.0)), jnp.zeros(7, jnp.int32)
    np.testing.assert_allclose(turn(rope, Q, pos), np.concatenate([3 * Q[:, :C], Q[:, C:]], -1), rtol=1e-6)


def test_frequencies_use_the_rotary_width_and_keep_comes_after_scaling():
    rope = RoPE(fraction=0.5, scaling=NTKAware(4.0), keep=0.5)
    radians = (THETA * 4 ** (8 / 6)) ** (-np.arange(4) / 4)
    np.testing.assert_allclose(rope.frequencies(D).radians, [radians[0], radians[1], 0, 0], rtol=1e-13)
    traced = RoPE(scaling=DynamicNTK(2.0, 64), keep=0.5)
    high = jax.jit(lambda length: traced.frequencies(D, length).high)(500)
    np.testing.assert_array_equal(np.asarray(high) > 0, np.arange(C) < 4)


@pytest.mark.parametrize("scaling", [DynamicNTK(2.0, 64), LONGROPE], ids=lambda s: type(s).__name__)
def test_length_dependent_scaling_needs_a_length(scaling):
    rope = RoPE(scaling=scaling)
    assert rope.traits == Trait.MAPS | Trait.LENGTH
    short, long = (rope.constants(SIZES, length).shared["frequencies"].radians for length in (9, 90))
    assert np.abs(short / long - 1).max() > 0.1
    with pytest.raises(ValueError, match=r"RoPE\(.*\) depend on the length of the sequence, got length=None"):
        rope.constants(SIZES)


def test_double_precision_follows_the_dtype(x64):
    pos = np.arange(7)
    for scaling in (YaRN(4.0, 64), DynamicNTK(2.0, 64), LONGROPE):
        rope = RoPE(scaling=scaling)
        known = rope.map_k(rope.constants(SIZES, 100), jnp.asarray(Q, jnp.float64), pos)
        traced = turn(rope, Q.astype(np.float64), pos, 100)
        assert traced.dtype == jnp.float64
        np.testing.assert_allclose(traced, known, atol=1e-12)


@pytest.mark.parametrize("rule", [NTKAware(2.0), DynamicNTK(2.0, 64)])
def test_a_change_of_base_needs_two_pairs(rule):
    with pytest.raises(ValueError, match="the rotary width must exceed 2, got 2"):
        RoPE(scaling=rule).check(sizes=Sizes(2, 1, 1, 2))
    with pytest.raises(ValueError, match="the rotary width must exceed 2, got 2"):
        rule.radians(1, THETA)


def test_factor_lists_must_fit_the_pairs():
    with pytest.raises(ValueError, match="short_factors must have one number per pair, 4, got 8"):
        RoPE(scaling=LONGROPE).check(sizes=Sizes(8, 1, 1, 8))
    with pytest.raises(ValueError, match="long_factors must have one number per pair, 8, got 3"):
        LongRoPE(SHORT, LONG[:3], 64).radians(C, THETA)


@pytest.mark.parametrize("rule", [PositionInterpolation, NTKAware, DynamicNTK, YaRN, Llama3])
@pytest.mark.parametrize("bad", [0.0, -2.0, float("nan"), float("inf")])
def test_factors_out_of_range(rule, bad):
    length = () if rule in (PositionInterpolation, NTKAware) else (64,)
    with pytest.raises(ValueError, match=f"{rule.__name__}: factor must be positive and finite, got {bad}"):
        rule(bad, *length)
    with pytest.raises(ValueError, match=rf"{rule.__name__}: factor is .* at least 1, got 0\.5"):
        rule(0.5, *length)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: YaRN(2.0, 0), "YaRN: original_length must be at least 1, got 0"),
        (lambda: Llama3(2.0, 64.0), r"Llama3: original_length must be an integer, got 64\.0"),
        (lambda: YaRN(2.0, 64, beta_fast=1.0), r"beta_fast must exceed beta_slow, got 1\.0 and 1\.0"),
        (lambda: YaRN(2.0, 64, attention_factor=-1.0), r"attention_factor must be positive and finite, got -1\.0"),
        (lambda: Llama3(2.0, 64, 4.0, 1.0), r"high_freq_factor must exceed low_freq_factor, got 1\.0 and 4\.0"),
        (lambda: LongRoPE(SHORT, (float("nan"),), 64), "long_factors must be positive and finite, got nan"),
        (lambda: LongRoPE(SHORT, LONG, 1), "original_length must be at least 2, got 1"),
        (lambda: LongRoPE(SHORT, LONG, 64, factor=0.5), r"at least 1, got 0\.5"),
        (lambda: RoPE(theta=1.0, scaling=YaRN(2.0, 64)), r"a scaling needs theta > 1, got 1\.0"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_rules_are_hashable_even_from_lists():
    assert hash(LongRoPE(list(SHORT), list(LONG), 64)) == hash(LongRoPE(SHORT, LONG, 64))
