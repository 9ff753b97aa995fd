"""Relations between two calls: under other orders, positions, paddings, scales, heads and splits; and limits and bounds that
can be proved without any training.

One program per encoding serves all tests of relations. Where an invariance must not hold, a test says so.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attnjax as aj
from attnjax.positions.compose import parts_of
from tests.cases import (
    ALL,
    ATTENTION,
    BATCH,
    CAUSAL_ONLY,
    EMBEDDINGS,
    FAST,
    HEAD,
    Data,
    learned,
    positions,
    slow_except,
    validity,
)

T, N, K = 24, 4, 2
D = N * HEAD
SIZES = aj.Sizes(model=D, heads=N, kv_heads=K, head_dim=HEAD)
TILE = aj.Tiling(8, 8)
INDEX = np.arange(T, dtype=np.int32)
IN_ORDER = Data(INDEX, INDEX, k_valid=np.ones((BATCH, T), bool), q_index=INDEX, k_index=INDEX)
CLOSE = dict(rtol=0, atol=5e-5)
CAUSAL = aj.Mask(causal=True)

COMPUTED = {"fox": aj.FoX(), "cable": aj.Cable(), "repo": aj.RePo(), "selective_rope": aj.SelectiveRoPE(rank=6)}
"""Encodings that compute positions from content."""
COUNTS = {"cope", "composed"}
"""Encodings that count keys in the order of the arrays, whatever the positions are, and all keys of a row at once."""
ABSOLUTE = {"sinusoidal", "learned", "fire", "composed", "ssmax", "llama4_temperature"}
"""Encodings that see a common shift of all positions: CoPE after RoPE multiplies its table by turned queries."""
MIXING = {"dape"}
"""Encodings whose heads read each other's logits."""

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=8)


@functools.cache
def program(encoding: aj.PositionEncoding, causal: bool):
    """(q, k, v, params, data, scale) -> out [B,T,N,H], lse [B,T,N], in small tiles where these serve the encoding."""
    way = "dense" if any(part.whole_table for part in parts_of(encoding)) else TILE

    def run(q, k, v, params, data: Data, scale):
        options = dict(encoding=encoding, params=params, q_pos=data.q_pos, k_pos=data.k_pos, scale=scale)
        return aj.attend_with_lse(q, k, v, mask=data.mask(causal), implementation=way, length=T, **options)

    return jax.jit(run, compiler_options=FAST)


