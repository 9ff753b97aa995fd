"""ALiBi, T5, Kerple, Sandwich, FIRE and Transformer-XL against published numbers and the papers' formulas.

Arrays of the released code are compared in `tests/test_golden.py`.
"""

import math

import jax
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions.t5 import bucket
from tests.positions.hooks import close, run, tile

DRAW = np.random.default_rng(1)
SLOPES = {
    1: [0.00390625],
    6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256, 0.70710678, 0.35355339, 0.17677670, 0.08838835],
}


def bias(encoding, p, n):
    return run(encoding.bias, p, n)


# ALiBi ---------------------------------------------------------------------------------------------------------------


def slopes(encoding, heads):
    return encoding.constants(aj.Sizes(8 * heads, heads, heads, 8))["slope"]


def test_slopes_are_the_published_ones_or_those_of_the_caller():
    for heads, expected in SLOPES.items():
        np.testing.assert_allclose(slopes(aj.ALiBi(), heads), expected, rtol=1e-7)
    np.testing.assert_array_equal(slopes(aj.ALiBi(slopes=(0.5, 3.0)), 2), [0.5, 3.0])


def test_alibi_by_hand():
    """Symmetric, and with keys in the past nearer by a half."""
    n, p = np.float32([0, 1, 7, -2, 100, -5]), {"slope": np.float32(0.25)}
    forms = aj.ALiBi(), aj.ALiBi(symmetric=True), aj.ALiBi(symmetric=True, past=0.5)
    found = run(lambda p, n: ([one.bias(p, n) for one in forms], forms[0].slope(p) * n), p, n)
    causal, symmetric, nearer = found[0]
    np.testing.assert_array_equal(causal, [0, -0.25, -1.75, 0.5, -25, 1.25])
    np.testing.assert_array_equal(symmetric, [0, -0.25, -1.75, -0.5, -25, -1.25])
    np.testing.assert_array_equal(nearer, [0, -0.125, -1.625, -0.5, -24.875, -1.25])
    np.testing.assert_array_equal(found[1], causal)
    assert [one.slope(p) for one in forms[1:]] == [None, None]


# T5 ------------------------------------------------------------------------------------------------------------------


def by_logarithm(m: int, buckets: int, max_distance: int) -> int:
    """The published formula in float64, moved up a little so that exact boundaries do not fall below themselves."""
    small = buckets // 2
    if m < small:
        return m
    steps = math.log(m / small) / math.log(max_distance / small) * (buckets - small)
    return min(buckets - 1, small + math.floor(steps + 1e-9))


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


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_reads_the_bucket_and_its_gradient_counts_the_pairs(bidirectional):
    """Fractional distances are rounded down, and the largest float is still a distance."""
    n = np.float32([*np.arange(-150, 150), 0.5, 18.99, -3.5, 1e9, 2.0**31, -3e38])
    whole = np.floor(n.astype(np.float64).clip(-1000, 1000)).astype(int)
    expected = bucket(whole, bidirectional=bidirectional)
    read = lambda table: aj.T5Bias(bidirectional=bidirectional).bias({"table": table}, n)
    both = lambda table: (read(table), jax.grad(lambda table: read(table).sum())(table))
    found, gradient = run(both, np.arange(32, dtype=np.float32))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(gradient, np.bincount(expected, minlength=32))


# Kerple --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["log", "power"])
def test_gradients_of_kerple_are_finite(kind):
    total = lambda r1, r2, n: aj.Kerple(kind).bias({"r1": r1, "r2": r2}, n).sum()
    n = np.float32([-1e5, -1.0, -0.5, 0.0, 0.5, 1.0, 1e5])
    gradient = jax.vmap(jax.grad(total, argnums=(0, 1, 2)), (0, 0, None))
    raw = np.float32([-30.0, 0.0, 30.0])
    assert all(np.isfinite(leaf).all() for leaf in run(gradient, raw, raw, n))


