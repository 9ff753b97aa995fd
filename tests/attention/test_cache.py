"""The cache of keys and values: what it holds, what a step costs, and what it must not pass over.

That decoding equals the full forward is tested for every encoding in `test_agreement.py`.
"""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import ALiBi, FoX, KVCache, Mask, NoPE, RoPE, Tiling, XPos, attend
from tests.attention.matrix import compiled
from tests.cases import OPTIMISED

B, T, N, H = 2, 8, 4, 4
CAUSAL = Mask(causal=True)


def tokens(length=T, heads=N):
    """Queries, keys or values."""
    return np.sin(np.arange(B * length * heads * H, dtype=np.float32)).reshape(B, length, heads, H)


def created(**change):
    return KVCache.create(**{"batch": B, "capacity": T, "kv_heads": N, "head_dim": H} | change)


def appended(cache, *sizes):
    """The cache with chunks of these sizes, whose content does not matter."""
    for size in sizes:
        cache = cache.append(tokens(size, cache.k.shape[1]), tokens(size, cache.k.shape[1]))
    return cache


def through(cache, x, *sizes, mask=CAUSAL, pos=None, valid=None, params=None):
    """The output of attention of x over itself, chunk by chunk, and the cache."""
    outs, at = [], 0
    for size in sizes:
        now = slice(at, at + size)
        k_pos, seen = (None if array is None else array[..., now] for array in (pos, valid))
        cache = cache.append(x[:, now], x[:, now], k_pos, params=params, valid=seen)
        outs.append(attend(x[:, now], cache=cache, encoding=cache.encoding, params=params, mask=mask))
        at += size
    return jnp.concatenate(outs, 1), cache


def assert_pairs(pairs, atol=3e-6):
    for got, expected in pairs:
        np.testing.assert_allclose(got, expected, atol=atol, rtol=1e-5)


# Contents


def test_left_padding_sees_and_adds_nothing():
    """It may hold NaN. Without it, the first example is a shorter sequence."""
    valid = np.arange(T) >= np.array([[3], [0]])
    x = np.where(valid[:, :, None, None], tokens(), np.nan)
    full = lambda x: attend(x, x, x, mask=CAUSAL)
    run = lambda x: (through(created(), x, 5, 1, 2, valid=valid)[0], full(x[:1, 3:]), full(x[1:]))
    out, first, second = compiled(run, x)
    assert not out[0, :3].any()
    assert_pairs([(out[:1, 3:], first), (out[1:], second)])


def test_positions_given_with_the_keys_are_those_of_the_queries():
    encoding, pos = aj.compose(RoPE(), ALiBi()), np.array([np.arange(T) * 7, np.arange(T) ** 2])
    options = {"encoding": encoding, "q_pos": pos, "k_pos": pos, "mask": CAUSAL}
    cache = lambda: created(encoding=encoding)
    run = lambda x: (through(cache(), x, 5, 3, pos=pos)[0], attend(x, x, x, **options))
    assert_pairs([compiled(run, tokens())])


def test_positions_count_on_where_none_are_given():
    def run():
        cache = appended(created(encoding=aj.compose(RoPE(), ALiBi())), 2, 1)
        ring = appended(created(capacity=4, window=2), 2, 2, 1, 2)
        return [(cache.k_pos, cache.last_positions()), (ring.k_pos, ring.last_positions())]

    whole, ring = compiled(run)
    assert [pos[0].ravel().tolist() for pos in whole[0]] == [[0, 1, 2, 0, 0, 0, 0, 0]] * 2
    assert [pos.tolist() for pos in whole[1]] == [[[2], [2]]] * 2
    assert ring[0][0][0].ravel().tolist() == [4, 5, 6, 3]
    assert ring[1].tolist() == [[6], [6]]