def attend(encoding, qkv, data: Data, *, causal=None, params=None, scale=HEAD**-0.5) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp, with the parameters of `learned`, and causal where the encoding must be, unless given."""
    causal = any(part.causal_only for part in parts_of(encoding)) if causal is None else causal
    params = learned(encoding, SIZES) if params is None else params
    return jax.tree.map(np.asarray, program(encoding, causal)(*qkv, params, data, np.float32(scale)))


def layer(name: str, x: np.ndarray, data: Data, *, causal: bool = False) -> np.ndarray:
    """Tokens [B,T,D], embedded where the encoding does that, as queries, keys and values of self-attention."""
    encoding = ALL[name]
    if name in EMBEDDINGS:
        x, encoding = aj.embed(encoding, learned(encoding, SIZES), jnp.asarray(x), data.q_pos), aj.NoPE()
    q = np.asarray(x).reshape(BATCH, T, N, HEAD)
    return attend(encoding, (q, q[:, :, :K], q[:, :, K:]), data, causal=causal or name in CAUSAL_ONLY)[0]


def assert_equal(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    """Bit for bit, output and log-sum-exp."""
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def tokens(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(BATCH, T, D)).astype(np.float32)


def projections(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return tuple(draw.normal(size=(BATCH, T, heads, HEAD)).astype(np.float32) for heads in (N, K, K))


def placed(pos: np.ndarray) -> Data:
    """The same tokens at other positions."""
    return IN_ORDER._replace(q_pos=pos, k_pos=pos)


@st.composite
def some_positions(draw: st.DrawFn) -> np.ndarray:
    """Distinct positions of T tokens, int32, from 0 to 600."""
    kind, seed = draw(st.sampled_from(["arange", "random"])), draw(seeds)
    return positions(np.random.default_rng(seed), kind, T)


bidirectional = [(name, False) for name in ALL if name not in COUNTS]
by_index = [(name, True) for name in ("nope", "rope", "t5", "transformer_xl", "sinusoidal")]


@pytest.mark.parametrize(("name", "causal"), slow_except(bidirectional + by_index, ("rope", False), ("t5", False)))
@few
@given(seed=seeds, order=st.permutations(range(T)), pos=some_positions())
def test_tokens_permuted_with_their_positions_and_indices_permute_the_output(name, causal, seed, order, pos):
    x, order, data = tokens(seed), np.array(order), placed(pos)
    moved = layer(name, x[:, order], jax.tree.map(lambda x: x[..., order], data), causal=causal)
    np.testing.assert_allclose(moved, layer(name, x, data, causal=causal)[:, order], **CLOSE)


@few
@given(seed=seeds, order=st.permutations(range(T)))
def test_without_positions_the_mask_alone_knows_the_order(seed, order):
    x, order, reverse = tokens(seed), np.array(order), np.arange(T)[::-1]
    np.testing.assert_allclose(layer("nope", x[:, order], IN_ORDER), layer("nope", x, IN_ORDER)[:, order], **CLOSE)
    moved = layer("nope", x[:, reverse], IN_ORDER, causal=True)[:, reverse]
    assert np.abs(moved - layer("nope", x, IN_ORDER, causal=True)).max() > 1e-2


@pytest.mark.parametrize("name", slow_except([name for name in ALL if name != "nope"], "rope", "t5"))
@few
@given(seed=seeds)
def test_tokens_that_leave_their_positions_change_the_output(name, seed):
    # In turn, because even functions of the distance look the same read backwards.
    x, back = np.roll(tokens(seed), 1, axis=1), slice(1, None)
    moved = layer(name, x, IN_ORDER)[:, back]
    assert np.abs(moved - layer(name, tokens(seed), IN_ORDER)[:, :-1]).max() > 1e-3


@pytest.mark.parametrize("name", slow_except([name for name in ALL if name not in ABSOLUTE], "rope", "t5"))
@few
@given(seed=seeds, shift=st.integers(0, 8000), pos=some_positions())
def test_relative_encodings_do_not_see_a_shift(name, seed, shift, pos):
    x = tokens(seed)
    shifted = layer(name, x, placed(pos + np.int32(shift)))
    np.testing.assert_allclose(shifted, layer(name, x, placed(pos)), **CLOSE)


@pytest.mark.parametrize("name", slow_except(sorted(ABSOLUTE), "fire"))
@few
@given(seed=seeds, shift=st.integers(200, 7000))
def test_absolute_encodings_see_a_shift(name, seed, shift):
    x = tokens(seed)
    shifted = layer(name, x, placed(INDEX + np.int32(shift)))
    assert np.abs(shifted - layer(name, x, IN_ORDER)).max() > 1e-4


@pytest.mark.parametrize("name", slow_except([*ALL, *COMPUTED], "t5", "fox"))
def test_no_gradient_reaches_an_earlier_output_from_a_later_token(name):
    """Through queries, keys, values, embeddings and positions that are computed from content; it reaches all others."""
    encoding, row = (ALL | COMPUTED)[name], 7
    params, weight = learned(encoding, SIZES), np.random.default_rng(3).normal(size=(BATCH, N, HEAD)).astype(np.float32)

    def loss(x):
        x, attended = (aj.embed(encoding, params, x, INDEX), None) if name in EMBEDDINGS else (x, params)
        pos = aj.context_positions(encoding, params, x, INDEX, SIZES)
        q = x.reshape(BATCH, T, N, HEAD)
        own = dict(encoding=aj.NoPE() if name in EMBEDDINGS else encoding, params=attended, q_pos=pos, k_pos=pos)
        return (aj.attend(q, q[:, :, :K], q[:, :, K:], mask=CAUSAL, **own)[:, row] * weight).sum()

    found = np.abs(jax.jit(jax.grad(loss), compiler_options=FAST)(tokens(0))).max((0, 2))
    assert np.all(found[: row + 1] > 0)
    assert np.all(found[row + 1 :] == 0)


@pytest.mark.parametrize("name", slow_except(ATTENTION, "rope", "t5"))
@few
@given(
    seed=seeds, kind=st.sampled_from(["left padding", "right padding", "random"]), junk=st.sampled_from([np.nan, 3e38])
)
def test_the_content_of_padding_has_no_effect(name, seed, kind, junk):
    q, k, v = projections(seed)
    valid = validity(np.random.default_rng(seed), kind, T, (BATCH,))
    data = IN_ORDER._replace(k_valid=valid)
    filled = (q, *(np.where(valid[..., None, None], x, np.float32(junk)) for x in (k, v)))
    assert_equal(attend(ALL[name], filled, data), attend(ALL[name], (q, k, v), data))


@pytest.mark.parametrize("name", slow_except(ATTENTION, "t5"))
@few
@given(seed=seeds, head=st.integers(0, N - 1), pos=some_positions())
def test_a_head_depends_on_its_own_queries_unless_heads_are_mixed(name, seed, head, pos):
    q, k, v = projections(seed)
    other = q.copy()
    other[:, :, head] += 1
    before, after = (attend(ALL[name], (x, k, v), placed(pos))[0] for x in (q, other))
    changed = np.abs(after - before).max((0, 1, 3)) > 0
    np.testing.assert_array_equal(changed, (np.arange(N) == head) | (name in MIXING))


@pytest.mark.parametrize(
    "name",
    slow_except([name for name in ATTENTION if name not in COUNTS | MIXING | {"pope", "transformer_xl"}], "rope"),
)
@few
@given(seed=seeds, power=st.integers(-3, 3), pos=some_positions())
def test_the_scale_multiplies_queries(name, seed, power, pos):
    # PoPE, Transformer-XL, CoPE and DAPE put queries through a function that is not linear. Powers of two do not round.
    (q, k, v), factor = projections(seed), np.float32(2.0**power)
    found = attend(ALL[name], (factor * q, k, v), placed(pos), scale=1 / factor)
    assert_equal(found, attend(ALL[name], (q, k, v), placed(pos), scale=1.0))


@pytest.mark.parametrize("name", slow_except([name for name in ATTENTION if name != "nope"], "t5"))
@few
@given(seed=seeds, pos=some_positions())
def test_composing_with_no_encoding_changes_nothing(name, seed, pos):
    encoding, qkv = ALL[name], projections(seed)
    own = learned(encoding, SIZES) or {}
    around = ({}, *(own if len(parts_of(encoding)) > 1 else (own,)), {})
    composed = aj.compose(aj.NoPE(), encoding, aj.NoPE())
    found = attend(composed, qkv, placed(pos), params=around, causal=name in CAUSAL_ONLY)
    assert_equal(found, attend(encoding, qkv, placed(pos)))


# Limits in which one encoding is another


def zeros(encoding: aj.PositionEncoding, **constant: float) -> dict[str, np.ndarray]:
    """Parameters of 0, save those named."""
    shapes = jax.eval_shape(lambda: encoding.init(jax.random.key(0), SIZES))
    fill = lambda path, x: np.full(x.shape, constant.get(path[-1].key, 0.0), np.float32)
    return jax.tree_util.tree_map_with_path(fill, shapes)


INTERLEAVED = functools.partial(aj.RoPE, layout="interleaved")
ROPE, NOTHING, XL, COPE, POWER = aj.RoPE(), aj.NoPE(), aj.TransformerXL(), aj.CoPE(), aj.Kerple("power")
LIMITS = {
    "transformer_xl-without-terms": (XL, zeros(XL), NOTHING),
    "cope-at-init": (COPE, zeros(COPE), NOTHING),
    "t5-of-one-number": (aj.T5Bias(), zeros(aj.T5Bias(), table=3.0), NOTHING),
    "kerple-of-weight-0": (aj.Kerple(), zeros(aj.Kerple(), r1=-200.0), NOTHING),
    "fire-constant": (aj.FIRE(), zeros(aj.FIRE(), out_bias=2.0), NOTHING),
    "kerple-power-1-is-alibi": (POWER, zeros(POWER, r1=np.log(np.e - 1)), aj.ALiBi((1.0,) * N)),
    "xpos-without-decay": (aj.XPos(scale_base=1e30), None, ROPE),
    "interpolation-by-1": (aj.RoPE(scaling=aj.PositionInterpolation(1.0)), None, ROPE),
    "ntk-by-1": (aj.RoPE(scaling=aj.NTKAware(1.0)), None, ROPE),
    "yarn-by-1": (aj.RoPE(scaling=aj.YaRN(1.0, original_length=16)), None, ROPE),
    "llama3-by-1": (aj.RoPE(scaling=aj.Llama3(1.0, original_length=16)), None, ROPE),
    "dynamic-ntk-in-its-length": (aj.RoPE(scaling=aj.DynamicNTK(4.0, original_length=24)), None, ROPE),
    "one-pair-that-turns": (INTERLEAVED(fraction=0.5, keep=0.5), None, INTERLEAVED(fraction=0.25)),
    "alibi-seen-from-the-future": (aj.ALiBi(), None, aj.ALiBi(symmetric=True)),
}


@pytest.mark.parametrize("limit", slow_except(LIMITS, "kerple-power-1-is-alibi"))
def test_limits_in_which_one_encoding_is_another(limit):
    encoding, params, other = LIMITS[limit]
    run = lambda *qkv: [
        aj.attend(*qkv, mask=CAUSAL, encoding=e, params=p) for e, p in ((encoding, params), (other, None))
    ]
    np.testing.assert_allclose(*jax.jit(run, compiler_options=FAST)(*projections(0)), rtol=0, atol=1e-6)


# Bounds, computed in float64 from the scores alone

SLACK = 1 + 1e-5
"""Room for the rounding of float32 in bounds that are reached."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nope", "rope", "t5"])
def test_one_token_changes_the_output_by_one_over_n(name):
    """Hahn 2020 (arXiv:1906.06755), lemma 5."""
    encoding, lengths, examples = ATTENTION[name], 4 ** np.arange(3, 7), 64
    params = learned(encoding, SIZES)

    @functools.partial(jax.jit, compiler_options=FAST)
    def change(q, k, v, new_k, new_v, pos):
        n = pos.shape[0]
        options = dict(encoding=encoding, params=params, q_pos=pos[-1:], k_pos=pos, implementation="dense")
        difference = aj.attend(q, k.at[:, n // 2].set(new_k), v.at[:, n // 2].set(new_v), **options)
        return jnp.linalg.norm(difference - aj.attend(q, k, v, **options), axis=-1).mean()

    draw = np.random.default_rng(0)
    normal = lambda n, heads: draw.normal(size=(examples, n, heads, HEAD)).astype(np.float32)
    new_k, new_v = normal(1, K)[:, 0], normal(1, K)[:, 0]
    changes = [change(normal(1, N), normal(n, K), normal(n, K), new_k, new_v, np.arange(n)) for n in lengths]
    assert abs(np.polyfit(np.log(lengths), np.log(changes), 1)[0] + 1) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 64, 4096])
