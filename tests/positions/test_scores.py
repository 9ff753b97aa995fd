"""FIRE and Transformer-XL, whose scores see more than the distance, and xPos and PoPE, which map queries and keys."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.positions.hooks import close, constants, run, tile

DRAW = np.random.default_rng(1)

# FIRE ----------------------------------------------------------------------------------------------------------------

FIRE = aj.FIRE(hidden=5, threshold=6.0)
OUT = {"out": DRAW.normal(size=(3, 5)), "out_bias": DRAW.normal(size=3)}
SHARED = {"hidden": DRAW.normal(size=5), "hidden_bias": DRAW.normal(size=5), "c": -0.3, "threshold": 0.9}


def fire(heads, shared, one):
    return jax.vmap(lambda own: FIRE.score(own | shared, one))(heads)


def test_fire_against_loops(x64):
    def by_hand(h, i, j):
        c, threshold = abs(SHARED["c"]), abs(SHARED["threshold"] * 6.0)
        x = math.log(c * abs(i - j) + 1) / (math.log(c * max(i, threshold) + 1) + 1e-6)
        return np.maximum(0, SHARED["hidden"] * x + SHARED["hidden_bias"]) @ OUT["out"][h] + OUT["out_bias"][h]

    one = tile(np.arange(9), np.arange(12))
    expected = [[[by_hand(h, i, j) for j in range(12)] for i in range(9)] for h in range(3)]
    close(run(fire, OUT, SHARED, one) - one.logits, expected, 1e-11)


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


def gathered(one, distances, theta=10_000.0):
    """Section 3.3 written out: one row of R for each pair of positions."""
    angle = distances[..., None] * theta ** (-2 * np.arange(D // 2) / D)
    r = np.concatenate([np.sin(angle), np.cos(angle)], -1) @ HEAD["w_r"]
    position = np.einsum("th,tsh->ts", one.q + HEAD["v"], r)
    return one.scale * ((one.q + HEAD["u"]) @ one.k.T + position)


@pytest.mark.parametrize(
    ("encoding", "distances"),
    [
        (aj.TransformerXL(), lambda n: n),
        (aj.TransformerXL(50.0), lambda n: n),
        # Rows of R for positions 0 .. 31, read at row 32 - n; a read behind the end gives the last row.
        (aj.TransformerXL(table="clamped", length=32), lambda n: np.minimum(32 - n, 31)),
    ],
    ids=["two-sided", "theta", "clamped"],
)
def test_transformer_xl_against_a_gather(encoding, distances, x64):
    one = tile(np.arange(5, 14), np.arange(17))
    n = one.q_pos[:, None] - one.k_pos[None, :]
    close(run(encoding.score, HEAD, one), gathered(one, distances(n), encoding.theta))


def test_the_clamped_table_is_as_long_as_the_distances():
    clamped = aj.TransformerXL(table="clamped", length=8)
    clamped.check(np.array([[0, 7], [50, 57]]))
    aj.TransformerXL().check(np.array([[0, 10**6]]))
    with pytest.raises(ValueError, match=r"length 8 holds distances up to 7, got positions 0\.\.8"):
        clamped.check(np.array([[0, 7], [1, 8], [0, 8]]))


def test_transformer_xl_refuses_an_odd_width():
    with pytest.raises(ValueError, match="model dimension must be even, got 7"):
        aj.TransformerXL().init(jax.random.key(0), aj.Sizes(7, 1, 1, 16))


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


# PoPE ----------------------------------------------------------------------------------------------------------------

H = 6
Q, K = (DRAW.normal(size=(5, H)) for _ in range(2))
DELTA = DRAW.uniform(-7, 7, H)
Q_POS, K_POS = np.array([0, 3, 40, 1000, 65_536]), np.array([-2, 3, 41, 900, 65_000])


@pytest.mark.parametrize("theta", [10_000.0, 100.0])
def test_pope_is_the_formula(theta, x64):
    """One frequency per channel, n = i - j, the phase subtracted, which gets the gradient of that."""
    pope, n = aj.PoPE(theta), (Q_POS[:, None] - K_POS[None, :])[..., None]
    p = constants(pope, H)
    q, k = np.log1p(np.exp(Q)), np.log1p(np.exp(K))

    def scores(delta):
        mapped = pope.map_q(p | {"delta": delta}, jnp.asarray(Q), Q_POS), pope.map_k(p, jnp.asarray(K), K_POS)
        assert mapped[0].shape == mapped[1].shape == (5, 2 * H)
        return mapped[0] @ mapped[1].T

    found, gradient = run(lambda delta: (scores(delta), jax.grad(lambda d: scores(d).sum())(delta)), DELTA)
    phase = n * theta ** (-np.arange(H) / H) - DELTA
    close(found, np.einsum("th,sh,tsh->ts", q, k, np.cos(phase)), 1e-9)
    close(gradient, np.einsum("th,sh,tsh->h", q, k, np.sin(phase)), 1e-9)