@pytest.mark.parametrize(("kind", "tops"), [("log", (2.0, 1.0)), ("power", (1.0, 2.0))])
def test_kerple_starts_uniform_after_the_map(kind, tops):
    """The authors draw the exponent, or the factor before the logarithm, to 2, and the factor of the distance to 1."""
    sizes = aj.Sizes(8, 20_000, 20_000, 4)
    raw = run(lambda key: aj.Kerple(kind).init(key, sizes), jax.random.key(3))
    r1, r2 = (raw[name].astype(np.float64) for name in ("r1", "r2"))
    mapped = np.log1p(np.exp(r2)) if kind == "log" else 2 / (1 + np.exp(-r2))
    for sample, top in zip((np.log1p(np.exp(r1)), mapped), tops, strict=True):
        assert 0 < sample.min() < sample.max() < top
        close(np.quantile(sample, [0.25, 0.5, 0.75]), np.array([0.25, 0.5, 0.75]) * top, 0.04)


# Sandwich ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [aj.Sandwich(), aj.Sandwich(width=6, theta=100.0)], ids=["default", "narrow"])
def test_sandwich_against_loops(encoding):
    """Half the width at distance 0, smaller elsewhere; fractional distances too."""
    n = np.float32([[0, 1, -1, 7], [100, -3000, 65_536, 1_000_003], [0.5, -0.5, 1000.25, 999]])
    p = encoding.constants(aj.Sizes(8, 4, 1, 8)) | {"ratio": np.float32(6)}
    frequencies = encoding.theta ** (-2 * np.arange(encoding.width // 2) / encoding.width)
    expected = [[sum(math.cos(m * w) for w in frequencies) / 6 for m in row] for row in n.astype(np.float64)]
    found = bias(encoding, p, n)
    close(found, expected, 5e-6)
    assert found[0, 0] == np.float32(encoding.width / 12)


# FIRE ----------------------------------------------------------------------------------------------------------------

FIRE = aj.FIRE(hidden=5, threshold=6.0)
OUT = {"out": DRAW.normal(size=(3, 5)), "out_bias": DRAW.normal(size=3)}
SHARED = {"hidden": DRAW.normal(size=5), "hidden_bias": DRAW.normal(size=5), "c": -0.3, "threshold": 0.9}


def fire(heads, shared, one):
    return jax.vmap(lambda own: FIRE.score(own | shared, one))(heads)


def test_gradients_of_fire_are_finite_and_the_hidden_layer_is_one_for_all_heads():
    """Also at negative positions, where c is 0, and a million further."""
    one = tile(np.float32([-4, 0, 3, 1e6]), np.float32([-7, 0, 3, 2e6]))
    gradient = jax.jit(jax.grad(lambda *given: fire(*given).sum(), (0, 1, 2)))
    for c in (0.0, 0.1):
        found = gradient(OUT, SHARED | {"c": c}, one._replace(visible=np.ones((4, 4), np.float32)))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    program = jax.make_jaxpr(fire)(OUT, SHARED, one)
    assert not [eqn for eqn in program.jaxpr.eqns if any(len(var.aval.shape) == 4 for var in eqn.outvars)]


# Transformer-XL ------------------------------------------------------------------------------------------------------

D = 6
HEAD = {"u": DRAW.normal(size=4), "v": DRAW.normal(size=4), "w_r": DRAW.normal(size=(D, 4))}


def test_the_clamped_table_against_a_gather(x64):
    """Section 3.3 written out, with rows of R for positions 0 .. 31, read at row 32 - n, behind the end the last row."""
    encoding, one = aj.TransformerXL(50.0, table="clamped", length=32), tile(np.arange(5, 14), np.arange(17))
    rows = np.minimum(32 - (one.q_pos[:, None] - one.k_pos[None, :]), 31)
    angle = rows[..., None] * 50.0 ** (-2 * np.arange(D // 2) / D)
    r = np.concatenate([np.sin(angle), np.cos(angle)], -1) @ HEAD["w_r"]
    position = np.einsum("th,tsh->ts", one.q + HEAD["v"], r)
    expected = one.scale * ((one.q + HEAD["u"]) @ one.k.T + position)
    close(run(encoding.score, HEAD, one), expected)


def test_the_clamped_table_is_as_long_as_the_distances():
    clamped = aj.TransformerXL(table="clamped", length=8)
    clamped.check(np.array([[0, 7], [50, 57]]))
    aj.TransformerXL().check(np.array([[0, 10**6]]))
    with pytest.raises(ValueError, match=r"length 8 holds distances up to 7, got positions 0\.\.8"):
        clamped.check(np.array([[0, 7], [1, 8], [0, 8]]))
