"""Numbers that attention promises: no overflow, float32 inside, every length, every type.

Oracles are float64 NumPy formulas or values that follow by hand. Positions far out are in `test_far_positions.py`.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import ATTENTION, FAST, HEAD, OPTIMISED, learned, slow_except

B, N, K = 2, 4, 2
SIZES = aj.Sizes(model=N * HEAD, heads=N, kv_heads=K, head_dim=HEAD)
IMPLEMENTATIONS = ("dense", "chunked", "xla")
CAUSAL = aj.Mask(causal=True)
as_users = functools.partial(jax.jit, compiler_options=OPTIMISED)


def random(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(jnp.dtype(dtype))


def content(T: int, S: int | None = None, dtype: str = "float32", heads: int = N, batch: int = B, head: int = HEAD):
    """q, k, v with two query heads per key head where there are several."""
    S, kv_heads = S or T, max(1, heads // 2)
    shapes = ((batch, T, heads, head), (batch, S, kv_heads, head), (batch, S, kv_heads, head))
    return tuple(random(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes))


def reference(q, k, v, visible=None, scale=None) -> np.ndarray:
    """softmax(scale q.k) v in float64 over the visible keys, without positions; 0 where there are none."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    logits = np.einsum("btnh,bsnh->bnts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    visible = np.ones(logits.shape[-2:], bool) if visible is None else visible
    logits = np.where(visible, logits, -np.inf)
    weights = np.exp(logits - np.where(visible.any(-1), logits.max(-1), 0)[..., None])
    return np.einsum("bnts,bsnh->btnh", weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300), v)


@pytest.mark.parametrize("implementation", slow_except(IMPLEMENTATIONS, "dense"))
@pytest.mark.parametrize(
    ("head", "size"), slow_except([(64, 95.0), (64, 4000.0), (256, 250.0), (256, 60_000.0)], (256, 60_000.0))
)
def test_float16_scores_past_its_largest_number(head, size, implementation):
    # Two keys tie at a score of size^2 sqrt(head), 72,000 and more; the others lie far below.
    q = np.full((1, 3, 1, head), size, np.float16)
    k = np.full((1, 5, 1, head), size, np.float16)
    k[:, 1::2] *= np.float16(0.5)
    k[:, 4] *= np.float16(-1)
    v = random(1, 5, 1, head, dtype="float16")
    out = as_users(functools.partial(aj.attend, implementation=implementation))(q, k, v)
    assert out.dtype == jnp.float16
    expected = reference(q, k, v)
    np.testing.assert_allclose(expected[0, 0, 0], (v[0, 0, 0].astype(float) + v[0, 2, 0]) / 2)
    np.testing.assert_allclose(np.asarray(out, float), expected, rtol=2**-11, atol=1e-7)


@pytest.mark.parametrize(
    ("size", "implementation"),
    slow_except(
        itertools.product([1e4, 8192.0, 2.0**100], IMPLEMENTATIONS),
        (2.0**100, "dense"),
        (1e4, "chunked"),
        (8192.0, "xla"),
    ),
)
def test_softmax_of_huge_scores(size, implementation):
    # Scores size, size - 1 (where float32 has room for it) and -size.
    lower = size - 1 if size < 2**24 else size / 2
    q = np.full((1, 1, 1, 2), 1, np.float32)
    k = np.array([[size, 0], [lower, 0], [-size, 0]], np.float32)[None, :, None]
    v = np.array([[1, 0], [0, 1], [1, 1]], np.float32)[None, :, None]
    attend = lambda q: aj.attend(q, k, v, scale=1.0, implementation=implementation)[0, 0, 0]
    other = np.exp(-1) if size < 2**24 else 0.0
    np.testing.assert_allclose(as_users(attend)(q), [1 / (1 + other), other / (1 + other)], rtol=0, atol=1e-6)
    assert np.isfinite(as_users(jax.jacrev(attend))(q)).all()


@pytest.mark.parametrize(
    ("dtype", "implementation"),
    slow_except(
        itertools.product(["bfloat16", "float16"], IMPLEMENTATIONS),
        ("float16", "dense"),
        ("bfloat16", "chunked"),
        ("bfloat16", "xla"),
    ),
)
def test_sums_are_float32(dtype, implementation):
    # 2,048 values near 1: a running sum in 16 bits would stop growing at a fraction of it, and the mean would be far off.
    # What may be off is half a unit in the last place of each weight, and of the result.
    q, k, v = content(2048, dtype=dtype, heads=1, batch=1)
    v = (1 + 0.25 * v.astype(np.float32)).astype(v.dtype)
    out = as_users(functools.partial(aj.attend, scale=0.02, implementation=implementation))(q, k, v)
    expected = reference(q, k, v, scale=0.02)
    half_a_digit, largest = float(jnp.finfo(dtype).eps) / 2, np.abs(v.astype(float)).max()
    np.testing.assert_allclose(
        np.asarray(out, float), expected, rtol=1.001 * half_a_digit, atol=half_a_digit * largest + 2e-6
    )


