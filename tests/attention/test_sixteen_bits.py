"""16-bit inputs: products of 16-bit operands with float32 sums, and errors as large as the roundings that happen, no larger.

With u half a unit in the last place of 1 (2^-8 in bfloat16, 2^-11 in float16), rounded are

    mapped queries and keys     scores move by at most d_ij = scale * (2u + u^2) * sum_c |q_ic k_jc|
    weights                     by at most u of themselves
    the output                  by at most u of itself

so that the output moves by at most sum_j w_ij |v_j| (e^(d_ij + max_j d_ij) - 1 + u) + u |out_i|. Queries and keys that no map
has touched are exact.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import Mask, Tiling, Trait
from attnjax.attention.inputs import from_caller, prepare
from tests.attention.matrix import (
    ENCODINGS,
    EVERY_DAY,
    PER_HEAD,
    TILE,
    allowed_by,
    as_precise,
    cases_of,
    draw,
    programs_of,
)
from tests.cases import FAST
from tests.oracle import oracle

U = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
BY_DAY = EVERY_DAY | {"rope-dynamic", "xpos", "pope", "transformer_xl", "sandwich", "stick", "ssmax", "axial"}


def case(name):
    """One mask with padding, and positions out of order of the index."""
    return next(data for at, data in cases_of(name, "gqa") if at == ("causal", "left padding", "random"))


def bound(name, arrays, params, scale, data, allowed, dtype) -> np.ndarray:
    """[B,T,N,H], how far the output may be from that of exact arithmetic, save the rounding of the output itself."""
    q, k, v = (x.astype(jnp.float32) for x in arrays)
    encoding, u = ENCODINGS[name], U[dtype]
    options = {"encoding": encoding, "params": params, "q_pos": data[0], "k_pos": data[1], "scale": scale}
    causal = Mask(causal=True, k_valid=data[-1])
    weights = attnjax.attention_weights(q, k, mask=causal, **options)
    inputs = prepare(q, from_caller(q, k, v, data[1]), encoding, params, data[0], causal, scale, None, None)
    size = jnp.einsum("bkgth,bksh->bkgts", jnp.abs(inputs.queries.q), jnp.abs(inputs.keys.k)).reshape(weights.shape)
    mapped = bool(encoding.traits & Trait.MAPS)
    moved = jnp.where(allowed[:, None], scale * (2 * u + u**2) * mapped * size, 0)
    factor = jnp.expm1(moved + moved.max(-1, keepdims=True)) + u
    values = jnp.repeat(jnp.abs(v), weights.shape[1] // v.shape[2], axis=2)
    # Weights of float16 below its normal numbers lose up to half of its smallest one.
    lost = 2.0**-25 * v.shape[1] * jnp.abs(v).max() if dtype == "float16" else 0.0
    return np.asarray(jnp.einsum("bnts,bsnh->btnh", weights * factor, values)) + lost


def ways():
    """bfloat16 for all, and float16 where a map, a bias, a score, a carry or other weights might lose more."""
    float16 = {"nope", "rope-dynamic", "t5", "fire", "sandwich", "cope", "stick"}
    for name in ENCODINGS:
        for dtype in ("bfloat16", "float16"):
            by_day = name in (BY_DAY if dtype == "bfloat16" else float16)
            yield pytest.param(name, dtype, marks=() if by_day else pytest.mark.slow)


@pytest.mark.quick("rope-bfloat16", "cope-float16")
@pytest.mark.parametrize(("name", "dtype"), [*ways()])
def test_errors_are_those_of_the_roundings(name, dtype):
    """Against the oracle in float64 on the same 16-bit numbers, in all implementations."""
    q, k, v, params, scale = draw(ENCODINGS[name], "gqa")
    q, k, v = (jnp.asarray(x, dtype) for x in (q, k, v))
    data = case(name)
    allowed = allowed_by(*data[2:])
    with jax.enable_x64(True):
        arguments = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), "float64"), (params, q, k, v, scale))
        pos, rows = as_precise(data[:2], "float64"), PER_HEAD.get(name, False)
        true = lambda *args: oracle(ENCODINGS[name], *args[:4], *pos, allowed, args[4], data[-1], per_head=rows)
        expected = np.asarray(jax.jit(true, compiler_options=FAST)(*arguments))
    mask = Mask(causal=True, k_valid=data[-1])
    options = {"encoding": ENCODINGS[name], "params": params, "scale": scale, "mask": mask}
    names = {key[0] for key in programs_of(name, "float64", "float32")}

    @functools.partial(jax.jit, compiler_options=FAST)
    def run(q, k, v, q_pos, k_pos):
        each = [TILE if way == "chunked" else way for way in names]
        return [attnjax.attend(q, k, v, q_pos=q_pos, k_pos=k_pos, implementation=way, **options) for way in each]

    unit, largest = U[dtype], np.abs(np.asarray(v, np.float64)).max()
    limit = bound(name, (q, k, v), params, scale, data, allowed, dtype) + 1.01 * unit * np.abs(expected) + 2e-5
    # The bound says something: it is a few units of the largest value.
    assert limit.max() <= 40 * unit * largest
    for out in run(q, k, v, *data[:2]):
        assert out.dtype == dtype
        assert np.all(np.abs(np.asarray(out, np.float64) - expected) <= limit)


def errors(dtype, T=256):
    """Norms of the errors of the output and of the gradients of q, k, v: of dense, of tiles, and of the kernel of `jax.nn`."""
    random = np.random.default_rng(0)
    q, k, v, weight = (jnp.asarray(random.normal(size=(2, T, heads, 32)), dtype) for heads in (4, 2, 2, 4))

    def outcome(attend, arrays):
        def loss(q, k, v):
            out = attend(q, k, v).astype(jnp.promote_types(arrays[0].dtype, jnp.float32))
            return (out * weight.astype(out.dtype)).sum(), out

        gradients, out = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)
        return [np.asarray(x, np.float64) for x in (out, *gradients)]

    ours = lambda way: lambda *arrays: attnjax.attend(*arrays, mask=Mask(causal=True), implementation=way)
    theirs = lambda *arrays: jax.nn.dot_product_attention(*arrays, is_causal=True, implementation="xla")
    with jax.numpy_dtype_promotion("standard"):
        with jax.enable_x64(True):
            exact = outcome(ours("dense"), [jnp.asarray(np.asarray(x, np.float64)) for x in (q, k, v)])
        found = {way: outcome(ours(way), (q, k, v)) for way in ("dense", Tiling(64, 64))}
        found["jax.nn"] = outcome(theirs, (q, k, v))
    return {
        way: [np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(each, exact)] for way, each in found.items()
    }


def test_errors_are_as_large_as_those_of_the_kernel_of_jax():
    """It rounds what we round: weights, the output, and in gradients the same factors."""
    of = errors("bfloat16")
    for name in ("dense", Tiling(64, 64)):
        for array, ours, theirs in zip(("out", "q", "k", "v"), of[name], of["jax.nn"], strict=True):
            assert U["bfloat16"] / 8 < theirs < 4 * U["bfloat16"], array
            assert theirs / 2 < ours < 2 * theirs, (
                f"{name}: {array} is off by {ours:.2g}, that of jax.nn by {theirs:.2g}"
            )
