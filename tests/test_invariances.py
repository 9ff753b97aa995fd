"""What two calls must have in common: under other orders, positions, paddings, scales, heads and splits of the keys.

Everything runs through the chunked implementation in small tiles, which `test_properties.py` ties to the reference. One
program per encoding serves all tests. Where an invariance must not hold, a test says so.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnjax as aj
from attnjax.attention.blockwise import blockwise
from attnjax.attention.inputs import from_caller, prepare
from tests.cases import ALL, ATTENTION, BATCH, CAUSAL_ONLY, EMBEDDINGS, FAST, HEAD, Data, learned, positions, validity
from tests.test_properties import heads_last

pytestmark = pytest.mark.slow
T, N, K = 24, 4, 2
D = N * HEAD
SIZES = aj.Sizes(model=D, heads=N, kv_heads=K, head_dim=HEAD)
TILE = (8, 8)
INDEX = np.arange(T, dtype=np.int32)
IN_ORDER = Data(INDEX, INDEX, k_valid=np.ones((BATCH, T), bool), q_index=INDEX, k_index=INDEX)
CLOSE = dict(rtol=0, atol=5e-5)

NEED_CAUSAL = {ALL[name] for name in CAUSAL_ONLY}
COUNTS = {"cope", "composed"}
"""Encodings that count keys in the order of the arrays, whatever the positions are, and all keys of a row at once."""
LENGTHS = {"dynamic_ntk"}
"""Encodings that look at the last position."""
ABSOLUTE = {"sinusoidal", "learned", "fire", "composed", "ssmax", "llama4_temperature"} | LENGTHS
"""Encodings that see a common shift of all positions: CoPE after RoPE multiplies its table by turned queries."""
MIXING = {"dape"}
"""Encodings whose heads read each other's logits."""

seeds = st.integers(0, 2**32 - 1)


@functools.cache
def program(encoding: aj.PositionEncoding, causal: bool):
    """(q, k, v, params, data, scale) -> out [B,T,N,H], lse [B,T,N]."""

    def run(q, k, v, params, data: Data, scale):
        source = from_caller(q, k, v, data.k_pos)
        inputs = prepare(q, source, encoding, params, data.q_pos, data.mask(causal), scale, None, None)
        out, lse = blockwise(inputs, aj.Tiling(*TILE))
        return heads_last(out), heads_last(lse[..., None])[..., 0]

    return jax.jit(run, compiler_options=FAST)


def attend(encoding, qkv, data: Data, *, causal=None, params=None, scale=HEAD**-0.5) -> tuple[np.ndarray, np.ndarray]:
    """Output and log-sum-exp, with the parameters of `learned`, and causal where the encoding must be, unless given."""
    causal = encoding in NEED_CAUSAL if causal is None else causal
    params = learned(encoding, SIZES) if params is None else params
    out = program(encoding, causal)(*qkv, params, data, np.float32(scale))
    return jax.tree.map(np.asarray, out)


def layer(name: str, x: np.ndarray, data: Data, *, causal: bool = False) -> np.ndarray:
    """Tokens [B,T,D], embedded where the encoding does that, as queries, keys and values of self-attention."""
    encoding = ALL[name]
    x = np.asarray(aj.embed(encoding, learned(encoding, SIZES), jnp.asarray(x), data.q_pos))
    q = x.reshape(BATCH, T, N, HEAD)
    encoding = aj.NoPE() if name in EMBEDDINGS else encoding
    return attend(encoding, (q, q[:, :, :K], q[:, :, K:]), data, causal=causal or encoding in NEED_CAUSAL)[0]