def test_the_largest_weight_of_bounded_scores_vanishes(n):
    """With scores in [-b, b] no weight exceeds e^(2b)/n; one score at b and all others at -b reach it nearly."""
    b = 1.5
    q, k = np.full((1, 1, 1, 2), 1, np.float32), np.full((1, n, 1, 2), -b / 2, np.float32)
    k[0, n // 2] *= -1
    extreme = aj.attention_weights(q, k, scale=1.0)[0, 0, 0]
    np.testing.assert_allclose(extreme.max(), np.exp(2 * b) / (np.exp(2 * b) + n - 1), rtol=1e-5)
    assert extreme.max() <= np.exp(2 * b) / n * SLACK


@pytest.mark.slow
def test_alibi_mass_beyond_a_distance_is_bounded():
    """Chi et al. 2023 (arXiv:2212.10356), section 4: ALiBi is a soft window."""
    n, heads, draw = 256, 8, np.random.default_rng(0)
    q, k = (draw.normal(size=(1, n, heads, HEAD)).astype(np.float32) for _ in "qk")
    weights = np.asarray(aj.attention_weights(q, k, encoding=aj.ALiBi(), mask=CAUSAL), np.float64)[0]
    slope = 2.0 ** -np.arange(1, heads + 1)
    scores = np.einsum("tnh,snh->nts", q[0].astype(np.float64), k[0]) / np.sqrt(HEAD)
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    # Against the key at distance 0 alone, whose bias is 0.
    excess = scores.max(-1) - np.diagonal(scores, axis1=-2, axis2=-1)
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    for d in (0, 1, 4, 16, 64, 128):
        mass = np.where(distance > d, weights, 0).sum(-1)
        tail = np.exp(-slope * (d + 1)) / (1 - np.exp(-slope))
        assert np.all(mass <= np.exp(excess) * tail[:, None] * SLACK)
    # The first head cannot see past 64 tokens, whatever it looks for.
    assert np.exp(excess[0].max() - 0.5 * 65) / (1 - np.exp(-0.5)) < 1e-6
    assert np.where(distance > 64, weights[0], 0).sum(-1).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["dense", "chunked"])
