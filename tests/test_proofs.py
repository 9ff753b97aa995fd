"""What can be proved about attention and positions without any training, checked in numbers.

Each test names its statement and where it is from; bounds are computed in float64 from the scores alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import ATTENTION, FAST, HEAD, learned

pytestmark = pytest.mark.slow
N, K = 4, 2
SIZES = aj.Sizes(model=N * HEAD, heads=N, kv_heads=K, head_dim=HEAD)
CAUSAL = aj.Mask(causal=True)
weigh = jax.jit(aj.attention_weights, static_argnames="encoding")
SLACK = 1 + 1e-5
"""Room for the rounding of float32 in bounds that are met with equality."""


def content(T: int, S: int | None = None, batch: int = 1, heads: int = N, seed: int = 0) -> tuple[np.ndarray, ...]:
    draw = np.random.default_rng(seed)
    shapes = ((batch, T, heads, HEAD), (batch, S or T, heads // 2, HEAD), (batch, S or T, heads // 2, HEAD))
    return tuple(draw.normal(size=shape).astype(np.float32) for shape in shapes)


def scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """q.k / sqrt(H) [B,N,T,S] in float64."""
    k = np.repeat(k, q.shape[2] // k.shape[2], axis=2).astype(np.float64)
    return np.einsum("btnh,bsnh->bnts", q.astype(np.float64), k) / np.sqrt(q.shape[-1])


# One token among many: Hahn 2020 (arXiv:1906.06755), lemma 5


@pytest.mark.parametrize("name", ["nope", "rope", "t5"])
def test_one_token_changes_the_output_by_one_over_n(name):
    encoding, lengths, examples = ATTENTION[name], 4 ** np.arange(3, 7), 64
    params = learned(encoding, SIZES)

    @functools.partial(jax.jit, compiler_options=FAST)
    def change(q, k, v, new_k, new_v, pos):
        n = pos.shape[0]
        attend = lambda k, v: aj.attend(
            q, k, v, encoding=encoding, params=params, q_pos=pos[-1:], k_pos=pos, implementation="dense"
        )
        difference = attend(k.at[:, n // 2].set(new_k), v.at[:, n // 2].set(new_v)) - attend(k, v)
        return jnp.linalg.norm(difference, axis=-1).mean()

    _, new_k, new_v = (x[:, 0] for x in content(1, 1, examples, seed=1))
    changes = [change(*content(1, int(n), examples), new_k, new_v, np.arange(n)) for n in lengths]
    slope = np.polyfit(np.log(lengths), np.log(changes), 1)[0]
    assert abs(slope + 1) < 0.1


# Dispersion: with scores in [-b, b] no weight exceeds e^(2b)/T


@pytest.mark.parametrize("T", [1, 2, 64, 1024, 4096])
def test_the_largest_weight_of_bounded_scores_vanishes(T):
    b = 1.5
    # The extreme case: one score at b, all others at -b, where the weight is known.
    q, k = np.full((1, 1, 1, 2), 1, np.float32), np.full((1, T, 1, 2), -b / 2, np.float32)
    k[0, T // 2] *= -1
    extreme = weigh(q, k, scale=1.0)[0, 0, 0]
    np.testing.assert_allclose(extreme.max(), np.exp(2 * b) / (np.exp(2 * b) + T - 1), rtol=1e-5)
    assert extreme.max() <= np.exp(2 * b) / T * SLACK
    q, k, _ = content(1, T)
    bounded = np.abs(scores(q, k)).max()
    weights = weigh(q, k)
    assert np.exp(-2 * bounded) / T / SLACK <= weights.min()
    assert weights.max() <= np.exp(2 * bounded) / T * SLACK


def test_small_queries_attend_evenly_at_first():
    # Scores of a fresh network are small, and so is what any encoding without a bias adds to them.
    T = 64
    q, k, _ = (0.02 * x for x in content(T))
    for name in ("nope", "rope", "rope_partial", "cope"):
        encoding = ATTENTION[name]
        params = encoding.init(jax.random.key(0), SIZES)
        weights = weigh(q, k, encoding=encoding, params=params)
        np.testing.assert_allclose(weights, 1 / T, rtol=0.01)


# ALiBi is a soft window: Chi et al. 2023 (arXiv:2212.10356), section 4


def test_alibi_mass_beyond_a_distance_is_bounded():
    T, heads = 256, 8
    q, k, _ = content(T, heads=heads)
    weights = np.asarray(weigh(q, k, encoding=aj.ALiBi(), mask=CAUSAL), np.float64)[0]
    slope = 2.0 ** -np.arange(1, heads + 1)
    causal = np.tri(T, dtype=bool)
    content_scores = np.where(causal, scores(q, k)[0], -np.inf)
    # Against the key at distance 0 alone, whose bias is 0.
    excess = content_scores.max(-1) - np.diagonal(content_scores, axis1=-2, axis2=-1)
    distance = np.arange(T)[:, None] - np.arange(T)[None, :]
    for d in (0, 1, 4, 16, 64, 128):
        mass = np.where(distance > d, weights, 0).sum(-1)
        tail = np.exp(-slope * (d + 1)) / (1 - np.exp(-slope))
        assert np.all(mass <= np.exp(excess) * tail[:, None] * SLACK)
    # The bound says something: the first head cannot see past 64 tokens, whatever it looks for.
    assert np.exp(excess[0].max() - 0.5 * 65) / (1 - np.exp(-0.5)) < 1e-6
    assert np.where(distance > 64, weights[0], 0).sum(-1).max() < 1e-6


# The score of RoPE is q . R(n - m) k: Su et al. 2021 (arXiv:2104.09864), section 3.2


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_scores_are_a_function_of_the_distance(layout):
    T, start = 32, 131_072
    q, k, _ = content(T)
    pos = start + np.arange(T)
    weights = weigh(q, k, encoding=aj.RoPE(layout=layout), q_pos=pos, k_pos=pos)
    back = np.arange(T)[None, :] - np.arange(T)[:, None]
    angle = back[..., None] * 10_000.0 ** (-2 * np.arange(HEAD // 2) / HEAD)
    pair = lambda x: (
        x[..., : HEAD // 2] + 1j * x[..., HEAD // 2 :] if layout == "half" else x[..., ::2] + 1j * x[..., 1::2]
    )
    q, k = pair(q[0].astype(np.float64)), pair(np.repeat(k[0], N // K, axis=1).astype(np.float64))
    expected = np.einsum("tnc,snc,tsc->nts", q.conj(), k, np.exp(1j * angle)).real / np.sqrt(HEAD)
    expected = np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)
    np.testing.assert_allclose(weights[0], expected, rtol=0, atol=2e-6)


def test_interpolated_positions_meet_no_new_angle():
    # Chen et al. 2023 (arXiv:2306.15595): positions 0, 4, 8, ... under factor 4 are positions 0, 1, 2, ...
    arrays, pos = content(32), np.arange(32)
    attend = functools.partial(jax.jit(aj.attend, static_argnames="encoding"), *arrays)
    squeezed = aj.RoPE(scaling=aj.PositionInterpolation(4.0))
    found = attend(encoding=squeezed, q_pos=4 * pos, k_pos=4 * pos)
    np.testing.assert_allclose(found, attend(encoding=aj.RoPE(), q_pos=pos, k_pos=pos), rtol=0, atol=2e-6)


# No positions: Kazemnejad et al. 2023 (arXiv:2305.19466), theorem 1


def test_permuted_tokens_permute_rows_and_columns_of_the_weights(x64):
    q, k, _ = (x.astype(np.float64) for x in content(17))
    order = np.random.default_rng(0).permutation(17)
    weights = weigh(q, k)
    moved = weigh(q[:, order], k[:, order])
    np.testing.assert_allclose(moved, weights[:, :, order][..., order], rtol=0, atol=1e-15)


@pytest.mark.parametrize("implementation", ["dense", "chunked"])
def test_a_causal_mean_tells_the_position_exactly(implementation):
    # Only the first token has a value; its mean over the t tokens seen so far is 1/t.
    T = 300
    q, k = np.zeros((1, T, 1, 2), np.float32), np.zeros((1, T, 1, 2), np.float32)
    v = np.zeros((1, T, 1, 2), np.float32)
    v[0, 0] = 1
    out = aj.attend(q, k, v, mask=CAUSAL, implementation=implementation)
    np.testing.assert_array_equal(out[0, :, 0, 0], np.float32(1) / np.arange(1, T + 1, dtype=np.float32))


# Where encodings cannot tell distances apart, and where they are one another


def test_t5_shares_one_bias_beyond_its_last_bucket():
    T, (q, _, v) = 400, content(1, 400)
    params = learned(aj.T5Bias(), SIZES)
    bias = aj.T5Bias().bias(
        aj.EncodingParams(head={"table": jnp.asarray(params.head["table"][0])}), jnp.arange(100_000)
    )
    # Bucket 31 starts at 113 (Raffel et al. 2020; first distances of the released bucket rule).
    assert np.all(bias[113:] == bias[113])
    assert bias[112] != bias[113]
    k = np.ones_like(v)
    weights = weigh(q, k, encoding=aj.T5Bias(), params=params, q_pos=np.array([T - 1]), k_pos=np.arange(T))
    far = np.asarray(weights)[0, :, 0, : T - 113]
    assert np.all(far == far[:, :1])
    assert np.all(np.asarray(weights)[0, :, 0, T - 113] != far[:, 0])


def test_fire_below_its_threshold_is_relative_and_beyond_it_normalised():
    # Li et al. 2024 (arXiv:2310.04418), equation 4: max(i, L) is L up to L, and i beyond.
    encoding = aj.FIRE(hidden=8, threshold=512.0)
    params = encoding.init(jax.random.key(0), SIZES)
    q, k, _ = content(32)
    run = functools.partial(weigh, encoding=encoding, params=params)
    weights = lambda pos: np.asarray(run(q, k, q_pos=pos, k_pos=pos))
    np.testing.assert_array_equal(weights(np.arange(32) + 480), weights(np.arange(32)))
    assert np.abs(weights(np.arange(32) + 482) - weights(np.arange(32))).max() > 0
    # Seen from any query past the threshold, the first token is at 1: its bias is f(1) - f(0) above that of the last.
    ends = lambda i: run(q[:, :1], np.zeros_like(k[:, :2]), q_pos=np.array([i]), k_pos=np.array([0, i]))
    for i in (5000, 70_000, 1_000_000):
        np.testing.assert_allclose(ends(i), ends(600), rtol=0, atol=1e-6)


def zeros(encoding: aj.PositionEncoding, **constant: float) -> aj.EncodingParams:
    """Parameters of 0, save those named."""
    shapes = encoding.init(jax.random.key(0), SIZES)
    fill = lambda path, x: np.full(x.shape, constant.get(path[-1].key, 0.0), np.float32)
    return jax.tree_util.tree_map_with_path(fill, shapes)


NEVER = 1e30
INTERLEAVED = functools.partial(aj.RoPE, layout="interleaved")
NOTHING, XL, COPE = aj.NoPE(), aj.TransformerXL(), aj.CoPE()
LIMITS = [
    pytest.param(XL, zeros(XL), NOTHING, id="transformer_xl-without-terms"),
    pytest.param(COPE, zeros(COPE), NOTHING, id="cope-at-init"),
    pytest.param(aj.T5Bias(), zeros(aj.T5Bias()), NOTHING, id="t5-of-zeros"),
    pytest.param(aj.T5Bias(), zeros(aj.T5Bias(), table=3.0), NOTHING, id="t5-of-one-number"),
    pytest.param(aj.Kerple(), zeros(aj.Kerple(), r1=-200.0), NOTHING, id="kerple-of-weight-0"),
    pytest.param(aj.FIRE(), zeros(aj.FIRE(), out_bias=2.0), NOTHING, id="fire-constant"),
    pytest.param(
        aj.Kerple("power"),
        zeros(aj.Kerple("power"), r1=np.log(np.e - 1)),
        aj.ALiBi((1.0,) * N, symmetric=True),
        id="kerple-power-1-is-alibi",
    ),
    pytest.param(aj.XPos(scale_base=NEVER), None, aj.RoPE(), id="xpos-without-decay"),
    pytest.param(aj.RoPE(scaling=aj.PositionInterpolation(1.0)), None, aj.RoPE(), id="interpolation-by-1"),
    pytest.param(aj.RoPE(scaling=aj.NTKAware(1.0)), None, aj.RoPE(), id="ntk-by-1"),
    pytest.param(aj.RoPE(scaling=aj.YaRN(1.0, original_length=16)), None, aj.RoPE(), id="yarn-by-1"),
    pytest.param(aj.RoPE(scaling=aj.Llama3(1.0, original_length=16)), None, aj.RoPE(), id="llama3-by-1"),
    pytest.param(
        aj.RoPE(scaling=aj.DynamicNTK(4.0, original_length=24)), None, aj.RoPE(), id="dynamic-ntk-in-its-length"
    ),
    pytest.param(INTERLEAVED(fraction=0.5, keep=0.5), None, INTERLEAVED(fraction=0.25), id="one-pair-that-turns"),
    pytest.param(aj.ALiBi(), None, aj.ALiBi(symmetric=True), id="alibi-seen-from-the-future"),
]


@pytest.mark.parametrize(("encoding", "params", "limit"), LIMITS)
def test_limits_in_which_one_encoding_is_another(encoding, params, limit):
    attend = functools.partial(jax.jit(aj.attend, static_argnames="encoding"), *content(24), mask=CAUSAL)
    found, expected = attend(encoding=encoding, params=params), attend(encoding=limit)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
