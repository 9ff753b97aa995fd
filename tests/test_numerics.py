"""Numbers that attention promises as users compile it: no overflow, float32 inside, every length, every type of positions.

Expected values are float64 NumPy formulas or follow by hand.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import OPTIMISED, slow_except

IMPLEMENTATIONS = ("dense", "chunked")
CAUSAL = aj.Mask(causal=True)
as_users = functools.partial(jax.jit, compiler_options=OPTIMISED)


def content(T, dtype="float32", head=8):
    """q, k and v [1, T, 1, head]."""
    random = np.random.default_rng(0)
    return tuple(random.normal(size=(1, T, 1, head)).astype(np.float32).astype(jnp.dtype(dtype)) for _ in range(3))


def reference(q, k, v, scale):
    """softmax(scale q.k) v of one head in float64."""
    q, k, v = (np.asarray(x, np.float64)[0, :, 0] for x in (q, k, v))
    logits = scale * q @ k.T
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v)[None, :, None]


@pytest.mark.parametrize("implementation", slow_except(IMPLEMENTATIONS, "dense"))
@pytest.mark.parametrize(
    ("head", "size"), slow_except([(64, 95.0), (64, 4000.0), (256, 250.0), (256, 60_000.0)], (256, 60_000.0))
)
def test_float16_scores_past_its_largest_number(head, size, implementation):
    """Two keys tie at a score of size^2 sqrt(head), 72,000 and more; the others lie far below."""
    q, k = (np.full((1, n, 1, head), size, np.float16) for n in (3, 5))
    k[:, 1::2] *= np.float16(0.5)
    k[:, 4] *= np.float16(-1)
    v = content(5, "float16", head)[2]
    out = as_users(functools.partial(aj.attend, implementation=implementation))(q, k, v)
    assert out.dtype == jnp.float16
    expected = np.broadcast_to((v[:, :1].astype(float) + v[:, 2:3]) / 2, out.shape)
    np.testing.assert_allclose(np.asarray(out, float), expected, rtol=2**-11, atol=1e-7)


HUGE = list(itertools.product([1e4, 8192.0, 2.0**100], IMPLEMENTATIONS))


@pytest.mark.parametrize(("size", "implementation"), slow_except(HUGE, (2.0**100, "dense"), (1e4, "chunked")))
def test_softmax_of_huge_scores(size, implementation):
    """Scores size, size - 1 (where float32 has room for it) and -size."""
    lower = size - 1 if size < 2**24 else size / 2
    q = np.full((1, 1, 1, 2), 1, np.float32)
    k = np.array([[size, 0], [lower, 0], [-size, 0]], np.float32)[None, :, None]
    v = np.array([[1, 0], [0, 1], [1, 1]], np.float32)[None, :, None]

    def attend(q):
        out = aj.attend(q, k, v, scale=1.0, implementation=implementation)[0, 0, 0]
        return out.sum(), out

    slope, out = as_users(jax.grad(attend, has_aux=True))(q)
    other = np.exp(-1) if size < 2**24 else 0.0
    np.testing.assert_allclose(out, [1 / (1 + other), other / (1 + other)], rtol=0, atol=1e-6)
    assert np.isfinite(slope).all()


SHORT = list(itertools.product(["bfloat16", "float16"], IMPLEMENTATIONS))


@pytest.mark.parametrize(("dtype", "implementation"), slow_except(SHORT, ("float16", "dense"), ("bfloat16", "chunked")))
def test_sums_are_float32(dtype, implementation):
    """Of 2,048 values near 1: a running sum in 16 bits would stop growing at a fraction of it, and the mean would be far off.

    What may be off is half a unit in the last place of each weight, and of the result.
    """
    q, k, v = content(2048, dtype)
    v = (1 + 0.25 * v.astype(np.float32)).astype(v.dtype)
    out = as_users(functools.partial(aj.attend, scale=0.02, implementation=implementation))(q, k, v)
    half, largest = float(jnp.finfo(dtype).eps) / 2, np.abs(v.astype(float)).max()
    expected = reference(q, k, v, scale=0.02)
    np.testing.assert_allclose(np.asarray(out, float), expected, rtol=1.001 * half, atol=half * largest + 2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["chunked", None, "dense"])
def test_shapes_whose_entries_int32_cannot_count(implementation):
    """2 * 16 * 131,072^2 = 2^39 scores."""
    x = jax.ShapeDtypeStruct((2, 131_072, 16, 64), jnp.bfloat16)
    options = {"encoding": aj.compose(aj.RoPE(), aj.ALiBi()), "mask": CAUSAL, "implementation": implementation}
    gradients = jax.eval_shape(jax.grad(lambda *x: aj.attend(*x, **options).sum(), argnums=(0, 1, 2)), x, x, x)
    assert all((g.shape, g.dtype) == (x.shape, x.dtype) for g in gradients)
    assert "TiB" in aj.explain(x, x, x, mask=CAUSAL).reason


def test_positions_of_any_type():
    pos, x = np.arange(40, 49), content(9)
    attend = lambda pos: aj.attend(*x, encoding=aj.RoPE(), q_pos=pos, k_pos=pos, mask=CAUSAL, implementation="dense")
    dtypes = ("int32", "int8", "uint32", "int64", "float32", "float64")
    first, *others = jax.jit(lambda: [attend(pos.astype(dtype)) for dtype in dtypes])()
    for out in others:
        np.testing.assert_allclose(out, first, rtol=0, atol=2e-6)