def test_the_length_of_the_sequence_is_the_capacity_unless_given():
    """DynamicNTK and LongRoPE map keys for good when they are appended, so that their frequencies may not change."""
    encoding = RoPE(scaling=aj.DynamicNTK(4.0, original_length=4))
    cached = lambda x, **length: through(created(capacity=20, encoding=encoding, **length), x, 5, 3)[0]
    full = lambda x, length: attend(x, x, x, encoding=encoding, mask=CAUSAL, length=length)
    pairs = compiled(lambda x: [(cached(x), full(x, 20)), (cached(x, length=6), full(x, 6))], tokens())
    assert_pairs(pairs)
    assert np.abs(pairs[0][0] - pairs[1][0]).max() > 1e-3


def test_sixteen_bits_are_kept_and_lose_eight_bits():
    """Weights of a relative error of 2^-8 move a mean of values by at most 2^-8 of the largest one."""
    rounded = tokens().astype(jnp.bfloat16).astype(np.float32)
    full = lambda x: attend(x, rounded, rounded, mask=CAUSAL)
    (out, cache), expected = compiled(lambda x: (through(created(dtype=jnp.bfloat16), x, 5, 3), full(x)), tokens())
    assert (cache.k.dtype, cache.v.dtype, out.dtype) == ("bfloat16", "bfloat16", "float32")
    assert_pairs([(out, expected)], atol=2**-8)


def test_queries_with_an_index_of_their_own_see_what_the_mask_says():
    """One query is causal because it is the last token, unless it is told where it stands. Slots of a ring are in no order."""

    def run(x):
        cache, q = created().append(x, x), x[:, 3:4]
        pairs = [(attend(q, cache=cache, mask=Mask(q_index=np.array([3]))), attend(q, x, x))]
        pairs += [(attend(q, cache=cache, mask=Mask(k_index=np.arange(T) + 3)), attend(q, x, x))]
        ring, mask = created(capacity=3, window=2), Mask(causal=True, window=2)
        for t in range(5):
            ring = ring.append(x[:, t : t + 1], x[:, t : t + 1])
        # Token 3 is in slot 0, token 4 in slot 1, token 2 in slot 2.
        weights = aj.attention_weights(x[:, :5], x[:, :5], mask=mask)[:, :, 4, np.array([3, 4, 2])]
        return [*pairs, (aj.attention_weights(x[:, 4:5], cache=ring, mask=mask)[:, :, 0], weights)]

    assert_pairs(compiled(run, tokens()))


# A step


def test_compiles_once_and_reuses_the_memory():
    """With all optimisations, as a user would compile it."""
    x, traced = tokens(4), []
    decode_step = jax.jit(lambda cache, now: traced.append(now) or through(cache, now, 1), donate_argnums=0)
    cache, outs = created(encoding=RoPE()), []
    for t in range(4):
        before = cache
        out, cache = decode_step(cache, x[:, t : t + 1])
        assert before.k.is_deleted()
        assert before.v.is_deleted()
        outs.append(out)
    assert len(traced) == 1
    full = compiled(lambda x: attend(x, x, x, encoding=RoPE(), mask=CAUSAL), x)
    assert_pairs([(np.concatenate(outs, 1), full)])


def test_vmap_over_caches_of_different_fill_and_gradients():
    def caches(x):
        few, many = (through(created(encoding=RoPE()), x, n)[1] for n in (3, 5))
        both = jax.tree.map(lambda *x: jnp.stack(x), few, many)
        return jax.vmap(lambda cache, now: through(cache, now, 1)[0])(both, jnp.stack([x[:, 3:4], x[:, 5:6]]))

    def full(x):
        out = attend(x, x, x, encoding=RoPE(), mask=CAUSAL)
        return jnp.stack([out[:, 3:4], out[:, 5:6]])

    value = lambda f: jax.value_and_grad(lambda x: (jnp.sin(out := f(x)).sum(), out), has_aux=True)
    got, expected = compiled(lambda x: (value(caches)(x), value(full)(x)), jnp.asarray(tokens()))
    assert_pairs(zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True))


