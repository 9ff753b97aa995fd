"""What a cache must not pass over: overflow, masks that look too far back, other encodings, misfitting arrays."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.attention import dispatch
from attnjax.attention.blockwise import blockwise

B, T, N, H = 2, 8, 4, 4
CAUSAL = aj.Mask(causal=True)


def tokens(length: int, heads: int = N) -> jax.Array:
    """Queries, keys or values."""
    return jnp.sin(jnp.arange(B * length * heads * H, dtype=jnp.float32)).reshape(B, length, heads, H)


def appended(cache: aj.KVCache, *sizes: int) -> aj.KVCache:
    """The cache with chunks of these sizes, whose content does not matter."""
    for size in sizes:
        new = tokens(size, cache.k.shape[1])
        cache = cache.append(new, new)
    return cache


def test_overflow_is_an_error_where_it_is_known():
    cache = appended(aj.KVCache.create(B, 6, N, H), 4)
    with pytest.raises(ValueError, match="the cache holds 4 of 6 tokens; 3 more do not fit"):
        cache.append(tokens(3), tokens(3))
    with pytest.raises(ValueError, match="the cache has 6 slots; 8 tokens do not fit"):
        jax.eval_shape(lambda cache: cache.append(tokens(T), tokens(T)), cache)


@pytest.mark.quick("itself-chunked")
@pytest.mark.parametrize("implementation", ["dense", "chunked"])
@pytest.mark.parametrize("mask", [aj.Mask(), CAUSAL, aj.Mask(window=(0, 0))], ids=["full", "causal", "itself"])
def test_overflow_is_nan_where_it_is_traced(implementation, mask, monkeypatch):
    monkeypatch.setitem(dispatch.WITH_LSE, "chunked", functools.partial(blockwise, tiling=aj.Tiling(2, 3)))

    def body(cache, now):
        new, valid = now
        cache = cache.append(new, new, valid=valid)
        return cache, aj.attend(new, cache=cache, mask=mask, implementation=implementation)

    # The first example begins with padding, which must not hide the overflow.
    valid = jnp.ones((T // 2, B, 2), bool).at[0, 0].set(False)
    pairs = jnp.moveaxis(tokens(T).reshape(B, T // 2, 2, N, H), 1, 0), valid
    # With all optimisations, because they are what loses a NaN.
    cache, out = jax.jit(lambda pairs: jax.lax.scan(body, aj.KVCache.create(B, 6, N, H), pairs))(pairs)
    assert np.all(np.isfinite(out[:3]))
    assert np.all(np.isnan(out[3]))
    # The count is an array of JAX now, which is not read: one more token is still no error, and still NaN.
    cache = cache.append(tokens(1), tokens(1))
    assert np.all(np.isnan(aj.attend(tokens(1), cache=cache, mask=mask, implementation=implementation)))


HIDING = {
    "k_valid": aj.Mask(causal=True, k_valid=np.arange(6) > 2),
    "allowed": aj.Mask(allowed=np.arange(6)[None] > 2),
    "q_index": aj.Mask(causal=True, window=2, q_index=np.array([20])),
    "segments": aj.Mask(causal=True, q_segments=np.array([1]), k_segments=np.array([0, 0, 0, 1, 1, 1])),
    "nobody": aj.Mask(k_valid=np.zeros(6, bool)),
}


@pytest.mark.quick("chunked-k_valid", "dense-allowed", "xla-q_index", "dense-segments", "chunked-nobody")
@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("implementation", ["dense", "chunked", "xla"])
def test_overflow_is_nan_whatever_the_mask_hides(implementation, name, monkeypatch):
    """It was 0 in every result, as of a query that sees no key."""
    monkeypatch.setitem(dispatch.WITH_LSE, "chunked", functools.partial(blockwise, tiling=aj.Tiling(2, 3)))
    q, mask = tokens(1), HIDING[name]

    @jax.jit
    def results(cache):
        found = {"weights": aj.attention_weights(q, cache=cache, mask=mask)}
        out = lambda q: aj.attend(q, cache=cache, mask=mask, implementation=implementation)
        found["out"], pull = jax.vjp(out, q)
        if implementation != "xla":
            found["with lse"] = aj.attend_with_lse(q, cache=cache, mask=mask, implementation=implementation)
        return found, pull(q)

    full = appended(aj.KVCache.create(B, 6, N, H), 6)
    found, gradient = results(dataclasses.replace(full, index=jnp.int32(6)))
    assert not any(np.isnan(x).any() for x in jax.tree.leaves((found, gradient)))
    found, _ = results(dataclasses.replace(full, index=jnp.int32(7)))
    for key, result in found.items():
        assert all(np.isnan(x).all() for x in jax.tree.leaves(result)), key


def test_a_loss_over_lost_tokens_has_no_finite_gradient():
    full = appended(aj.KVCache.create(B, 6, N, H), 6)
    run = lambda q, index: aj.attend(q, cache=dataclasses.replace(full, index=index), mask=HIDING["k_valid"])
    gradient = jax.jit(jax.grad(lambda q, index: run(q, index).sum()))
    assert np.isfinite(gradient(tokens(1), jnp.int32(6))).all()
    assert np.isnan(gradient(tokens(1), jnp.int32(7))).all()


def test_an_encoding_with_a_length_needs_plain_positions_in_a_ring_too():
    """A ring answered with its own count, which stayed 0 where positions are a tuple: frequencies of a length of 0."""
    encoding = aj.compose(aj.RoPE(scaling=aj.DynamicNTK(2.0, original_length=4)), aj.FoX())
    sizes, params = aj.Sizes(N * H, N, N, H), None
    params = encoding.init(jax.random.key(0), sizes)
    pos = aj.context_positions(encoding, params, jnp.ones((B, 4, N * H)), np.arange(4), sizes)
    for window in (None, 3):
        cache = aj.KVCache.create(B, 8, N, H, encoding=encoding, window=window)
        cache = cache.append(tokens(4), tokens(4), pos, params=params)
        options = {"encoding": encoding, "params": params, "mask": aj.Mask(causal=True, window=window)}
        with pytest.raises(ValueError, match=r"depends on the length needs positions \[S\] or \[B, S\], with one axis"):
            aj.attend(tokens(1), cache=cache, **options)


def test_a_mask_must_not_look_further_back_than_the_ring():
    cache, q = appended(aj.KVCache.create(B, 5, N, H, window=(2, 0)), 1), tokens(1)
    for mask, window in (
        (CAUSAL, "None"),
        (aj.Mask(causal=True, window=3), "3"),
        (aj.Mask(window=(None, 0)), r"\(None, 0\)"),
    ):
        with pytest.raises(ValueError, match=f"remembers a window of 2; the mask must have window <= 2, got {window}"):
            aj.attend(q, cache=cache, mask=mask)


def test_more_queries_than_the_ring_keeps_windows_for():
    cache = appended(aj.KVCache.create(B, 3, N, H, window=2), 1, 1, 1)
    with pytest.raises(ValueError, match="2 queries with window 2 need a capacity of at least 4, got 3"):
        aj.attend(tokens(2), cache=cache, mask=aj.Mask(causal=True, window=2))


def test_more_queries_than_tokens():
    cache = appended(aj.KVCache.create(B, 6, N, H), 2)
    with pytest.raises(ValueError, match="last tokens appended: got 3 queries, the cache holds 2 tokens"):
        aj.attend(tokens(3), cache=cache, mask=CAUSAL)


def test_a_cache_belongs_to_one_encoding():
    cache = appended(aj.KVCache.create(B, 6, N, H, encoding=aj.RoPE()), 2)
    q = tokens(1)
    with pytest.raises(
        ValueError, match=r"the cache holds keys for RoPE\(theta=10000.0.*attend got encoding=RoPE\(theta=500"
    ):
        aj.attend(q, cache=cache, encoding=aj.RoPE(theta=500.0), mask=CAUSAL)
    with pytest.raises(ValueError, match=r"keys for RoPE.*attend got encoding=NoPE\(\)"):
        aj.attend(q, cache=cache, mask=CAUSAL)


def test_arrays_along_the_keys_do_not_fit_a_ring_that_is_read_in_order():
    cache = appended(aj.KVCache.create(B, 4, N, H, encoding=aj.CoPE(), window=2), 2)
    mask = aj.Mask(causal=True, window=2, k_valid=np.ones(4, bool))
    with pytest.raises(ValueError, match="read in the order of the tokens, not of the slots: mark padding with append"):
        aj.attend(tokens(1), cache=cache, encoding=aj.CoPE(), mask=mask)


def test_positions_of_more_heads_than_the_cache_was_created_for():
    cache = aj.KVCache.create(B, 4, 2, H, encoding=aj.FoX())
    k = np.zeros((B, 3, 2, H), np.float32)
    words = "^k_pos has a row for each of 4 heads, and the cache was created for 2: pass heads=4 to KVCache.create$"
    with pytest.raises(ValueError, match=words):
        cache.append(k, k, np.zeros((B, 4, 3), np.float32))
    aj.KVCache.create(B, 4, 2, H, encoding=aj.FoX(), heads=4).append(k, k, np.zeros((B, 4, 3), np.float32))


CREATE = dict(batch=B, capacity=6, kv_heads=N, head_dim=H)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(batch=0), "KVCache: batch must be at least 1, got 0"),
        (dict(capacity=-1), "KVCache: capacity must be at least 1, got -1"),
        (dict(kv_heads=2.5), "KVCache: kv_heads must be an integer, got 2.5"),
        (dict(head_dim=True), "KVCache: head_dim must be an integer, got True"),
        (
            dict(head_dim=5, encoding=aj.RoPE()),
            "RoPE rotates pairs of channels: the head dimension must be even, got 5",
        ),
        (dict(encoding=aj.RoPE), r"encoding must be a PositionEncoding such as RoPE\(\), got <class"),
        (dict(dtype=jnp.int8), "dtype must be a floating type, got int8"),
        (dict(pos_dtype=jnp.bfloat16), "pos_dtype must be int32 or float32, got bfloat16"),
        (dict(window=6), "a window of 6 needs a capacity of at least 7, got 6"),
        (dict(window=-1), "window must be None, an int >= 0"),
    ],
)
def test_create_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        aj.KVCache.create(**CREATE | change)


@pytest.mark.parametrize(
    ("size", "change", "message"),
    [
        (2, dict(k=np.zeros((B, 2, N, H + 1), np.float32)), r"shape \(2, T, 4, 4\) with T >= 1, got k \(2, 2, 4, 5\)"),
        (2, dict(v=np.zeros((B, 3, N, H), np.float32)), r"got k \(2, 2, 4, 4\) and v \(2, 3, 4, 4\)"),
        (0, dict(), r"with T >= 1, got k \(2, 0, 4, 4\)"),
        (2, dict(k_pos=np.arange(3)), r"k_pos must have shape \(2,\) or \(2, 2\), got \(3,\)"),
        (2, dict(k_pos=np.array([0.5, 1.5])), "k_pos is float32 but the cache was created with pos_dtype=int32"),
        (2, dict(k_pos=np.array([0, 2**31])), r"k_pos must fit int32.*got values 0..2147483648"),
        (2, dict(k_pos=np.array([[0, 1], [0, 20_000]])), "XPos.*got positions 0..20000"),
        (2, dict(valid=np.ones((B, 3), bool)), r"valid must have shape \(2,\) or \(2, 2\), got \(2, 3\)"),
        (2, dict(valid=np.ones(2)), "valid must be boolean, got float64"),
        (5, dict(), "a chunk of 5 tokens with window 2 needs a capacity of at least 7, the cache has 6"),
    ],
)
def test_append_refuses(size, change, message):
    cache, new = aj.KVCache.create(**CREATE, window=2, encoding=aj.XPos()), tokens(size)
    with pytest.raises(ValueError, match=message):
        cache.append(**dict(k=new, v=new) | change)


def test_queries_of_another_head_dimension():
    cache = appended(aj.KVCache.create(B, 6, N, H), 2)
    with pytest.raises(ValueError, match="q and the cache must have the same head dimension"):
        aj.attend(np.zeros((B, 1, N, H + 1), np.float32), cache=cache, mask=CAUSAL)


def test_sizes_of_the_encoding_that_keys_do_not_see_are_free():
    """An odd number of channels per head is no obstacle where only the model's width must be even."""
    cache = aj.KVCache.create(B, 6, 1, 5, encoding=aj.TransformerXL())
    assert cache.k.shape == (B, 1, 6, 5)
    assert aj.KVCache.create(B, 6, 1, 5, encoding=aj.compose(aj.PoPE(), aj.TransformerXL())).k.shape == (B, 1, 6, 10)


def test_a_ring_forgets_the_first_tokens():
    cache, x = aj.KVCache.create(B, 7, N, H, window=3), jnp.ones((B, 2, N, H))
    mask = aj.Mask(causal=True, window=3, first=2)
    with pytest.raises(
        ValueError, match="forgets the first keys, which the mask shows, got first=2: create the cache without"
    ):
        aj.attend(x, cache=cache.append(x, x), mask=mask)