def assert_equal(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    """Bit for bit, output and log-sum-exp."""
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def tokens(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(BATCH, T, D)).astype(np.float32)


def projections(seed: int, S: int = T) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes = ((BATCH, n, heads, HEAD) for n, heads in ((T, N), (S, K), (S, K)))
    return tuple(draw.normal(size=shape).astype(np.float32) for shape in shapes)


def placed(pos: np.ndarray, data: Data = IN_ORDER) -> Data:
    """The same tokens at other positions."""
    return data._replace(q_pos=pos, k_pos=pos)


@st.composite
def some_positions(draw: st.DrawFn) -> np.ndarray:
    """Distinct positions of T tokens, int32, from 0 to 600."""
    kind, seed = draw(st.sampled_from(["arange", "random"])), draw(seeds)
    return positions(np.random.default_rng(seed), kind, T)


def permuted(data: Data, order: np.ndarray) -> Data:
    return jax.tree.map(lambda x: x[..., order], data)


each = pytest.mark.parametrize("name", ATTENTION)
few = settings(max_examples=8)


bidirectional = [(name, False) for name in ALL if name not in COUNTS]
by_index = [(name, True) for name in ("nope", "rope", "t5", "transformer_xl", "sinusoidal")]


@pytest.mark.parametrize(("name", "causal"), bidirectional + by_index)
@few
@given(seed=seeds, order=st.permutations(range(T)), pos=some_positions())
def test_tokens_permuted_with_their_positions_and_indices_permute_the_output(name, causal, seed, order, pos):
    x, order, data = tokens(seed), np.array(order), placed(pos)
    moved = layer(name, x[:, order], permuted(data, order), causal=causal)
    np.testing.assert_allclose(moved, layer(name, x, data, causal=causal)[:, order], **CLOSE)


@few
@given(seed=seeds, order=st.permutations(range(T)))
def test_without_positions_or_mask_order_does_not_exist(seed, order):
    x, order = tokens(seed), np.array(order)
    np.testing.assert_allclose(layer("nope", x[:, order], IN_ORDER), layer("nope", x, IN_ORDER)[:, order], **CLOSE)


@pytest.mark.parametrize("name", [name for name in ALL if name != "nope"])
@few
@given(seed=seeds)
def test_tokens_that_leave_their_positions_change_the_output(name, seed):
    # In turn, because even functions of the distance look the same read backwards.
    x, back = np.roll(tokens(seed), 1, axis=1), slice(1, None)
    moved = layer(name, x, IN_ORDER)[:, back]
    assert np.abs(moved - layer(name, tokens(seed), IN_ORDER)[:, :-1]).max() > 1e-3


@few
@given(seed=seeds)
def test_a_causal_mask_alone_knows_the_order(seed):
    x, reverse = tokens(seed), np.arange(T)[::-1]
    moved = layer("nope", x[:, reverse], IN_ORDER, causal=True)[:, reverse]
    assert np.abs(moved - layer("nope", x, IN_ORDER, causal=True)).max() > 1e-2


@pytest.mark.parametrize("name", [name for name in ALL if name not in ABSOLUTE])
@few
@given(seed=seeds, shift=st.integers(0, 8000), pos=some_positions())
def test_relative_encodings_do_not_see_a_shift(name, seed, shift, pos):
    x = tokens(seed)
    shifted = layer(name, x, placed(pos + np.int32(shift)))
    np.testing.assert_allclose(shifted, layer(name, x, placed(pos)), **CLOSE)


@pytest.mark.parametrize("name", sorted(ABSOLUTE))
@few
@given(seed=seeds, shift=st.integers(200, 7000))
def test_absolute_encodings_see_a_shift(name, seed, shift):
    x = tokens(seed)
    shifted = layer(name, x, placed(INDEX + np.int32(shift)))
    assert np.abs(shifted - layer(name, x, IN_ORDER)).max() > 1e-4


@each
@few
@given(
    seed=seeds, kind=st.sampled_from(["left padding", "right padding", "random"]), junk=st.sampled_from([np.nan, 3e38])
)
def test_the_content_of_padding_does_not_exist(name, seed, kind, junk):
    q, k, v = projections(seed)
    valid = validity(np.random.default_rng(seed), kind, T, (BATCH,))
    data = IN_ORDER._replace(k_valid=valid)
    filled = (q, *(np.where(valid[..., None, None], x, np.float32(junk)) for x in (k, v)))
    assert_equal(attend(ALL[name], filled, data), attend(ALL[name], (q, k, v), data))


@pytest.mark.parametrize("name", ["nope", "rope", "alibi", "fire", "cope"])
@few
@given(seed=seeds)
def test_more_padding_changes_nothing(name, seed):
    # Bit for bit, because tiles of nothing but padding are not visited. A dense sum may come in another order.
    more = 2 * TILE[1]
    q, k, v = projections(seed, T + more)
    index = np.arange(T + more, dtype=np.int32)
    valid = np.broadcast_to(index < T, (BATCH, T + more))
    padded = IN_ORDER._replace(k_pos=index, k_index=index, k_valid=valid)
    assert_equal(attend(ALL[name], (q, k, v), padded), attend(ALL[name], (q, k[:, :T], v[:, :T]), IN_ORDER))


@each
@few
@given(seed=seeds, head=st.integers(0, N - 1), pos=some_positions())
def test_a_head_depends_on_its_own_queries_unless_heads_are_mixed(name, seed, head, pos):
    q, k, v = projections(seed)
    other = q.copy()
    other[:, :, head] += 1
    before, after = (attend(ALL[name], (x, k, v), placed(pos))[0] for x in (q, other))
    changed = np.abs(after - before).max((0, 1, 3)) > 0
    np.testing.assert_array_equal(changed, (np.arange(N) == head) | (name in MIXING))


@pytest.mark.parametrize("name", [name for name in ATTENTION if name not in COUNTS | LENGTHS])
@few
@given(seed=seeds, blocks=st.integers(1, 4), pos=some_positions())
def test_blocks_of_keys_combine_to_the_whole(name, seed, blocks, pos):
    qkv, data = projections(seed), placed(pos)
    block = np.random.default_rng(seed).integers(0, blocks, (BATCH, T))
    parts = [attend(ALL[name], qkv, data._replace(k_valid=block == b)) for b in range(blocks)]
    outs, lses = (jnp.stack(x) for x in zip(*parts, strict=True))
    for found, expected in zip(aj.combine(outs, lses), attend(ALL[name], qkv, data), strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.parametrize(
    "name", [name for name in ATTENTION if name not in COUNTS | MIXING | {"pope", "transformer_xl"}]
)
@few
@given(seed=seeds, power=st.integers(-3, 3), pos=some_positions())
def test_the_scale_multiplies_queries(name, seed, power, pos):
    # PoPE, Transformer-XL, CoPE and DAPE put queries through a function that is not linear. Powers of two do not round.
    (q, k, v), factor = projections(seed), np.float32(2.0**power)
    found = attend(ALL[name], (factor * q, k, v), placed(pos), scale=1 / factor)
    assert_equal(found, attend(ALL[name], (q, k, v), placed(pos), scale=1.0))


@few
@given(seed=seeds)
def test_a_scale_of_zero_averages_what_is_seen(seed):
    q, k, v = projections(seed)
    mean = np.cumsum(v, axis=1) / np.arange(1, T + 1)[:, None, None]
    out, lse = attend(aj.NoPE(), (q, k, v), IN_ORDER, causal=True, scale=0.0)
    np.testing.assert_allclose(out, np.repeat(mean, N // K, axis=2), rtol=0, atol=1e-6)
    np.testing.assert_allclose(lse[0, :, 0], np.log(np.arange(1, T + 1)), rtol=0, atol=1e-6)


@each
@few
@given(seed=seeds, pos=some_positions())
def test_composing_with_no_encoding_changes_nothing(name, seed, pos):
    encoding, qkv = ALL[name], projections(seed)
    params = learned(encoding, SIZES) or aj.EncodingParams()
    around = aj.EncodingParams(*(((), side, ()) for side in params))
    composed, causal = aj.compose(aj.NoPE(), encoding, aj.NoPE()), encoding in NEED_CAUSAL
    found = attend(composed, qkv, placed(pos), params=around, causal=causal)
    assert_equal(found, attend(encoding, qkv, placed(pos)))


@pytest.mark.parametrize("name", ["rope", "dynamic_ntk", "alibi", "fire", "cope", "transformer_xl"])
def test_positions_by_default_are_the_indices(name):
    index = np.random.default_rng(0).permutation(T)
    mask = aj.Mask(causal=True, q_index=index, k_index=index)
    forms = (index, jnp.asarray(index), np.broadcast_to(index, (BATCH, T)), index.astype(np.float32))

    @functools.partial(jax.jit, compiler_options=FAST)
    def run(qkv, params):
        call = functools.partial(aj.attend, *qkv, encoding=ALL[name], params=params, mask=mask)
        return call(), [call(q_pos=pos, k_pos=pos) for pos in forms]

    default, found = run(projections(0), learned(ALL[name], SIZES))
    for out in found:
        np.testing.assert_allclose(out, default, **CLOSE)