@pytest.mark.parametrize("window", [None, 3])
def test_decoding_step_by_step_waits_for_no_device(window):
    """The count of tokens is a number of NumPy, and nothing but it is read: all arrays of JAX may be unknown."""
    empty = created(encoding=RoPE(), capacity=5, window=window)

    def steps(arrays, x):
        cache = dataclasses.replace(empty, **arrays)
        for t in range(3):
            _, cache = through(cache, x[:, t : t + 1], 1, mask=Mask(causal=True, window=window))
            assert isinstance(cache.index, np.ndarray | np.generic)
            assert cache.index == t + 1

    jax.eval_shape(steps, {name: getattr(empty, name) for name in ("k", "v", "k_pos", "valid")}, tokens())


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "kv_heads", "window", "batch"), [(RoPE(), 2, None, 2), (XPos(), 4, 20, 1)])
def test_a_step_copies_no_array_as_large_as_the_cache(encoding, kv_heads, window, batch):
    """Many tokens through a cache in one compiled loop, with all optimisations."""
    cache = created(batch=batch, capacity=64, kv_heads=kv_heads, heads=N, encoding=encoding, window=window)
    new = lambda heads: jax.ShapeDtypeStruct((5, batch, 1, heads, H), jnp.float32)

    def step(cache, now):
        cache = cache.append(now[1], now[1])
        return cache, attend(now[0], cache=cache, encoding=encoding, mask=Mask(causal=True, window=window))

    def moved(program, *given):
        """Copies and transpositions of as many numbers as the cache has inside the loop, fused ones too."""
        text = jax.jit(program, donate_argnums=0, compiler_options=OPTIMISED).lower(*given).compile().as_text()
        inside = text.replace(text[text.index("\nENTRY") :], "")
        shapes = re.findall(r"= \w+\[([\d,]+)\]\S* (?:copy|transpose|reverse|concatenate|scatter)\(", inside)
        return [shape for shape in shapes if math.prod(map(int, shape.split(","))) >= cache.k.size]

    assert moved(lambda cache, now: jax.lax.scan(step, cache, now), cache, (new(N), new(kv_heads))) == []
    assert moved(lambda x: jax.lax.scan(lambda x, _: (x.swapaxes(0, 1) + 1.0, ()), x, length=5)[0], jnp.ones((99, 99)))


@pytest.mark.parametrize("platform", ["tpu", "cpu"])
def test_writing_into_a_cache_is_conditional_on_a_cpu_alone(platform):
    """There XLA would copy the cache otherwise; on an accelerator a condition would cost time."""
    cache, new = created(encoding=RoPE()), jax.ShapeDtypeStruct((2, 1, N, H), jnp.float32)
    program = jax.jit(lambda cache, new: cache.append(new, new)).trace(cache, new)
    text = program.lower(lowering_platforms=(platform,)).as_text()
    # Two are of constants: the platform, and what is left of the choice by it.
    assert text.count("stablehlo.case") == (3 if platform == "cpu" else 2)


# Tokens beyond the capacity


HIDING = {
    "itself": Mask(window=(0, 0)),
    "k_valid": Mask(causal=True, k_valid=np.arange(6) > 2),
    "nobody": Mask(k_valid=np.zeros(6, bool)),
}


@pytest.mark.parametrize("way", ["dense", Tiling(2, 3)], ids=["dense", "tiles"])
def test_overflow_is_nan_where_it_is_traced(way):
    """Whatever the mask hides: output, weights, log-sum-exp and, where the mask shows anything, gradients."""
    q, full = tokens(1), jax.eval_shape(lambda: created(capacity=6))
    full = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), full)

    def results(index):
        cache, found = dataclasses.replace(full, index=index), {}
        for name, mask in HIDING.items():
            out, pull = jax.vjp(lambda q, mask=mask: attend(q, cache=cache, mask=mask, implementation=way), q)
            found[name] = [out] if way != "dense" and name != "k_valid" else [out, pull(jnp.ones_like(out))]
            if way == "dense":
                found[name] += [aj.attention_weights(q, cache=cache, mask=mask)]
            found[name] += aj.attend_with_lse(q, cache=cache, mask=mask, implementation=way)
        return found

    # With all optimisations, because they are what loses a NaN.
    run = jax.jit(results)
    assert not any(np.isnan(x).any() for x in jax.tree.leaves(run(jnp.int32(6))))
    for name, found in run(jnp.int32(7)).items():
        assert all(np.isnan(x).all() for x in jax.tree.leaves(found)), name


