"""Encodings and attention against arrays made by other libraries; golden/README.md says what each array is.

Most comparisons run in float64, where only the last digits of two programs may differ. Rotations also run in float32, whose
angles are computed in another way.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.golden_arrays import constants, load

pytestmark = pytest.mark.slow


@pytest.fixture(params=["float32", "float64"])
def precision(request):
    """The type to compute in."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def check(actual, expected, what=""):
    """Compares with the float64 reference, relative to its largest entry where that exceeds 1."""
    assert actual.dtype == jnp.result_type(float), what
    tolerance = 1e-5 if actual.dtype == np.float32 else 1e-12
    atol = tolerance * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=atol, err_msg=what)


# Absolute encodings and additive biases ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["concatenated", "interleaved"])
def test_sinusoidal_tables(order, precision):
    expected = load("sinusoidal")[order]
    zeros = jnp.zeros((1, *expected.shape), precision)
    check(aj.embed(aj.Sinusoidal(order=order), None, zeros, np.arange(40))[0], expected)


def bias(encoding, params, heads, q_pos, k_pos):
    """[N, T, S] of an additive encoding: `bias` on all pairs of positions."""
    p = jax.tree.map(jnp.asarray, aj.resolve(encoding, params, aj.Sizes(8 * heads, heads, heads, 8)))
    n = jnp.asarray(np.subtract.outer(q_pos, k_pos), float)
    return jax.vmap(lambda p: encoding.bias(p, n))(p)


@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (16, 64), (32, 200)])
def test_t5_buckets_of_hugging_face(kind, buckets, max_distance):
    golden = load("t5_buckets")
    encoding = aj.T5Bias(buckets, max_distance, bidirectional=kind == "bidirectional")
    numbered = {"table": np.arange(buckets, dtype=np.float32)[None]}
    found = bias(encoding, numbered, 1, golden["distance"].astype(np.int32), np.zeros(1, np.int32))[0, :, 0]
    np.testing.assert_array_equal(found, golden[f"{kind}_{buckets}_{max_distance}"])


def test_t5_bias_of_x_transformers(x64):
    """x-transformers multiplies what it looks up by `scale`, here sqrt(8)."""
    golden, encoding = load("t5_x_transformers"), aj.T5Bias(16, 64, bidirectional=True)
    check(bias(encoding, {"table": golden["table"] * 8**0.5}, 4, np.arange(35, 40), np.arange(40)), golden["bias"])


@pytest.mark.parametrize("heads", [1, 6, 8, 12])
def test_alibi_of_bloom_and_x_transformers(heads):
    """BLOOM adds m * j, which differs from -m * (i - j) by a constant per row."""
    golden = load("alibi")
    causal = bias(aj.ALiBi(), {}, heads, np.arange(20), np.arange(20))
    expected = np.broadcast_to(golden[f"bloom_{heads}"][:, None], causal.shape)
    check(causal - causal[:, :, :1], expected - expected[:, :, :1])
    symmetric = bias(aj.ALiBi(symmetric=True), {}, heads, np.arange(5, 11), np.arange(11))
    check(symmetric, golden[f"symmetric_{heads}"])


# Rotary encodings ----------------------------------------------------------------------------------------------------

