"""16-bit inputs: products of 16-bit operands with float32 sums, and errors as large as the roundings that happen, no larger.

Programs are read as JAX traced them, so that no compiler may hide a widened operand, and none is needed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import Mask, PaTH, Sizes, Tiling, attend, context_positions
from tests.attention import matrix
from tests.attention.matrix import ENCODINGS, B, H, N, learned
from tests.cases import slow_except
from tests.widened import products, widened_products

U = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half a unit in the last place of 1."""
OF_FLOAT32 = {"transformer_xl": 3, "cope": 2, "path": 9}
"""Scores that multiply queries or keys: a `Tile` has them in float32, as the logits that they add to."""
TRACED = ENCODINGS | {"path": PaTH(rank=3)}


TILES, WHOLE = Tiling(8, 8), ("cope", "stick", "dape", "path")
TILED = ("nope", "rope", "xpos", "alibi", "t5", "kerple", "fire", "transformer_xl", "sandwich", "pope", "ssmax")
TILED += ("fox", "repo", "llama4_temperature", "selective_rope")
PRODUCTS = [*((name, "dense") for name in WHOLE + TILED), *((name, TILES) for name in TILED)]


@pytest.mark.parametrize(
    ("name", "way"), slow_except(PRODUCTS, ("rope", "dense"), ("cope", "dense"), ("t5", TILES), ("fox", TILES))
)
def test_products_stay_in_sixteen_bits(name, way):
    """In the gradient of attention by all that is learned, and of positions from content, no operand is widened to float32."""
    encoding, sizes, T = TRACED[name], Sizes(N * H, N, 2, H), 16
    params = learned(encoding, sizes, np.random.default_rng(0))
    shape = lambda *shape: jax.ShapeDtypeStruct((B, T, *shape), jnp.bfloat16)

    def loss(params, x, q, k, v):
        pos = context_positions(encoding, params, x, np.arange(T), sizes) if encoding.has("context") else np.arange(T)
        options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "mask": Mask(causal=True)}
        return attend(q, k, v, implementation=way, **options).astype(jnp.float32).sum()

    traced = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1, 2, 3, 4)))
    jaxpr = traced(params, shape(N * H), shape(N, H), shape(2, H), shape(2, H))
    assert len(widened_products(jaxpr)) <= OF_FLOAT32.get(name, 0)
    # Scores and weighted values, twice over in the gradient but for the output, and both factors of each.
    assert products(jaxpr)["bfloat16", "bfloat16"] >= 6


ROUNDED = ("nope", "rope", "pope", "t5", "fire", "sandwich", "fox", "cope", "stick", "ssmax")
BY_DAY = ("rope", "bfloat16"), ("t5", "float16"), ("cope", "bfloat16")


@pytest.mark.parametrize(("name", "dtype"), slow_except([(name, dtype) for name in ROUNDED for dtype in U], *BY_DAY))
def test_results_are_near_those_of_float32(name, dtype):
    """Against the oracle in float64 on the same 16-bit numbers: the rounding of mapped queries and keys, of weights and of the
    output, each by u at most, and the first two averaged over the keys."""
    q, k, v, params, scale = matrix.draw(ENCODINGS[name], "gqa")
    q, k, v = (np.asarray(jnp.asarray(x, dtype), np.float32) for x in (q, k, v))
    data = next(data for case, data in matrix.cases_of(name, "gqa") if case == ("causal", "left padding", "random"))
    true = lambda *given: matrix.truth(name)(*given[:-1], *given[-1])
    expected = matrix.outcome(true, (q, k, v, params, scale), (*data[:2], matrix.allowed_by(*data[2:])), "float64")
    mask = Mask(causal=True, k_valid=data[-1], q_index=np.arange(q.shape[1]))
    ways = ("dense",) if name in ("cope", "stick") else ("dense", Tiling(5, 7))

    def run(q, k, v, params):
        options = {"encoding": ENCODINGS[name], "params": params, "scale": scale, "mask": mask}
        return [attend(q, k, v, q_pos=data[0], k_pos=data[1], implementation=way, **options) for way in ways]

    arrays = (jnp.asarray(x, dtype) for x in (q, k, v))
    largest = np.abs(v).max()
    for out in jax.jit(run)(*arrays, params):
        assert out.dtype == dtype
        errors = np.abs(np.asarray(out, np.float64) - expected)
        assert errors.max() <= 8 * U[dtype] * largest
        assert np.sqrt((errors**2).mean()) <= U[dtype] * largest


def test_gradients_are_as_near_as_those_of_the_kernel_of_jax():
    """It rounds what we round: weights, the output, and in gradients the same factors."""
    random, T = np.random.default_rng(0), 64
    q, k, v, weight = (jnp.asarray(random.normal(size=(2, T, heads, 32)), "bfloat16") for heads in (4, 2, 2, 4))

    def outcome(attend, dtype):
        def loss(q, k, v):
            out = attend(q, k, v).astype(jnp.promote_types(dtype, jnp.float32))
            return (out * weight.astype(out.dtype)).sum(), out

        run = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
        gradients, out = run(*(x.astype(dtype) for x in (q, k, v)))
        return [np.asarray(x, np.float64) for x in (out, *gradients)]

    ours = lambda way: lambda *arrays: attend(*arrays, mask=Mask(causal=True), implementation=way)
    theirs = lambda *arrays: jax.nn.dot_product_attention(*arrays, is_causal=True, implementation="xla")
    with jax.numpy_dtype_promotion("standard"):
        exact = outcome(ours("dense"), "float32")
        found = [outcome(run, "bfloat16") for run in (ours("dense"), ours(Tiling(32, 32)), theirs)]
    norms = [[np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(each, exact, strict=True)] for each in found]
    for of_dense, of_tiles, of_jax in zip(*norms, strict=True):
        assert U["bfloat16"] / 8 < of_jax < 4 * U["bfloat16"]
        assert of_jax / 2 < of_dense < 2 * of_jax
        assert of_jax / 2 < of_tiles < 2 * of_jax