def test_a_loop_that_appends_too_much_ends_in_nan():
    """Its count is an array of JAX, which is not read: one more token is still no error, and still NaN."""

    def body(cache, new):
        cache = cache.append(new, new)
        return cache, attend(new, cache=cache, mask=CAUSAL)

    pairs = np.moveaxis(tokens().reshape(B, T // 2, 2, N, H), 1, 0)
    _, out = jax.jit(lambda pairs: jax.lax.scan(body, created(capacity=4), pairs))(pairs)
    assert np.isfinite(out[:2]).all()
    assert np.isnan(out[2:]).all()


# Mistakes


def reads(*sizes, queries=1, mask=CAUSAL, encoding=NoPE(), **change):
    """Attention to a cache that holds chunks of these sizes."""
    cache = appended(created(**{"capacity": 6} | change), *sizes)
    return attend(tokens(queries), cache=cache, mask=mask, encoding=encoding)


def appends(size, **change):
    cache = created(capacity=6, window=2, encoding=XPos())
    return cache.append(**{"k": tokens(size), "v": tokens(size)} | change)


def of_heads(encoding, **change):
    """Positions of four query heads, appended with two key heads."""
    k, pos = (
        np.zeros((B, 3, 2, H), np.float32),
        np.zeros((B, 4, 3), np.float32 if encoding.has("context") else np.int32),
    )
    return created(kv_heads=2, encoding=encoding, **change).append(k, k, pos)


MISTAKES = [
    (lambda: appended(created(capacity=6), 4, 3), "4 of 6 tokens; 3 more"),
    (lambda: reads(1, capacity=5, window=(2, 0)), "a window of 2.*window <= 2"),
    (lambda: reads(1, capacity=5, window=2, mask=Mask(True, 3)), "window of 2.*window=3"),
    (lambda: reads(1, capacity=5, window=2, mask=Mask(True, 2, first=1)), "no first keys"),
    (lambda: reads(1, 1, 1, capacity=3, window=2, queries=2, mask=Mask(True, 2)), "2 queries.*at least 4, got 3"),
    (lambda: reads(2, queries=3), "3 queries, the cache holds 2 tokens"),
    (lambda: reads(2, encoding=RoPE(theta=500.0)), r"NoPE\(\), .*RoPE\(theta=500"),
    (lambda: reads(2, kv_heads=2), r"q .*\(2, T, 2, 4\).*got \(2, 1, 4, 4\)"),
    (lambda: attend(tokens(), tokens(), tokens(), cache=created()), "k, v and k_pos"),
    (lambda: created(heads=6), "kv_heads=4, got 6"),
    (lambda: created(head_dim=5, encoding=RoPE()), "even, got 5"),
    (lambda: created(encoding=RoPE), r"RoPE\(\), got <class"),
    (lambda: created(window=8), "at least 9, got 8"),
    (lambda: appends(2, k=np.zeros((B, 2, N, H + 1), np.float32)), r"\(2, T, 4, 4\).* got k \(2, 2, 4, 5\)"),
    (lambda: appends(0), r"T >= 1, got k \(2, 0, 4, 4\)"),
    (lambda: appends(2, k_pos=np.array([0.5, 1.5])), "k_pos is float32, .*XPos.*int32"),
    (lambda: appends(2, valid=np.ones((B, 3), bool)), r"valid .*\(2,\) or \(2, 2\), got bool\[2, 3\]"),
    (lambda: appends(5), "5 tokens with window 2 .*at least 7, the cache has 6"),
    (lambda: of_heads(FoX()), r"k_pos .*got \(2, 4, 3\)"),
    (lambda: of_heads(ALiBi(), heads=4), r"ALiBi\(.*\(2, 1, 1, 8\)"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_told_while_tracing(call, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(call)
    jax.eval_shape(lambda: of_heads(FoX(), heads=4))
