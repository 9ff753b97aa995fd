"""RoPE against a rotation written with complex numbers in float64, and the properties that make it RoPE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import attend_with_lse
from attnjax.positions.base import EncodingParams, Sizes, Trait
from attnjax.positions.rope import RoPE
from attnjax.positions.rotary import LAYOUTS, rotate, swapped

H = 16
RNG = np.random.default_rng(0)
Q, K = (RNG.normal(size=(6, H)).astype(np.float32) for _ in range(2))
TO_INTERLEAVED = np.arange(H).reshape(2, -1).T.ravel()
"""Channel 2k of the interleaved pairing is channel k of the half pairing, 2k + 1 is k + H/2."""


def numpy_rotary(x, pos, theta=10_000.0, turning=None):
    """Half pairing, every pair a complex number."""
    c = x.shape[1] // 2
    radians = theta ** (-np.arange(c) / c) * (np.arange(c) < (c if turning is None else turning))
    z = (x[:, :c] + 1j * x[:, c:]) * np.exp(1j * np.asarray(pos, np.float64)[:, None] * radians)
    return np.concatenate([z.real, z.imag], axis=-1)


def constants(rope, width=H):
    return rope.constants(Sizes(model=width, heads=1, kv_heads=1, head_dim=width))


def turn(rope, x, pos):
    """map_q under jit, after checking that map_k does the same."""
    x, p = jnp.asarray(x), constants(rope, x.shape[1])
    q = jax.jit(lambda x, pos: rope.map_q(p, x, pos))(x, pos)
    np.testing.assert_array_equal(q, jax.jit(lambda x, pos: rope.map_k(p, x, pos))(x, pos))
    return q


def scores(rope, q_pos, k_pos, other=None):
    return np.asarray(turn(rope, Q, q_pos)) @ np.asarray(turn(other or rope, K, k_pos)).T


def test_worked_example_of_two_channels():
    # theta = 0.5 radians per position: one pair of frequency 1 at half positions.
    turned = RoPE().map_q(
        constants(RoPE(), 2), jnp.tile(jnp.array([[1.0, 0.3]]), (4, 1)), jnp.array([0.0, 0.5, 1.0, 1.5])
    )
    by_hand = [[1.0, 0.3], [0.733755, 0.742701], [0.287861, 1.003562], [-0.228511, 1.018716]]
    np.testing.assert_allclose(turned, by_hand, atol=2e-6)


def test_score_is_q_times_the_rotation_by_n_minus_m_of_k():
    q, k = jnp.array([[1.0, 0.3]]), jnp.array([[0.2, -0.7]])
    for m, n in ((0, 0), (2, 5), (5, 2), (3, 1)):
        turned_q, turned_k = rotate(q, jnp.array([[0.5 * m]]), "half"), rotate(k, jnp.array([[0.5 * n]]), "half")
        score = (turned_q @ turned_k.T).item()
        cos, sin = np.cos(0.5 * (n - m)), np.sin(0.5 * (n - m))
        expected = np.array([1.0, 0.3]) @ np.array([[cos, -sin], [sin, cos]]) @ np.array([0.2, -0.7])
        np.testing.assert_allclose(score, expected, atol=1e-6)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("pos", [np.arange(6), np.array([-3, 0, 5, 999, 65_535, 1_048_576]), np.arange(6) / 4])
def test_equals_complex_multiplication(theta, pos):
    pos = pos.astype(np.float32) if pos.dtype == np.float64 else pos
    np.testing.assert_allclose(turn(RoPE(theta), Q, pos), numpy_rotary(Q, pos, theta), atol=4e-6)


def test_both_pairings_are_equal_under_the_channel_permutation():
    pos = np.array([0, 1, 5, 100, 4096, 65_536])
    half = np.asarray(turn(RoPE(), Q, pos))
    mixed = np.asarray(turn(RoPE(layout="interleaved"), Q[:, TO_INTERLEAVED], pos))
    np.testing.assert_allclose(mixed, half[:, TO_INTERLEAVED], atol=1e-6)


def test_pairings_differ_without_the_permutation_and_do_not_mix():
    pos, interleaved = np.arange(6) + 3, RoPE(layout="interleaved")
    assert np.abs(turn(RoPE(), Q, pos) - turn(interleaved, Q, pos)).max() > 0.1
    here, there = (scores(RoPE(), pos + shift, pos + shift, interleaved) for shift in (0, 50))
    assert np.abs(here - there).max() > 0.1


@pytest.mark.parametrize("rope", [RoPE(), RoPE(layout="interleaved"), RoPE(fraction=0.5), RoPE(keep=0.75)], ids=str)
@pytest.mark.parametrize("offset", [1_000, 65_536, -65_536])
def test_scores_depend_on_the_distance_only(rope, offset):
    pos = np.array([0, 1, 2, 7, 50, 300])
    bound = np.linalg.norm(Q, axis=1)[:, None] * np.linalg.norm(K, axis=1)[None, :]
    assert np.abs((scores(rope, pos, pos) - scores(rope, pos + offset, pos + offset)) / bound).max() < 1e-5


def test_norms_are_preserved():
    turned = turn(RoPE(), Q, np.array([0, 1, -5, 700, 65_536, 1_048_576]))
    np.testing.assert_allclose(np.linalg.norm(turned, axis=1), np.linalg.norm(Q, axis=1), rtol=1e-6)


def test_all_positions_up_to_65535_are_distinct_for_a_bfloat16_query():
    q = jnp.ones((65_536, 64), jnp.bfloat16).astype(jnp.float32)
    rows = np.asarray(turn(RoPE(), q, jnp.arange(65_536)))
    assert len(np.unique(rows, axis=0)) == 65_536


def test_fraction_turns_the_first_channels_with_the_frequencies_of_the_rotary_width():
    pos = np.arange(6) + 10
    turned = turn(RoPE(fraction=0.5), Q, pos)
    np.testing.assert_allclose(turned[:, : H // 2], numpy_rotary(Q[:, : H // 2], pos), atol=1e-6)
    np.testing.assert_array_equal(turned[:, H // 2 :], Q[:, H // 2 :])


def test_keep_turns_the_fastest_pairs_with_the_frequencies_of_the_whole_width():
    pos = np.arange(6) + 10
    np.testing.assert_allclose(turn(RoPE(keep=0.75), Q, pos), numpy_rotary(Q, pos, turning=6), atol=1e-6)


@pytest.mark.parametrize(
    ("head", "fraction", "keep", "pairs"),
    [
        (16, 1.0, 1.0, (8, 8)),
        (16, 0.25, 1.0, (2, 2)),
        (16, 0.3, 1.0, (2, 2)),
        (10, 0.5, 1.0, (2, 2)),
        (16, 1.0, 0.3, (8, 2)),
        (16, 1.0, 0.75, (8, 6)),
        (200, 0.29, 1.0, (29, 29)),
        (16, 0.5, 0.6, (4, 2)),
    ],
)
def test_shares_round_down_to_whole_pairs(head, fraction, keep, pairs):
    assert RoPE(fraction=fraction, keep=keep).pairs(head) == pairs


def test_follows_the_dtype_of_the_query(x64):
    pos = np.arange(6)
    for dtype, tolerance in ((jnp.float32, 1e-6), (jnp.float64, 1e-14)):
        turned = turn(RoPE(), jnp.asarray(Q, dtype), pos)
        assert turned.dtype == dtype
        np.testing.assert_allclose(turned, numpy_rotary(Q.astype(np.float64), pos), atol=tolerance)


def test_gradient_is_the_rotation_backwards():
    pos = np.arange(6)
    slope = jax.grad(lambda q: (RoPE().map_q(constants(RoPE()), q, pos) * K).sum())(jnp.asarray(Q))
    np.testing.assert_allclose(slope, numpy_rotary(K, -pos), atol=1e-6)


def test_rotate_stretches_by_the_magnitude():
    x, angle = jnp.array([[3.0, 4.0, 9.0]]), jnp.array([[np.pi / 2]], jnp.float32)
    np.testing.assert_allclose(rotate(x, angle, "interleaved", 2.0), [[-8.0, 6.0, 9.0]], atol=1e-6)


def test_nothing_is_learned_and_the_length_does_not_matter():
    sizes = Sizes(32, 2, 2, 16)
    assert RoPE().init(jax.random.key(0), sizes) == EncodingParams()
    assert RoPE().traits == Trait.MAPS
    for one, other in zip(*(jax.tree.leaves(RoPE().constants(sizes, length)) for length in (None, 9))):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"theta": 0.0}, r"RoPE: theta must be positive and finite, got 0\.0"),
        ({"theta": float("nan")}, "theta must be positive and finite, got nan"),
        ({"layout": "both"}, r"layout must be one of .*half.*interleaved.*got 'both'"),
        ({"fraction": 1.5}, r"shares in \(0, 1\], got 1\.5"),
        ({"keep": -0.5}, r"keep must be positive and finite, got -0\.5"),
        ({"keep": 2.0}, r"shares in \(0, 1\], got 1\.0 and 2\.0"),
        ({"scaling": "yarn"}, r"scaling must be None or a rule such as YaRN\(\.\.\.\), got 'yarn'"),
    ],
)
def test_hyper_parameters_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        RoPE(**options)


def test_head_dimensions_that_do_not_fall_into_pairs():
    with pytest.raises(ValueError, match="the head dimension must be even, got 7"):
        RoPE().check(sizes=Sizes(14, 2, 2, 7))
    with pytest.raises(ValueError, match="the head dimension must be even, got 7"):
        constants(RoPE(), 7)
    with pytest.raises(ValueError, match=r"fraction=0\.1 and keep=1\.0 leave no pair of a head dimension of 8"):
        RoPE(fraction=0.1).check(sizes=Sizes(16, 2, 2, 8))
    with pytest.raises(ValueError, match="4 pairs need 8 channels, got a head dimension of 6"):
        rotate(jnp.ones((2, 6)), jnp.ones((2, 4)), "half")


@pytest.mark.parametrize("start", [30_000, 1_000_000])
def test_bfloat16_logits_far_out_are_off_by_the_rounding_of_queries_and_keys_alone(start):
    """Whole numbers near 30,000 are 128 apart in bfloat16, those near a million 4,096: positions must never pass through it."""
    q, k = (jnp.asarray(RNG.normal(size=(64, H)), jnp.bfloat16) for _ in range(2))
    pos, u = start + np.arange(64), 2.0**-8

    def logits(q_pos, k_pos):
        """The log-sum-exp over a single key is its logit."""
        one = lambda k, k_pos: attend_with_lse(
            q[None, :, None],
            k[None, None, None],
            k[None, None, None],
            encoding=RoPE(),
            scale=1.0,
            q_pos=q_pos,
            k_pos=k_pos[None],
        )[1][0, :, 0]
        return jax.jit(jax.vmap(one, out_axes=1))(k, k_pos)

    true_q, true_k = (numpy_rotary(np.asarray(x, np.float64), pos) for x in (q, k))
    bound = (2 * u + u**2) * np.abs(true_q) @ np.abs(true_k).T + 1e-5
    found = np.asarray(logits(jnp.asarray(pos), jnp.asarray(pos)), np.float64)
    assert np.all(np.abs(found - true_q @ true_k.T) <= bound)
    rounded = np.asarray(jnp.asarray(pos, jnp.bfloat16), np.float64)
    trapped = numpy_rotary(np.asarray(q, np.float64), rounded) @ numpy_rotary(np.asarray(k, np.float64), rounded).T
    assert np.mean(np.abs(trapped - true_q @ true_k.T) > bound) > 0.8, "the bound would show positions in bfloat16"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [2, 8, 64])
def test_channels_of_a_pair_are_swapped(layout, width):
    x = np.random.default_rng(width).normal(size=(5, width))
    pairs = (
        [(k, k + width // 2) for k in range(width // 2)]
        if layout == "half"
        else [(k, k + 1) for k in range(0, width, 2)]
    )
    expected = x.copy()
    for a, b in pairs:
        expected[:, [a, b]] = x[:, [b, a]]
    np.testing.assert_array_equal(swapped(jnp.asarray(x), layout), expected.astype(jnp.asarray(x).dtype))
