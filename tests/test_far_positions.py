"""Positions far out: angles at a million, distances at 65,536, and scores that do not see a shift.

Oracles are float64 NumPy formulas; positions are traced wherever a program would trace them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import ATTENTION, FAST, HEAD, learned

pytestmark = pytest.mark.slow
MILLION = 2**20
FAR = (
    np.unique(
        np.concatenate(
            [
                np.arange(2048),
                *(2**p + np.arange(-2, 3) for p in range(11, 21)),
                np.random.default_rng(0).integers(0, MILLION, 5000),
            ]
        )
    )
    .clip(max=MILLION)
    .astype(np.int32)
)
"""Positions up to 1,048,576: all small ones, the surroundings of powers of two, and thousands in between."""

N, K = 4, 2
SIZES = aj.Sizes(model=N * HEAD, heads=N, kv_heads=K, head_dim=HEAD)
DTYPES = ("float32", "bfloat16", "float16")
CAUSAL = aj.Mask(causal=True)


def turns(pos: np.ndarray, width: int, theta: float = 10_000.0) -> np.ndarray:
    """pos * theta^(-2k/width) in float64, whose product is good to 1e-10 at a million."""
    return pos.astype(np.float64)[:, None] * theta ** (-2 * np.arange(width // 2) / width)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_angles_to_a_million(layout, traced):
    width = 64
    basis = np.zeros((len(FAR), width), np.float32)
    first = slice(0, width // 2) if layout == "half" else slice(0, None, 2)
    second = slice(width // 2, None) if layout == "half" else slice(1, None, 2)
    basis[:, first] = 1
    rope, basis = aj.RoPE(layout=layout), jnp.asarray(basis)
    p = rope.constants(aj.Sizes(model=width, heads=1, kv_heads=1, head_dim=width))
    turn = lambda pos: (rope.map_q(p, basis, pos), rope.map_k(p, basis, pos))
    for out in (jax.jit(turn) if traced else turn)(FAR):
        np.testing.assert_allclose(out[:, first], np.cos(turns(FAR, width)), rtol=0, atol=1e-6)
        np.testing.assert_allclose(out[:, second], np.sin(turns(FAR, width)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("traced", [False, True])
def test_sinusoidal_angles_to_a_million(traced):
    embed = lambda pos: aj.embed(aj.Sinusoidal(), None, jnp.zeros((1, len(FAR), 64)), pos)[0]
    table = (jax.jit(embed) if traced else embed)(FAR)
    np.testing.assert_allclose(table[:, 0::2], np.sin(turns(FAR, 64)), rtol=0, atol=1e-6)
    np.testing.assert_allclose(table[:, 1::2], np.cos(turns(FAR, 64)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_xpos_up_to_its_reach(dtype):
    encoding = aj.XPos()
    pos = np.unique(np.linspace(-encoding.reach, encoding.reach, 4001).astype(np.int32))
    p = encoding.constants(aj.Sizes(model=16, heads=1, kv_heads=1, head_dim=16))
    out = jax.jit(lambda pos: encoding.map_q(p, jnp.ones((len(pos), 16)), pos))(pos.astype(dtype))
    stretch = ((np.arange(8) / 8 + 0.4) / 1.4) ** (pos[:, None] / 512)
    angle = turns(pos, 16)
    expected = np.concatenate([np.cos(angle) - np.sin(angle), np.sin(angle) + np.cos(angle)], -1)
    np.testing.assert_allclose(out / np.tile(stretch, 2), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_of_65536_positions_are_distinct(dtype):
    pos, zeros = np.arange(65_536, dtype=np.int32), jnp.zeros((1, 65_536, 64), dtype)
    queries = jnp.ones((65_536, 64), dtype).astype(jnp.float32)
    tables = (
        aj.embed(aj.Sinusoidal(), None, zeros, pos)[0],
        aj.RoPE().map_q(aj.RoPE().constants(aj.Sizes(64, 1, 1, 64)), queries, pos),
    )
    for table in tables:
        assert len({row.tobytes() for row in np.asarray(table)}) == 65_536


def single_key_scores(encoding, q, k, q_pos, k_pos, params=None):
    """Scores [T, N] of queries [T, N, H] with one key [K, H]: what the log-sum-exp over a single key is."""
    mask = aj.Mask(causal=True, q_index=np.ones(len(q), int), k_index=np.zeros(1, int))
    options = dict(encoding=encoding, params=params, q_pos=q_pos, k_pos=k_pos, mask=mask, scale=1.0)
    return aj.attend_with_lse(q[None], k[None, None], k[None, None], implementation="dense", **options)[1][0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [8, 12])
def test_alibi_falls_strictly_with_the_distance(heads, dtype):
    T = 65_536
    q, k = np.zeros((T, heads, 2), jnp.dtype(dtype)), np.zeros((heads, 2), jnp.dtype(dtype))
    scores = single_key_scores(aj.ALiBi(), q, k, np.arange(T), np.zeros(1, int))
    assert np.all(np.diff(scores, axis=0) < 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_alibi_weights_rise_strictly_towards_the_query(dtype):
    # Slopes so small that e^(-m * 65,535) is still a normal number of float32.
    T, encoding = 65_536, aj.ALiBi(slopes=(2.0**-10, 1 / 900))
    q, k = np.zeros((1, 1, 2, 2), jnp.dtype(dtype)), np.zeros((1, T, 2, 2), jnp.dtype(dtype))
    mask = aj.Mask(causal=True, q_index=[T - 1])
    weights = aj.attention_weights(q, k, encoding=encoding, mask=mask)
    assert np.all(np.diff(weights[0, :, 0], axis=-1) > 0)


ABSOLUTE = {"fire", "cope", "composed", "ssmax", "llama4_temperature"}
RELATIVE = [name for name in ATTENTION if name not in ABSOLUTE]
"""Those whose score is a function of q, k and the distance alone, for any q and k."""


@pytest.mark.parametrize("name", RELATIVE)
def test_scores_do_not_change_under_a_shift(name):
    encoding, T = ATTENTION[name], 48
    params = learned(encoding, SIZES)
    draw = np.random.default_rng(1)
    q, k, v = (draw.normal(size=(1, T, heads, HEAD)).astype(np.float32) for heads in (N, K, K))
    pos = np.random.default_rng(2).integers(0, 800, T).astype(np.int32)

    @functools.partial(jax.jit, compiler_options=FAST)
    def run(shift):
        shifted = dict(encoding=encoding, params=params, q_pos=pos + shift, k_pos=pos + shift, mask=CAUSAL, scale=1.0)
        scores = single_key_scores(encoding, q[0], k[0, 0], pos + shift, pos[:1] + shift, params)
        return scores, aj.attention_weights(q, k, **shifted), aj.attend(q, k, v, implementation="dense", **shifted)

    before = run(np.int32(0))
    size = max(1, np.max(np.linalg.norm(q, axis=-1)) * np.max(np.linalg.norm(k, axis=-1)))
    for shift in (1, 1000, 4096, 17_000, 65_536):
        if name != "xpos" or shift + pos.max() < aj.XPos().reach:
            for x, y in zip(run(np.int32(shift)), before, strict=True):
                np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * size)
