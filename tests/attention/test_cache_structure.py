"""What a decoding step costs: no copy of the cache, and what a slot that is not finite does to rows that see it."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.attention.cache_update import write
from tests.attention.test_cache import ENCODINGS, learned, step, tokens
from tests.cases import OPTIMISED

B, T, N, H = 2, 8, 4, 4
CAUSAL = aj.Mask(causal=True)
MOVES = ("copy", "transpose", "reverse", "concatenate", "scatter")


def moved(compiled, size: int) -> list[str]:
    """Copies and transpositions, fused ones too, of at least `size` numbers inside the loop of a compiled program."""
    text = compiled.as_text()
    entry = text[text.index("\nENTRY") :]
    inside = text.replace(entry, "")
    found = re.findall(r"= \w+\[([\d,]+)\]\S* (" + "|".join(MOVES) + r")\(", inside)
    return [f"{op}[{shape}]" for shape, op in found if math.prod(map(int, shape.split(","))) >= size]


def loop(encoding, params, kv_heads, window=None, batch=B, capacity=64):
    """Many tokens through a cache in one compiled loop, with all optimisations."""
    cache = jax.eval_shape(lambda: aj.KVCache.create(batch, capacity, kv_heads, H, encoding=encoding, window=window))
    new = lambda heads: jax.ShapeDtypeStruct((5, batch, 1, heads, H), jnp.float32)
    now = tokens()._replace(q=new(N), k=new(kv_heads), v=new(kv_heads))
    decode = lambda cache, now: jax.lax.scan(lambda cache, now: step(cache, params, now), cache, now)
    return jax.jit(decode, donate_argnums=0, compiler_options=OPTIMISED).lower(cache, now).compile()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kv_heads", "window", "batch"),
    [("nope", 4, None, 1), ("rope", 2, None, 2), ("pope", 1, None, 1), ("t5", 4, 20, 2), ("xpos", 2, None, 1)],
)
def test_a_step_copies_no_array_as_large_as_the_cache(name, kv_heads, window, batch):
    compiled = loop(ENCODINGS[name], learned(ENCODINGS[name], kv_heads), kv_heads, window, batch)
    assert moved(compiled, batch * kv_heads * 64 * H) == []


@pytest.mark.slow
def test_copies_would_be_found():
    turned = lambda x: jax.lax.scan(lambda x, _: (x.swapaxes(0, 1) + 1.0, ()), x, length=5)[0]
    assert moved(jax.jit(turned, compiler_options=OPTIMISED).lower(jnp.ones((64, 64))).compile(), 64 * 64)


@pytest.mark.quick("3-cope")
@pytest.mark.parametrize("name", ["nope", "rope", "dynamic_ntk", "cope"])
@pytest.mark.parametrize("window", [None, 3])
def test_decoding_step_by_step_waits_for_no_device(name, window):
    """The count of tokens is a number of NumPy, and nothing but it is read: all arrays of JAX may be unknown."""
    encoding, seq = ENCODINGS[name], tokens(2)
    params, mask = learned(encoding, 2), aj.Mask(causal=True, window=window)
    cache = aj.KVCache.create(B, T if window is None else 5, 2, H, encoding=encoding, window=window)

    def step(cache, now):
        cache = cache.append(now.k, now.v, params=params)
        return cache, aj.attend(now.q, cache=cache, encoding=encoding, params=params, mask=mask)

    for t in range(3):
        cache, _ = step(cache, seq.part(t, t + 1))
        assert isinstance(cache.index, np.ndarray | np.generic)
        assert cache.index == t + 1
    names = [field.name for field in dataclasses.fields(cache) if field.name not in ("index", "encoding", "window")]
    arrays = {name: getattr(cache, name) for name in names}
    unknown = lambda arrays, now: step(dataclasses.replace(cache, **arrays), now)[1]
    jax.eval_shape(unknown, arrays, seq.part(3, 4))
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.eval_shape(lambda cache, now: int(step(cache, now)[0].index), cache, seq.part(3, 4))


@pytest.mark.quick("k-nan-rope", "k-nan-cope", "v--inf-dynamic_ntk", "v--inf-fire")
@pytest.mark.parametrize("name", ["nope", "rope", "dynamic_ntk", "cope", "fire"])
@pytest.mark.parametrize(("which", "bad"), [("k", np.nan), ("v", -np.inf)])
def test_a_slot_that_is_not_finite_reaches_exactly_the_rows_that_see_it(name, which, bad):
    encoding, seq = ENCODINGS[name], tokens(2)
    params = learned(encoding, 2)
    spoilt = seq._replace(**{which: getattr(seq, which).at[1, 2, 1, 0].set(bad)})
    window = 3
    cache = aj.KVCache.create(B, T, 2, H, encoding=encoding)

    @jax.jit
    def rows(seq):
        def one(cache, now):
            cache = cache.append(now.k, now.v, params=params)
            mask = aj.Mask(causal=True, window=window)
            return cache, aj.attend(now.q, cache=cache, encoding=encoding, params=params, mask=mask)

        parts = jax.tree.map(lambda x: jnp.moveaxis(x[:, :, None], 1, 0), seq)
        return jax.lax.scan(one, cache, parts)[1][:, :, 0]

    out, clean = rows(spoilt), rows(seq)
    hit = np.zeros((T, B, N), bool)
    hit[2 : 2 + window + 1, 1, 2:] = True
    np.testing.assert_array_equal(~np.isfinite(out).all(-1), hit)
    np.testing.assert_array_equal(out[~hit], clean[~hit])


@pytest.mark.parametrize("implementation", ["dense", "chunked"])
def test_a_query_that_is_not_finite_is_one_row_that_is_not_in_optimised_code(implementation):
    """A constant NaN in front of an exponential is lost on CPUs, where every key is visible."""
    q = jnp.ones((2, 2, N, H))
    spoilt = q.at[0, 1, 0].set(jnp.nan)
    run = jax.jit(lambda q, k: aj.attend(q, k, k, implementation=implementation), compiler_options=OPTIMISED)
    out = run(spoilt, q)
    hit = np.zeros((2, 2, N), bool)
    hit[0, 1, 0] = True
    np.testing.assert_array_equal(~np.isfinite(out).all(-1), hit)


@pytest.mark.parametrize(
    ("ring", "index", "size"), [(False, 0, 5), (False, 2, 3), (True, 3, 2), (True, 4, 4), (True, 9, 1)]
)
def test_tokens_take_the_slots_behind_the_index(ring, index, size):
    old = {"k": jnp.zeros((2, 3, 5, 2)), "bad": jnp.zeros((2, 3, 5), bool), "pos": jnp.full((2, 5), -1, jnp.int32)}
    new = {"k": jnp.ones((2, 3, size, 2)), "bad": jnp.ones((2, 3, size), bool)}
    new["pos"] = jnp.broadcast_to(index + jnp.arange(size, dtype=jnp.int32), (2, size))
    axes = {"k": 2, "bad": 2, "pos": 1}
    put = jax.jit(lambda old, new, index: write(old, new, axes, index, ring=ring))
    found = put(old, new, jnp.int32(index))
    expected = np.full(5, -1)
    expected[(index + np.arange(size)) % 5] = index + np.arange(size)
    np.testing.assert_array_equal(found["pos"], np.tile(expected, (2, 1)))
    np.testing.assert_array_equal(found["bad"], np.broadcast_to(expected >= 0, (2, 3, 5)))
    np.testing.assert_array_equal(found["k"], np.broadcast_to((expected >= 0)[:, None], (2, 3, 5, 2)))
