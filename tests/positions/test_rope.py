"""RoPE and its scalings against complex numbers, the papers' formulas in NumPy, and worked numbers."""

import functools
import math

import jax
import numpy as np
import pytest

from attnjax import DynamicNTK, LongRoPE, NTKAware, PositionInterpolation, Resonance, RoPE, Sizes, YaRN
from attnjax.positions import program
from attnjax.positions.rotary import rotate
from tests.golden_arrays import load
from tests.positions.hooks import close, constants

H = 16
C = H // 2
BASE = 10_000.0 ** (-np.arange(C) / C)
X = np.random.default_rng(0).normal(size=(6, H)).astype(np.float32)
INTERLEAVED = np.arange(H).reshape(2, -1).T.ravel()
"""Channel 2k of the interleaved layout is channel k of the half layout, and 2k + 1 is k + H/2."""
SHORT, LONG = tuple(1 + 0.1 * k for k in range(C)), tuple(2.0 + k for k in range(C))


def complex_rotary(x: np.ndarray, pos: np.ndarray, radians: np.ndarray) -> np.ndarray:
    """Half layout, every pair a complex number; channels beyond the pairs pass."""
    c = len(radians)
    z = (x[:, :c] + 1j * x[:, c : 2 * c]) * np.exp(1j * np.asarray(pos, np.float64)[:, None] * radians)
    return np.concatenate([z.real, z.imag, x[:, 2 * c :]], axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def maps(rope: RoPE, p: dict, x: np.ndarray, pos: np.ndarray) -> tuple[jax.Array, jax.Array]:
    return rope.map_q(p, x, pos), rope.map_k(p, x, pos)


def turn(rope: RoPE, x: np.ndarray, pos: np.ndarray) -> np.ndarray:
    """map_q, which map_k equals."""
    q, k = map(np.asarray, maps(program(rope), constants(rope, x.shape[1]), x, pos))
    np.testing.assert_array_equal(q, k)
    return q


def test_worked_example_of_two_channels():
    """Half a radian per position: (cos a - 0.3 sin a, sin a + 0.3 cos a) for a = 0, 0.5, 1, 1.5."""
    turned = turn(RoPE(scaling=PositionInterpolation(2.0)), np.tile(np.float32([1.0, 0.3]), (4, 1)), np.arange(4))
    close(turned, [[1.0, 0.3], [0.733755, 0.742701], [0.287861, 1.003562], [-0.228511, 1.018716]], 2e-6)


@pytest.mark.parametrize(
    ("rope", "pos", "radians"),
    [
        (RoPE(500_000.0), np.array([-3, 0, 5, 999, 65_535, 1_048_576]), 500_000.0 ** (-np.arange(C) / C)),
        (RoPE(), (np.arange(6) / 4).astype(np.float32), BASE),
        (RoPE(fraction=0.5), np.arange(6) + 10, 10_000.0 ** (-np.arange(4) / 4)),
        (RoPE(keep=0.75), np.arange(6) + 10, np.where(np.arange(C) < 6, BASE, 0)),
    ],
    ids=["far", "fractional", "fraction", "keep"],
)
def test_equals_complex_multiplication(rope, pos, radians):
    close(turn(rope, X, pos), complex_rotary(X.astype(np.float64), pos, radians), 4e-6)


def test_layouts_are_equal_under_the_permutation_and_not_otherwise():
    pos = np.array([0, 1, 5, 100, 4096, 65_536])
    half, mixed = turn(RoPE(), X, pos), turn(RoPE(layout="interleaved"), X[:, INTERLEAVED], pos)
    close(mixed, half[:, INTERLEAVED], 1e-6)
    assert np.abs(half - turn(RoPE(layout="interleaved"), X, pos)).max() > 0.1


@pytest.mark.parametrize(
    ("head", "fraction", "keep", "pairs"),
    [
        (16, 1.0, 1.0, (8, 8)), (16, 0.25, 1.0, (2, 2)), (16, 0.3, 1.0, (2, 2)), (10, 0.5, 1.0, (2, 2)),
        (16, 1.0, 0.3, (8, 2)), (200, 0.29, 1.0, (29, 29)), (16, 0.5, 0.6, (4, 2)),
    ],
)  # fmt: skip
def test_shares_round_down_to_whole_pairs(head, fraction, keep, pairs):
    assert RoPE(fraction=fraction, keep=keep).pairs(head) == pairs


# Scalings ------------------------------------------------------------------------------------------------------------


def dynamic(length: int) -> np.ndarray:
    """Dynamic NTK with a factor of 2 from 64 positions, as the paper writes it."""
    return (10_000.0 * (2.0 * length / 64 - 1) ** (H / (H - 2))) ** (-np.arange(C) / C) if length > 64 else BASE


RAMP = np.array([0, 0, 0, 0.5, 1, 1, 1, 1])
LONGROPE = LongRoPE(SHORT, LONG, original_length=64, factor=4.0)
RULES = {
    # d = 16, L = 1024: k(8) = 2.62 and k(2) = 3.82, so that the ramp runs from pair 2 to pair 4.
    "yarn": (YaRN(8.0, 1024, 8.0, 2.0, 1.3), None, BASE * (1 - RAMP) + BASE / 8 * RAMP, 1.3),
    "yarn of one step": (YaRN(4.0, 4), None, BASE / np.where(np.arange(C) == 0, 1, 4), 0.1 * math.log(4) + 1),
    "dynamic, unknown": (DynamicNTK(2.0, 64), None, BASE, 1),
    "dynamic, short": (DynamicNTK(2.0, 64), 64, BASE, 1),
    "dynamic, long": (DynamicNTK(2.0, 64), 65, dynamic(65), 1),
    "longrope, unknown": (LONGROPE, None, BASE / SHORT, math.sqrt(4 / 3)),
    "longrope, short": (LONGROPE, 64, BASE / SHORT, math.sqrt(4 / 3)),
    "longrope of a gain": (LongRoPE(SHORT, LONG, 64, attention_factor=1.19), 65, BASE / LONG, 1.19),
    "longrope of no factor": (LongRoPE(SHORT, LONG, 64), None, BASE / SHORT, 1),
}
"""Rule, length, frequencies, gain, beside those of `tests/attention/matrix.py`."""


@pytest.mark.parametrize("name", RULES)
def test_frequencies_and_gain_by_the_formula(name):
    rule, length, radians, gain = RULES[name]
    found = constants(RoPE(scaling=rule), H, length)
    np.testing.assert_allclose(found["frequencies"].radians, radians, rtol=1e-12)
    assert found["gain"] == pytest.approx(gain, rel=1e-12)
    assert RoPE(scaling=rule).by_length == name.startswith(("dynamic", "longrope"))


def test_yarn_of_gpt_oss_does_not_round_the_ends_of_its_ramp():
    """d = 64: k(32) = 8.092779 and k(1) = 17.398024."""
    yarn = YaRN(32.0, 4096, truncate=False)
    ratios = yarn.radians(32, 150_000.0) / 150_000.0 ** (-np.arange(32) / 32)
    close(ratios[[8, 9, 13, 18]], [1, 0.905551, 0.489119, 1 / 32], 1e-6)
    assert yarn.gain == pytest.approx(1.346574, abs=1e-6)


def test_yarn_of_an_original_length_beyond_all_wavelengths():
    """Of 4 pairs at base 10, 32 turns are made up to 10^(2 - 1/4) at index 7, the last, and up to 10^2 at index 8."""
    ratios = lambda length: YaRN(4.0, length).radians(4, 10.0) / 10.0 ** -(np.arange(4) / 4)
    for length in (round(64 * math.pi * 10**1.75) + 1, round(64 * math.pi * 100) - 1):
        np.testing.assert_allclose(ratios(length), 1, rtol=1e-12)
    np.testing.assert_allclose(ratios(round(64 * math.pi * 100) + 1), 0.25, rtol=1e-12)


def test_the_gain_stretches_the_rotary_channels_alone_and_keep_comes_after_the_scaling():
    rope = RoPE(fraction=0.5, scaling=YaRN(4.0, 64, attention_factor=3.0))
    np.testing.assert_allclose(turn(rope, X, np.zeros(6, np.int32)), X * np.repeat([3, 1], C), rtol=1e-6)
    found = constants(RoPE(fraction=0.5, scaling=NTKAware(4.0), keep=0.5), H)["frequencies"].radians
    radians = (10_000.0 * 4 ** (8 / 6)) ** (-np.arange(4) / 4)
    np.testing.assert_allclose(found, [radians[0], radians[1], 0, 0], rtol=1e-13)


def test_resonance_is_that_of_its_authors_and_repeats():
    """Whose float32 frequencies lie a rounding away from a half for none of these; a factor of 1 is plain RoPE."""
    golden = load("untrained_resonance")
    for factor in (1, 4, 16):
        scaling = Resonance(None if factor == 1 else YaRN(float(factor), original_length=128))
        np.testing.assert_allclose(scaling.radians(32, 10_000.0), golden[f"inv_freq_{factor}"], rtol=1e-12)
        assert scaling.gain == pytest.approx(float(golden[f"attention_factor_{factor}"]), rel=1e-12)
    first = np.broadcast_to(np.float32(np.arange(64) < 32), (96, 64))
    turned = turn(RoPE(scaling=Resonance(YaRN(16.0, original_length=128))), first, np.arange(96))
    close(turned, np.concatenate([golden["cos"], golden["sin"]], 1), 2e-6)
    # The wavelengths of two pairs are 6 and 628 positions, and 1,884 is the smallest multiple of both.
    near, far = turn(RoPE(scaling=Resonance()), np.ones((2, 4), np.float32), np.array([5, 5 + 1884 * 1000]))
    close(far, near, 1e-6)


def test_refuses_what_does_not_fit():
    sizes = lambda head: Sizes(2 * head, 2, 2, head)
    for rope, head, message in (
        (RoPE(), 7, "head dimension must be even, got 7"),
        (RoPE(fraction=0.1), 8, "fraction=0.1 and keep=1.0 leave no pair of a head dimension of 8"),
        (RoPE(scaling=NTKAware(2.0)), 2, "the rotary width must exceed 2, got 2"),
        (RoPE(scaling=DynamicNTK(2.0, 64)), 2, "the rotary width must exceed 2, got 2"),
        (RoPE(scaling=LONGROPE), 8, "short_factors must have one number per pair, 4, got 8"),
        (RoPE(scaling=LongRoPE(SHORT, LONG[:3], 64)), 16, "long_factors must have one number per pair, 8, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            rope.constants(sizes(head))
    with pytest.raises(ValueError, match="4 pairs need 8 channels, got a head dimension of 6"):
        rotate(np.ones((2, 6)), np.ones((2, 4)), "half")