def test_a_causal_mean_tells_the_position_exactly(implementation):
    """Kazemnejad et al. 2023 (arXiv:2305.19466), theorem 1: only the first token has a value, whose mean over t is 1/t."""
    n = 300
    q, v = np.zeros((1, n, 1, 2), np.float32), np.zeros((1, n, 1, 2), np.float32)
    v[0, 0] = 1
    out = aj.attend(q, q, v, mask=CAUSAL, implementation=implementation)
    np.testing.assert_array_equal(out[0, :, 0, 0], np.float32(1) / np.arange(1, n + 1, dtype=np.float32))


@pytest.mark.slow
def test_fire_below_its_threshold_is_relative_and_beyond_it_normalised():
    """Li et al. 2024 (arXiv:2310.04418), equation 4: max(i, L) is L up to L, and i beyond."""
    encoding = aj.FIRE(hidden=8, threshold=512.0)
    params = encoding.init(jax.random.key(0), SIZES)
    (q, k, _), run = projections(0), functools.partial(aj.attention_weights, encoding=encoding, params=params)
    weights = lambda pos: np.asarray(run(q, k, q_pos=pos, k_pos=pos))
    np.testing.assert_array_equal(weights(INDEX + 480), weights(INDEX))
    assert np.abs(weights(INDEX + 490) - weights(INDEX)).max() > 0
    # Seen from any query past the threshold, the first token is at 1: its bias is f(1) - f(0) above that of the last.
    ends = lambda i: run(q[:, :1], np.zeros_like(k[:, :2]), q_pos=np.array([i]), k_pos=np.array([0, i]))
    for i in (5000, 70_000, 1_000_000):
        np.testing.assert_allclose(ends(i), ends(600), rtol=0, atol=1e-6)
