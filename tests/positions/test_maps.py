"""Maps of embeddings, queries and keys: sinusoidal and learned positions, xPos and PoPE, SSMax, LogN, Llama 4's temperature.

Against published numbers, other implementations and the papers' formulas in NumPy.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import OPTIMISED
from tests.positions.hooks import CAUSAL, close, constants, golden, run, with_gradients

DRAW = np.random.default_rng(1)

# Sinusoidal and learned positions -----------------------------------------------------------------------------------

TABLE = np.float32([[1, 2], [3, 4], [5, 6]])
EMBEDDED = np.float32([[0.5, 0.25], [-1, 0]])


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
    table = lambda pos, order: aj.positions.embed(aj.Sinusoidal(order, 100.0), None, jnp.zeros((1, len(pos), 16)), pos)[
        0
    ]
    both = lambda pos: [table(pos, order) for order in ("concatenated", "interleaved")]
    concatenated, interleaved = run(both, pos)
    close(concatenated, by_numpy(pos, 16, 100.0), 1e-6)
    np.testing.assert_array_equal(interleaved, concatenated[:, np.arange(16).reshape(2, -1).T.ravel()])


def test_refuses_an_odd_width():
    with pytest.raises(ValueError, match="the width must be even, got 5"):
        aj.Sinusoidal().constants(aj.Sizes(5, 1, 1, 4))


def learned(table, pos):
    return aj.Learned(3).embed({"table": table}, EMBEDDED, pos)


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
            aj.embed(aj.Learned(3), {"table": TABLE}, EMBEDDED[None], np.array([1, bad]))
    with pytest.raises(ValueError, match=r"integer positions .*, got float32"):
        learned(TABLE, np.float32([0, 1]))
    with pytest.raises(ValueError, match=r"the table must have shape \(3, 2\), got \(2, 2\)"):
        learned(TABLE[:2], np.array([0, 1]))


# xPos ----------------------------------------------------------------------------------------------------------------

C, REAL = 8, np.longdouble
POS = np.concatenate([np.arange(40), DRAW.integers(0, 16_385, 400), [16_383, 16_384], -DRAW.integers(0, 16_385, 100)])
X = DRAW.normal(size=(len(POS), 2 * C)).astype(np.float32)


def by_long_double(x, pos):
    """Half layout: (turned, factor of every pair of a query)."""
    pos, k = np.asarray(pos, REAL)[:, None], np.arange(C, dtype=REAL)
    factor = ((k / C + REAL(4) / 10) / (REAL(14) / 10)) ** (pos / 512)
    angle, a, b = pos * REAL(10_000) ** (-k / C), x[:, :C].astype(REAL), x[:, C:].astype(REAL)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1), factor


def xpos_maps(encoding, x, pos, head=2 * C):
    p = constants(encoding, head)
    return run(lambda x, pos: (encoding.map_q(p, x, pos), encoding.map_k(p, x, pos)), x, pos)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_xpos_is_accurate_to_16384(dtype):
    """Relative to the lengths of pairs; and the score of two positions fades with their distance."""
    turned, factor = by_long_double(X, POS)
    lengths = np.tile(np.hypot(X[:, :C], X[:, C:]), 2)
    q, k = (x.astype(REAL) for x in xpos_maps(aj.XPos(), X, POS.astype(dtype)))
    for found, stretch in ((q, factor), (k, 1 / factor)):
        assert np.abs((found / np.tile(stretch, 2) - turned) / lengths).max() < 1.2e-6
    away = np.arange(40)
    far, near = POS == 16_384, away
    expected, fade = by_long_double(np.repeat(X[far], 40, 0), 16_384 - away)
    assert np.abs(q[far] @ k[near].T / (expected * np.tile(fade, 2) * X[near]).sum(1) - 1).max() < 1e-3


def test_xpos_beyond_its_reach_is_refused_or_nan():
    xpos, reach = aj.XPos(), 18_130
    assert reach < xpos.reach < reach + 1
    xpos.check(np.array([[reach, -reach]]))
    for pos in ([reach + 1], [-reach - 1]):
        with pytest.raises(ValueError, match="holds positions up to 18130 in float32, got positions"):
            xpos.check(np.array([pos]))
    both = np.array([reach, reach + 1, -reach, -reach - 1])
    for found in xpos_maps(xpos, np.ones((4, 4), np.float32), both, 4):
        np.testing.assert_array_equal(np.isfinite(found).all(1), [True, False, True, False])
    assert aj.XPos(scale_base=4096.0).reach > 100_000


# SSMax and LogN ------------------------------------------------------------------------------------------------------


def factors(encoding, p, pos):
    return run(lambda p, pos: encoding.map_q(p, jnp.ones((len(pos), 1)), pos)[:, 0], p, pos)


@pytest.mark.parametrize("biased", [False, True])
def test_ssmax_agrees_with_the_reference_arrays(biased, x64):
    arrays, encoding = golden("frontier_scalable_softmax"), aj.SSMax(biased=biased)
    params = {name: arrays[name] for name in ("sb" if biased else "s")}
    options = {"encoding": encoding, "mask": CAUSAL, "implementation": "dense"}
    call = lambda params, q, k: aj.attend(q, k, jnp.asarray(arrays["v"]), params=params, **options)
    if not biased:
        close(run(call, params, arrays["q"], arrays["k"]), arrays["plain_out"])
        return
    out, (of_params, *of_qk) = with_gradients(call, arrays["w"], params, arrays["q"], arrays["k"])
    close(out, arrays["biased_out"])
    for name, gradient in (of_params | dict(zip("qk", of_qk))).items():
        close(gradient, arrays[f"grad_{name}"])


def test_ssmax_by_hand():
    """s ln(pos + 1), so that the third query weighs logits of 0, 1, 2 as 3^0, 3^1, 3^2; 0 before position 0."""
    pos = np.float32([-3, -0.5, 0, 0.5, 2, 6.25, 2**31])
    expected = 2 * np.log(np.maximum(pos, 0) + 1)
    np.testing.assert_allclose(factors(aj.SSMax(), {"s": np.float32(2)}, pos), expected, rtol=1e-6)
    biased = factors(aj.SSMax(biased=True), {"s": np.float32(2), "b": np.float32(3)}, pos)
    np.testing.assert_allclose(biased, expected + 3, rtol=1e-6)
    weights = np.exp(np.arange(3) * factors(aj.SSMax(), {"s": np.float32(1)}, np.array([2])))
    np.testing.assert_allclose(weights / weights.sum(), [1 / 13, 3 / 13, 9 / 13], rtol=1e-6)


def test_gradients_of_ssmax_are_finite_from_the_first_position_on():
    pos = np.float32([-5, -0.5, 0, 1])
    total = lambda s, q: aj.SSMax().map_q({"s": s}, q, pos).sum()
    found = run(jax.grad(total, argnums=(0, 1)), np.float32(0.4), np.ones((4, 2), np.float32))
    assert all(np.isfinite(leaf).all() for leaf in found)


def test_log_n_by_hand():
    """Up to the trained length nothing changes."""
    found = factors(aj.LogN(length=8), {}, np.array([-3, 0, 7, 63, 511]))
    np.testing.assert_allclose(found, [1, 1, 1, 2, 3], rtol=1e-6)


# Llama 4 -------------------------------------------------------------------------------------------------------------


def test_a_layer_of_llama4_of_transformers(x64):
    """Without RoPE: projections, two key heads for four heads, steps of 3; and the steps of the default configuration."""
    arrays = golden("frontier_llama4")
    x = arrays["x"]
    project = lambda name, heads: (x @ arrays[f"{name}_proj.weight"].T).reshape(2, 12, heads, 8)
    options = {"encoding": aj.Llama4Temperature(3, 0.4), "mask": CAUSAL, "implementation": "dense"}
    out = run(lambda q, k, v: aj.attend(q, k, v, **options), project("q", 4), project("k", 2), project("v", 2))
    close(out.reshape(2, 12, 32) @ arrays["o_proj.weight"].T, arrays["temperature_out"])
    close(factors(aj.Llama4Temperature(), {}, arrays["scale_position"].astype(np.int32)), arrays["scale"])


def test_steps_are_where_they_should_be_in_compiled_programs():
    """Single precision, around multiples: a division by a constant is compiled to a product with its reciprocal, and

    n * (1 / n) is below 1 for n = 41, 47, 55 ..., while (pos + 1) / L rounded up would be a step too early elsewhere.
    """
    below = [n for n in range(2, 301) if np.float32(n) * (1 / np.float32(n)) < 1]
    scales, steps = np.array([3, 7, 10, *below[::6]]), np.array([1, 2, 3, 7, 41, 100, 1000, 30_000])
    assert 41 in below
    pos = (scales[:, None, None] * steps[:, None] + np.arange(-2, 1)).reshape(len(scales), -1).astype(np.int32)
    one = lambda L, row: aj.Llama4Temperature(int(L)).map_q({}, jnp.ones((len(row), 1)), row)[:, 0]
    all_scales = jax.jit(lambda pos: [one(L, row) for L, row in zip(scales, pos, strict=True)])
    found = all_scales.lower(list(pos)).compile(OPTIMISED)(list(pos))
    np.testing.assert_allclose(found, 1 + 0.1 * np.log1p((pos + 1) // scales[:, None]), rtol=3e-7)


def test_positions_before_zero_and_far_away():
    pos = np.array([-(2**31), -8193, -1, 0, 8190, 8191, 2**31 - 1])
    expected = 1 + 0.1 * np.log1p([0, 0, 0, 0, 0, 1, 2**31 / 8192])
    np.testing.assert_allclose(factors(aj.Llama4Temperature(), {}, pos.astype(np.int32)), expected, rtol=1e-6)
    assert math.isclose(1 + 0.1 * math.log(2), expected[5])
