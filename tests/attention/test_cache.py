"""Decoding equals the full forward: every encoding, by token or in chunks, in a ring, padded, at any positions."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.attention import dispatch
from attnjax.attention.blockwise import blockwise
from tests.cases import FAST

B, T, N, H = 2, 8, 4, 4
CAUSAL = aj.Mask(causal=True)
LONG = aj.LongRoPE((1.0, 1.5), (2.0, 5.0), original_length=4, factor=4.0)

ON_EMBEDDINGS = {"sinusoidal", "learned"}
"""They act on the input of the model, and `attend` refuses them."""
ENCODINGS = {
    **{name: make() for name, make in aj.ENCODINGS.items() if name not in ON_EMBEDDINGS},
    "fire": aj.FIRE(hidden=4, threshold=3.0),
    "cope": aj.CoPE(max_position=4),
    "yarn": aj.RoPE(scaling=aj.YaRN(4.0, original_length=4)),
    "dynamic_ntk": aj.RoPE(scaling=aj.DynamicNTK(4.0, original_length=4)),
    "long_rope": aj.RoPE(scaling=LONG),
    "rope_alibi": aj.compose(aj.RoPE(), aj.ALiBi(slopes=(0.5, 0.25, 0.1, 1.0))),
    "xpos_cope_t5": aj.compose(aj.XPos(), aj.CoPE(max_position=3), aj.T5Bias(buckets=4, max_distance=5)),
    "rope_transformer_xl": aj.compose(aj.RoPE(), aj.TransformerXL()),
    "long_rope_fire": aj.compose(aj.RoPE(scaling=LONG), aj.compose(aj.PoPE(), aj.FIRE(hidden=3))),
}
assert set(aj.ENCODINGS) <= set(ENCODINGS) | ON_EMBEDDINGS

# Compiling is nearly all that these tests do, and optimising the code of eight tokens does not pay.
jit = functools.partial(jax.jit, compiler_options=FAST)


class Tokens(NamedTuple):
    """What is known about a sequence; the time axis is the second of each array, of positions per head too."""

    q: Any
    k: Any
    v: Any
    pos: Any = None
    valid: Any = None

    def part(self, start: int, stop: int) -> "Tokens":
        return jax.tree.map(lambda x: x[:, start:stop], self)


def tokens(kv_heads: int = N, length: int = T, **more: Any) -> Tokens:
    draw = np.random.default_rng(length + kv_heads)
    return Tokens(
        *(jnp.asarray(draw.normal(size=(B, length, n, H)), jnp.float32) for n in (N, kv_heads, kv_heads)), **more
    )


def heads_first(encoding: aj.PositionEncoding, pos: Any) -> Any:
    """Positions as `attend` takes them: those computed from content have a row per head."""
    return jnp.moveaxis(pos, 1, 2) if aj.Trait.CONTEXT in encoding.traits else pos


def contextual(encoding: aj.PositionEncoding, kv_heads: int) -> Any:
    """Positions like those that an encoding computes from content, summed from random steps; None for other encodings."""
    if aj.Trait.CONTEXT not in encoding.traits:
        return None
    sizes = aj.Sizes(model=N * H, heads=N, kv_heads=kv_heads, head_dim=H)
    params, draw = learned(encoding, kv_heads), np.random.default_rng(5)
    compute = lambda x: aj.context_positions(encoding, params, x, np.arange(T), sizes)
    shape = jax.eval_shape(compute, jax.ShapeDtypeStruct((B, T, N * H), jnp.float32)).shape
    steps = draw.exponential(size=(shape[0], shape[2], shape[1], *shape[3:])) / 4
    return jnp.asarray(np.cumsum(steps, axis=1), jnp.float32)


def learned(encoding: aj.PositionEncoding, kv_heads: int = N) -> aj.EncodingParams | None:
    """Parameters away from their initial value, which is often zero."""
    draw = np.random.default_rng(1)
    move = lambda x: x + jnp.asarray(0.5 * draw.normal(size=x.shape), x.dtype)
    params = encoding.init(jax.random.key(0), aj.Sizes(model=N * H, heads=N, kv_heads=kv_heads, head_dim=H))
    return jax.tree.map(move, params) if aj.learns(encoding) else None


def forward(encoding, params, seq: Tokens, *, window=None, ends=None, implementation="dense"):
    """The full forward; for encodings that look at the length, row t is that of the forward on the prefix that ends
    with the chunk of t, at `ends[t]`. Later tokens are hidden by `k_valid`, so that one shape serves all prefixes."""
    length = seq.q.shape[1]
    valid = np.ones((1, length), bool) if seq.valid is None else seq.valid

    def prefix(end):
        seen = jnp.broadcast_to(valid & (jnp.arange(length) < end)[None], (B, length))
        mask = aj.Mask(causal=True, window=window, k_valid=seen)
        pos = heads_first(encoding, seq.pos)
        options = dict(encoding=encoding, params=params, q_pos=pos, k_pos=pos, mask=mask)
        return aj.attend(seq.q, seq.k, seq.v, **options, implementation=implementation)

    if aj.Trait.LENGTH not in encoding.traits:
        return prefix(length)
    ends = jnp.arange(length) + 1 if ends is None else jnp.asarray(ends)
    return jax.vmap(prefix)(ends)[jnp.arange(length), :, jnp.arange(length)].swapaxes(0, 1)


def step(cache: aj.KVCache, params, now: Tokens, implementation="dense"):
    """Append a chunk, then let its queries look."""
    cache = cache.append(now.k, now.v, heads_first(cache.encoding, now.pos), params=params, valid=now.valid)
    mask = aj.Mask(causal=True, window=cache.window)
    options = dict(encoding=cache.encoding, params=params, mask=mask, implementation=implementation)
    return cache, aj.attend(now.q, cache=cache, **options)


def decode(cache: aj.KVCache, params, seq: Tokens, *, prefill=0, chunk=1, implementation="dense"):
    """A first chunk of `prefill` tokens, then chunks of `chunk` in a `lax.scan`."""
    outs, length = [], seq.q.shape[1]
    if prefill:
        cache, out = step(cache, params, seq.part(0, prefill), implementation)
        outs.append(out)
    steps = (length - prefill) // chunk
    split = lambda x: jnp.moveaxis(x[:, prefill:].reshape(B, steps, chunk, *x.shape[2:]), 1, 0)
    body = lambda cache, now: step(cache, params, now, implementation)
    _, out = jax.lax.scan(body, cache, jax.tree.map(split, seq))
    return jnp.concatenate([*outs, jnp.moveaxis(out, 0, 1).reshape(B, steps * chunk, N, H)], axis=1)


def ends_of(prefill: int, chunk: int) -> np.ndarray:
    """Where the chunk of each token ends."""
    sizes = [prefill] * bool(prefill) + [chunk] * ((T - prefill) // chunk)
    return np.repeat(np.cumsum(sizes), sizes)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dispatch.WITH_LSE, "chunked", functools.partial(blockwise, tiling=aj.Tiling(2, 3, heads=2)))


def check(actual, expected, atol=3e-6):
    assert np.all(np.isfinite(expected))
    atol = 1e-12 if expected.dtype == np.float64 else atol
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=1e-5)


def compare(encoding, *args, **options):
    """Decoding and the full forward in one program. PaTH multiplies reflections, and products of chunks round otherwise than
    those of the whole (in float32 by up to 4e-6, depending on the processor), so that it is compared in double precision."""
    with jax.enable_x64(isinstance(encoding, aj.PaTH)):
        compare_in(jnp.float64 if isinstance(encoding, aj.PaTH) else jnp.float32, encoding, *args, **options)


def compare_in(
    dtype, encoding, kv_heads, seq, *, capacity=T + 1, window=None, prefill=0, chunk=1, implementation="dense"
):
    as_wide = lambda x: x.astype(dtype) if x.dtype == jnp.float32 else x
    params, seq = jax.tree.map(as_wide, (learned(encoding, kv_heads), seq))
    pos_dtype = jnp.int32 if seq.pos is None else seq.pos.dtype
    seq = seq if seq.pos is not None else seq._replace(pos=contextual(encoding, kv_heads))

    @jit
    def both(params, seq):
        options = dict(heads=N, encoding=encoding, window=window, pos_dtype=pos_dtype)
        cache = aj.KVCache.create(B, capacity, kv_heads, H, **options)
        out = decode(cache, params, seq, prefill=prefill, chunk=chunk, implementation=implementation)
        return out, forward(encoding, params, seq, window=window, ends=ends_of(prefill, chunk))

    check(*both(params, seq))


@pytest.mark.quick(
    "rope",
    "alibi",
    "t5",
    "fire",
    "transformer_xl",
    "cope",
    "pope",
    "fox",
    "repo",
    "selective_rope",
    "ssmax",
    "mrope",
    "dape",
    "stick_breaking",
    "path",
    "dynamic_ntk",
    "xpos_cope_t5",
)
@pytest.mark.parametrize("name", ENCODINGS)
def test_token_by_token_equals_the_full_forward(name):
    compare(ENCODINGS[name], 2, tokens(2))


@pytest.mark.quick("rope", "cope", "path", "long_rope_fire")
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_ring_shorter_than_the_sequence_equals_a_window(name):
    compare(ENCODINGS[name], 1, tokens(1), capacity=4, window=2, chunk=2)


@pytest.mark.quick("transformer_xl", "dynamic_ntk")
@pytest.mark.parametrize("name", ["rope", "alibi", "kerple", "transformer_xl", "cope", "pope", "dynamic_ntk"])
def test_prefill_and_chunks_equal_the_full_forward(name):
    compare(ENCODINGS[name], 4, tokens(4), prefill=2, chunk=3, implementation="chunked")


@pytest.mark.quick("cope", "long_rope")
@pytest.mark.parametrize("name", ["fire", "cope", "long_rope", "xpos_cope_t5"])
def test_the_smallest_ring_holds_a_window_and_a_token(name):
    compare(ENCODINGS[name], 4, tokens(4), capacity=3, window=(2, 0), implementation="chunked")


LEFT_PADDED = np.array([[False, False, False, True, True, True, True, True], [True] * T])


@pytest.mark.quick("rope", "cope")
@pytest.mark.parametrize("name", ["rope", "t5", "cope", "dynamic_ntk"])
def test_left_padding_is_told_by_valid(name):
    compare(ENCODINGS[name], 2, tokens(2, valid=jnp.asarray(LEFT_PADDED)), prefill=5)


def test_padding_sees_and_adds_nothing():
    seq = tokens(valid=jnp.asarray(LEFT_PADDED))
    out = jit(lambda seq: decode(aj.KVCache.create(B, T, N, H), None, seq, prefill=5))(seq)
    np.testing.assert_array_equal(out[0, :3], 0)
    # Without its padding, the first example is a shorter sequence.
    alone = jit(lambda q, k, v: aj.attend(q, k, v, mask=CAUSAL))(*(x[:1, 3:] for x in seq[:3]))
    check(out[:1, 3:], alone)


RANDOM = np.sort(np.random.default_rng(3).permuted(np.tile(np.arange(50), (B, 1)), axis=1)[:, :T], axis=1)


@pytest.mark.quick("pope", "long_rope")
@pytest.mark.parametrize("name", ["rope", "alibi", "fire", "transformer_xl", "pope", "long_rope"])
def test_positions_given_with_the_keys_are_those_of_the_queries(name):
    compare(ENCODINGS[name], 2, tokens(2, pos=jnp.asarray(RANDOM, jnp.int32)), prefill=5)


@pytest.mark.parametrize("name", ["rope", "kerple"])
def test_fractional_positions(name):
    compare(ENCODINGS[name], 2, tokens(2, pos=jnp.asarray(RANDOM / 4, jnp.float32)), prefill=5)


def test_a_cache_of_fractional_positions_counts_where_none_are_given():
    encoding, seq = aj.RoPE(), tokens()
    cache = aj.KVCache.create(B, T, N, H, encoding=encoding, pos_dtype=jnp.float32)
    out = jit(lambda seq: decode(cache, None, seq, prefill=5))(seq)
    check(out, jit(lambda seq: forward(encoding, None, seq))(seq))


def test_a_ring_remembers_the_length_when_it_forgot_the_longest_position():
    encoding = ENCODINGS["long_rope"]
    pos = jnp.asarray([[0, 1, 9, 0, 1, 2, 3, 0], [0, 1, 2, 3, 0, 1, 2, 3]], jnp.int32)
    compare(encoding, 2, tokens(2, pos=pos), capacity=3, window=2)
    # The position of padding does not count.
    pos, valid = pos.at[1, 0].set(40), jnp.ones((B, T), bool).at[1, 0].set(False)
    compare(encoding, 2, tokens(2, pos=pos, valid=valid), capacity=3, window=2)


def test_an_index_of_rank_one_serves_all_examples():
    seq, cache = tokens(), aj.KVCache.create(B, T, N, H, encoding=aj.RoPE())
    pos = np.arange(T) * 3
    one = lambda pos: cache.append(seq.k, seq.v, pos).k
    np.testing.assert_array_equal(jit(lambda: one(pos))(), jit(lambda: one(np.tile(pos, (B, 1))))())


def test_keys_and_values_in_bfloat16_are_rounded_once_and_weights_to_their_type():
    """Weights of a relative error 2^-8 move a mean of values by at most 2^-8 of the largest one."""
    seq = tokens()
    rounded = seq._replace(**{name: getattr(seq, name).astype(jnp.bfloat16).astype(jnp.float32) for name in "kv"})
    cache = aj.KVCache.create(B, T, N, H, jnp.bfloat16)
    out = jit(lambda seq: decode(cache, None, seq, prefill=5))(seq)
    assert out.dtype == jnp.float32
    check(out, jit(lambda seq: forward(aj.NoPE(), None, seq))(rounded), atol=2**-8 * np.abs(seq.v).max())


def test_mapped_keys_in_bfloat16_lose_eight_bits_and_no_more():
    seq, encoding = tokens(), aj.RoPE()
    cache = aj.KVCache.create(B, T, N, H, jnp.bfloat16, encoding=encoding)
    out = jit(lambda seq: decode(cache, None, seq, prefill=5))(seq)
    check(out, jit(lambda seq: forward(encoding, None, seq))(seq), atol=0.02)


def test_keys_of_xpos_in_float16_do_not_overflow():
    """Its factors reach 2^64; the cache keeps the keys in the type that the encoding gives them."""
    far, encoding = np.array([10_000]), aj.XPos()
    q, k, v = (x[:, :1].astype(jnp.float16) for x in tokens()[:3])
    cache = aj.KVCache.create(B, 1, N, H, jnp.float16, encoding=encoding)
    assert (cache.k.dtype, cache.v.dtype) == (jnp.float32, jnp.float16)
    out = aj.attend(q, cache=cache.append(k, v, far), encoding=encoding, mask=aj.Mask(causal=True))
    np.testing.assert_array_equal(out, v)
    assert aj.KVCache.create(B, 1, N, H, jnp.float16, encoding=aj.RoPE()).k.dtype == jnp.float16


@pytest.mark.parametrize("name", ["rope", "dynamic_ntk", "cope"])
def test_double_precision(x64, name):
    encoding = ENCODINGS[name]
    seq = jax.tree.map(lambda x: x.astype(jnp.float64), tokens())
    params = jax.tree.map(lambda x: x.astype(jnp.float64), learned(encoding))
    cache = aj.KVCache.create(B, T, N, H, jnp.float64, encoding=encoding)
    out, full = jit(lambda seq: (decode(cache, params, seq), forward(encoding, params, seq)))(seq)
    assert out.dtype == jnp.float64
    np.testing.assert_allclose(out, full, rtol=1e-9, atol=1e-12)


@dataclasses.dataclass(frozen=True)
class Stretched(aj.PositionEncoding):
    """An encoding that learns how to map keys, as none of ours does."""

    def init(self, key, sizes):
        return aj.EncodingParams(shared={"rate": jnp.full((sizes.head_dim,), 0.1)})

    def map_k(self, p, k, pos):
        return k * jnp.exp(-p.shared["rate"][None] * jnp.asarray(pos, jnp.float32)[:, None])


@pytest.mark.parametrize("encoding", [Stretched(), aj.compose(aj.T5Bias(4, 8), Stretched())], ids=["alone", "composed"])
def test_learned_maps_of_keys_need_their_parameters(encoding):
    compare(encoding, 2, tokens(2))
    seq, cache = tokens(), aj.KVCache.create(B, T, N, H, encoding=encoding)
    with pytest.raises(ValueError, match=r"Stretched\(\).* learns how to map keys: pass params to append"):
        cache.append(seq.k, seq.v)


def test_compiles_once_and_reuses_the_memory():
    seq, encoding, traced = tokens(), aj.RoPE(), []

    def counted(cache, now):
        traced.append(now)
        return step(cache, None, now)

    # As a user would compile it, with all optimisations.
    decode_step = jax.jit(counted, donate_argnums=0)
    cache, outs = aj.KVCache.create(B, T, N, H, encoding=encoding), []
    for t in range(T):
        before = cache
        cache, out = decode_step(cache, seq.part(t, t + 1))
        assert before.k.is_deleted()
        assert before.v.is_deleted()
        outs.append(out)
    assert len(traced) == 1
    check(jnp.concatenate(outs, 1), jit(lambda seq: forward(encoding, None, seq))(seq))


def test_vmap_over_caches_of_different_fill():
    seq, encoding = tokens(), aj.RoPE()
    empty = aj.KVCache.create(B, T, N, H, encoding=encoding)
    append = jit(lambda cache, now: step(cache, None, now))
    few, many = append(empty, seq.part(0, 3))[0], append(empty, seq.part(0, 5))[0]
    both = jax.tree.map(lambda *x: jnp.stack(x), few, many)
    now = jax.tree.map(lambda *x: jnp.stack(x), seq.part(3, 4), seq.part(5, 6))
    _, out = jit(jax.vmap(lambda cache, now: step(cache, None, now)))(both, now)
    full = jit(lambda seq: forward(encoding, None, seq))(seq)
    check(out, jnp.stack([full[:, 3:4], full[:, 5:6]]))


def test_gradients_flow_through_the_cache():
    seq, encoding = tokens(), aj.RoPE()
    cache = aj.KVCache.create(B, T, N, H, encoding=encoding)
    loss = lambda run: jit(jax.grad(lambda seq: jnp.sum(jnp.sin(run(seq)))))
    by_steps = loss(lambda seq: decode(cache, None, seq, prefill=5))(seq)
    jax.tree.map(check, by_steps, loss(lambda seq: forward(encoding, None, seq))(seq))


@pytest.mark.parametrize("mask", [{"q_index": np.array([3])}, {"k_index": np.arange(T) + 3}], ids=["query", "keys"])
def test_one_query_with_an_index_of_its_own_sees_what_the_mask_says(mask):
    """It was causal all the same, and a query at index 3 of 8 did not see the keys after it."""
    seq, mask = tokens(), aj.Mask(**mask)
    cache = aj.KVCache.create(B, T, N, H).append(seq.k, seq.v)
    out, full = jit(lambda q, cache: (aj.attend(q, cache=cache, mask=mask), aj.attend(q, seq.k, seq.v)))(
        seq.q[:, 3:4], cache
    )
    check(out, full)


def test_weights_of_a_cache_are_in_the_order_of_its_slots():
    seq, cache = tokens(), aj.KVCache.create(B, 3, N, H, window=2)
    mask = aj.Mask(causal=True, window=2)

    @jit
    def both(seq):
        ring = functools.reduce(
            lambda cache, t: cache.append(seq.k[:, t : t + 1], seq.v[:, t : t + 1]), range(5), cache
        )
        full = aj.attention_weights(seq.q[:, :5], seq.k[:, :5], mask=mask)
        return aj.attention_weights(seq.q[:, 4:5], cache=ring, mask=mask), full

    ring, full = both(seq)
    # Token 3 is in slot 0, token 4 in slot 1, token 2 in slot 2.
    check(ring[:, :, 0], full[:, :, 4, [3, 4, 2]])