LONG = aj.LongRoPE([1 + 0.05 * i for i in range(8)], [1.0 + 0.75 * i**1.5 for i in range(8)], 4096, factor=32.0)
FREQUENCIES = {  # name: (encoding, head dimension, rotary width, length)
    "default": (aj.RoPE(), 16, 16, None),
    "linear": (aj.RoPE(scaling=aj.PositionInterpolation(4.0)), 16, 16, None),
    "ntk": (aj.RoPE(scaling=aj.NTKAware(8.0)), 16, 16, None),
    "dynamic_1024": (aj.RoPE(scaling=aj.DynamicNTK(2.0, 2048)), 64, 64, 1024),
    "dynamic_2048": (aj.RoPE(scaling=aj.DynamicNTK(2.0, 2048)), 64, 64, 2048),
    "dynamic_2049": (aj.RoPE(scaling=aj.DynamicNTK(2.0, 2048)), 64, 64, 2049),
    "dynamic_10000": (aj.RoPE(scaling=aj.DynamicNTK(2.0, 2048)), 64, 64, 10_000),
    "dynamic_half": (aj.RoPE(fraction=0.5, scaling=aj.DynamicNTK(4.0, 2048)), 64, 32, 5000),
    "yarn": (aj.RoPE(scaling=aj.YaRN(16.0, 4096)), 128, 128, None),
    "yarn_clamped": (aj.RoPE(scaling=aj.YaRN(4.0, 64)), 16, 16, None),
    "yarn_degenerate": (aj.RoPE(scaling=aj.YaRN(4.0, 4)), 8, 8, None),
    "yarn_betas": (aj.RoPE(theta=500_000.0, scaling=aj.YaRN(2.5, 2048, 16.0, 2.0, 1.3)), 64, 64, None),
    "yarn_half": (aj.RoPE(fraction=0.5, scaling=aj.YaRN(8.0, 1024)), 64, 32, None),
    "llama3": (aj.RoPE(theta=500_000.0, scaling=aj.Llama3(8.0, 8192)), 128, 128, None),
    "llama3_2": (aj.RoPE(theta=500_000.0, scaling=aj.Llama3(32.0, 4096, 1.5, 3.0)), 64, 64, None),
    "longrope_short": (aj.RoPE(scaling=LONG), 16, 16, 4096),
    "longrope_long": (aj.RoPE(scaling=LONG), 16, 16, 4097),
    "proportional": (aj.RoPE(keep=0.75), 16, 16, None),
    "proportional_odd": (aj.RoPE(keep=0.3), 16, 16, None),
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_rope_frequencies_and_attention_factors(name, precision):
    """Read from a query and a key whose pairs are all (1, 0), turned at position 1."""
    (encoding, head, width, length), golden = FREQUENCIES[name], load("rope_frequencies")
    x = jnp.asarray(np.arange(head) < width // 2, precision)[None]
    p, one = constants(encoding, head, length), np.ones(1, np.int32)
    expected, factor = golden[f"{name}_inv_freq"], golden.get(f"{name}_attention_factor", 1.0)
    # An angle of float32 comes from a 32-bit fraction of a turn, 1.5e-9 radians.
    rtol, atol = (2e-6, 3e-9) if precision == "float32" else (1e-12, 1e-15)
    for turned in (encoding.map_q(p, x, one), encoding.map_k(p, x, one)):
        cos, sin = np.split(np.asarray(turned)[0, :width], 2)
        np.testing.assert_allclose(np.arctan2(sin, cos), expected, rtol=rtol, atol=atol)
        np.testing.assert_allclose(np.hypot(cos, sin), np.full(expected.shape, factor), rtol=rtol)


ROTATIONS = {
    "llama_default": aj.RoPE(),
    "llama_yarn_clamped": aj.RoPE(scaling=aj.YaRN(4.0, 64)),
    "gptj": aj.RoPE(layout="interleaved"),
    "neox": aj.RoPE(fraction=0.25),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotated_queries_and_keys(name, precision):
    golden, encoding = load("rope_rotations"), ROTATIONS[name]
    p = constants(encoding, 16)

    def of_all(hook, x):
        heads = jax.vmap(functools.partial(hook, p), in_axes=(1, None), out_axes=1)
        return jax.vmap(heads)(x, jnp.asarray(golden["positions"], jnp.int32))

    q, k = (jnp.asarray(golden[name], precision) for name in "qk")
    turned = jax.jit(lambda q, k: (of_all(encoding.map_q, q), of_all(encoding.map_k, k)))(q, k)
    check(turned[0], golden[f"{name}_q"])
    check(turned[1], golden[f"{name}_k"])


def test_xpos_scores(precision):
    golden, encoding, pos = load("xpos"), aj.XPos(layout="interleaved"), np.arange(24, dtype=np.int32)

    @jax.jit
    @jax.vmap
    def scores(q, k):
        p = constants(encoding, q.shape[1])
        return encoding.map_q(p, q, pos) @ encoding.map_k(p, k, pos).T

    check(scores(*(jnp.asarray(golden[name], precision) for name in "qk")), golden["scores"])


# Attention: outputs and gradients ------------------------------------------------------------------------------------

TILES = aj.Tiling(4, 3)
"""Smaller than these short sequences, so that joining tiles is compared as well."""


def check_attention(inputs, expected, params, expected_params, **options):
    """`attend` and its gradients with respect to q, k, v and every learned parameter, for the loss sum(out * w)."""
    *qkv, w = inputs

    def loss(q, k, v, params):
        out = aj.attend(q, k, v, params=params, **options)
        return jnp.vdot(out, w), out

    (_, out), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(*qkv, params)
    check(out, expected[0], "out")
    for name, grad, reference in zip("qkv", grads[:3], expected[1:], strict=True):
        check(grad, reference, f"gradient of {name}")
    jax.tree.map(check, grads[3], expected_params)


@dataclasses.dataclass(frozen=True)
class Case:
    """An encoding, the file and prefix of its arrays, names of arrays of its parameters, the scale and the first query."""

    file: str
    encoding: aj.PositionEncoding
    prefix: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    causal: bool = False
    scale: float | None = None
    first: int = 0


CASES = {
    "t5_causal": Case("t5_attention", aj.T5Bias(), "causal_", (("table", "table"),), causal=True, scale=1.0),
    "t5_both": Case("t5_attention", aj.T5Bias(bidirectional=True), "bidirectional_", (("table", "table"),), scale=1.0),
    "transformer_xl": Case(
        "transformer_xl", aj.TransformerXL(), parameters=(("u", "u"), ("v", "v_bias"), ("w_r", "w_r")), first=4
    ),
    "cope": Case("cope", aj.CoPE(max_position=5), parameters=(("table", "table"),), causal=True),
    "pope": Case("pope", aj.PoPE(), parameters=(("delta", "delta"),), causal=True),
}


@pytest.mark.parametrize(
    ("name", "way"), [case for case in itertools.product(CASES, ("dense", TILES)) if case != ("cope", TILES)], ids=str
)
def test_encodings(name, way, x64):
    case, golden = CASES[name], load(CASES[name].file)
    index = np.arange(golden["q"].shape[1])
    check_attention(
        [golden[array] for array in "qkvw"],
        [golden[case.prefix + array] for array in ("out", "grad_q", "grad_k", "grad_v")],
        {name: golden[array] for name, array in case.parameters},
        {name: golden[f"{case.prefix}grad_{array}"] for name, array in case.parameters},
        encoding=case.encoding,
        mask=aj.Mask(causal=case.causal, q_index=index),
        scale=case.scale,
        q_pos=index + case.first,
        implementation=way,
    )


SEGMENTS = np.array([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 2, 2, 2]])
MASKS = {  # name: (mask, key heads, queries, keys)
    "full": (aj.Mask(), 4, 9, 9),
    "causal": (aj.Mask(causal=True), 4, 9, 9),
    "window": (aj.Mask(window=(3, 1)), 4, 9, 9),
    "causal_window": (aj.Mask(causal=True, window=2), 4, 9, 9),
    "segments": (aj.Mask(q_segments=SEGMENTS, k_segments=SEGMENTS), 4, 9, 9),
    "causal_segments": (aj.Mask(causal=True, q_segments=SEGMENTS, k_segments=SEGMENTS), 4, 9, 9),
    "left_padding": (aj.Mask(causal=True, k_valid=np.arange(9)[None, :] >= np.array([[3], [0]])), 4, 9, 9),
    "gqa": (aj.Mask(causal=True), 2, 9, 9),
    "mqa": (aj.Mask(causal=True, window=2), 1, 9, 9),
    "cross": (aj.Mask(), 4, 5, 9),
    "cross_causal": (aj.Mask(causal=True), 4, 9, 7),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("way", ["dense", TILES], ids=str)
def test_torch_attention(name, way):
    golden, (mask, heads, T, S) = load("sdpa"), MASKS[name]
    inputs = [golden["q"][:, :T], golden[f"k{heads}"][:, :S], golden[f"v{heads}"][:, :S], golden["w"][:, :T]]
    expected = [golden[f"{name}_{array}"] for array in ("out", "grad_q", "grad_k", "grad_v")]
    with jax.enable_x64(True):
        inputs = [jnp.asarray(x, "float64") for x in inputs]
        check_attention(inputs, expected, {}, {}, mask=mask, implementation=way)