@pytest.mark.parametrize("T", slow_except([1, 127, 128, 129, 257], 127))
def test_chunked_at_every_length_around_its_tiles(T):
    q, k, v = content(T, heads=2, batch=1)
    weight = random(*q.shape, seed=5)

    @as_users
    def run(q, k, v):
        out, pull = jax.vjp(lambda *qkv: aj.attend(*qkv, mask=CAUSAL, implementation="chunked"), q, k, v)
        return out, pull(jnp.asarray(weight))

    (out, gradients), visible = run(q, k, v), np.tri(T, dtype=bool)
    np.testing.assert_allclose(out, reference(q, k, v, visible), rtol=0, atol=2e-6)
    for found, expected in zip(gradients, reference_gradients(q, k, v, visible, weight), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def reference_gradients(q, k, v, visible, weight) -> tuple[np.ndarray, ...]:
    """Gradients of sum(weight * out) in float64 for heads that share one key head."""
    q, k, v, weight = (np.asarray(x, np.float64) for x in (q, k, v, weight))
    scale = q.shape[-1] ** -0.5
    weights = np.exp(np.where(visible, np.einsum("btnh,bskh->bnts", q, k) * scale, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    dweights = np.einsum("btnh,bskh->bnts", weight, v)
    dscores = scale * weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
    dq = np.einsum("bnts,bskh->btnh", dscores, k)
    dk, dv = (np.einsum("bnts,btnh->bsh", x, y)[:, :, None] for x, y in ((dscores, q), (weights, weight)))
    return dq, dk, dv


@pytest.mark.slow
def test_a_long_sequence_through_a_window():
    T, left = 65_536, 2
    q, k, v = content(T, heads=1, batch=1, head=2)
    window = aj.Mask(causal=True, window=left)
    out = as_users(functools.partial(aj.attend, mask=window, implementation="chunked"))(q, k, v)
    back = np.arange(T)[:, None] - np.arange(left + 1)
    logits = np.einsum("th,tsh->ts", q[0, :, 0].astype(float), k[0, back, 0]) / np.sqrt(2)
    weights = np.exp(np.where(back >= 0, logits, -np.inf))
    expected = np.einsum("ts,tsh->th", weights / weights.sum(-1, keepdims=True), v[0, back, 0])
    np.testing.assert_allclose(out[0, :, 0], expected, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["chunked", None, "dense"])
def test_shapes_whose_entries_int32_cannot_count(implementation):
    # 2 * 16 * 131,072^2 = 2^39 scores.
    T, heads, head = 131_072, 16, 64
    x = jax.ShapeDtypeStruct((2, T, heads, head), jnp.bfloat16)
    loss = lambda q, k, v: aj.attend(
        q, k, v, encoding=aj.compose(aj.RoPE(), aj.ALiBi()), mask=CAUSAL, implementation=implementation
    ).sum()
    gradients = jax.eval_shape(jax.grad(loss, argnums=(0, 1, 2)), x, x, x)
    assert all((g.shape, g.dtype) == (x.shape, x.dtype) for g in gradients)
    assert "TiB" in aj.explain(x, x, x, mask=CAUSAL).reason


@pytest.mark.parametrize(
    ("name", "implementation"),
    slow_except([("cope", "dense"), ("rope", "chunked"), ("alibi", "xla")], ("alibi", "xla")),
)
def test_jit_and_eager_agree(name, implementation):
    encoding = ATTENTION[name]
    params = learned(encoding, SIZES)
    attend = lambda q, k, v: aj.attend(
        q, k, v, encoding=encoding, params=params, mask=CAUSAL, implementation=implementation
    )
    np.testing.assert_allclose(jax.jit(attend)(*content(9)), attend(*content(9)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", slow_except(["rope", "dynamic_ntk", "alibi", "fire"], "rope"))
def test_positions_of_any_type(name):
    encoding, pos = ATTENTION[name], np.arange(40, 49)
    params = learned(encoding, SIZES)
    call = functools.partial(aj.attend, encoding=encoding, params=params, mask=CAUSAL, implementation="dense")
    attend = lambda pos: call(*content(9), q_pos=pos, k_pos=pos)
    dtypes = ("int32", "int8", "uint8", "int16", "uint32", "int64", "float32", "float64")
    first, *others = jax.jit(lambda: [attend(pos.astype(dtype)) for dtype in dtypes], compiler_options=FAST)()
    for out in others:
        np.testing.assert_allclose(out, first, rtol=0, atol=2e-6)
    for dtype in ("float16", "bfloat16"):
        with pytest.raises(ValueError, match=f"16-bit floats collide past 256.*got {dtype}"):
            attend(jnp.asarray(pos, dtype))


def test_float64_stays_float64(x64):
    q, k, v = (x.astype(np.float64) for x in content(33))
    run = jax.jit(
        lambda *qkv: [aj.attend(*qkv, implementation=name) for name in ("dense", "chunked")], compiler_options=FAST
    )
    for out in run(q, k, v):
        assert out.dtype == jnp.float64
        np.testing.assert_allclose(out, reference(q, k, v), rtol=0, atol=1e-14)
    with pytest.raises(NotImplementedError, match="its softmax is float32, the inputs are float64"):
        aj.attend(q, k, v, implementation="xla")
