"""Encodings and attention against arrays made by other libraries; golden/README.md says what each array is.

Comparisons run in float64, where only the last digits of two float64 programs may differ, and most in float32 as well.
"""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.attention import dispatch
from attnjax.attention.chunked import chunked
from attnjax.attention.tiling import Tiling

pytestmark = pytest.mark.once
GOLDEN = Path(__file__).parent / "golden"


@functools.cache
def load(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


@dataclasses.dataclass(frozen=True)
class Precision:
    """A type to compute in, and how far a result may be from the float64 reference, relative to the largest entry."""

    dtype: str
    tolerance: float

    def array(self, x: np.ndarray) -> jax.Array:
        return jnp.asarray(x, self.dtype)

    def check(self, actual: jax.Array, expected: np.ndarray, what: str = "") -> None:
        assert actual.dtype == self.dtype, what
        atol = self.tolerance * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(actual, expected, rtol=self.tolerance, atol=atol, err_msg=what)


SINGLE, DOUBLE = Precision("float32", 1e-5), Precision("float64", 1e-12)


@pytest.fixture(params=["float32", "float64"])
def precision(request: pytest.FixtureRequest) -> Iterator[Precision]:
    """float32, then float64 with JAX's x64 mode on; a test may also ask for one of them by indirect parametrisation."""
    precision = {"float32": SINGLE, "float64": DOUBLE}[request.param]
    with jax.enable_x64(precision is DOUBLE):
        yield precision


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles smaller than these short sequences, so that joining tiles is compared as well."""
    monkeypatch.setitem(dispatch.WITH_LSE, "chunked", functools.partial(chunked, tiling=Tiling(4, 3)))


# Rotary encodings ----------------------------------------------------------------------------------------------------


def turned(encoding: aj.RoPE, head: int, width: int, length, precision: Precision) -> tuple[jax.Array, jax.Array]:
    """A query and a key whose pairs are all (1, 0), at position 1: (cos, sin) of every frequency, times the factor."""
    x = precision.array(np.arange(head) < width // 2)[None]
    shared, one = encoding.bind(aj.EncodingParams(), 1, length).shared, np.ones(1, np.int32)
    return encoding.map_q((), shared, x, one)[0, :width], encoding.map_k(shared, x, one)[0, :width]


def check_frequencies(vectors: tuple[jax.Array, jax.Array], name: str, precision: Precision) -> None:
    golden = load("rope_frequencies")
    expected, factor = golden[f"{name}_inv_freq"], golden.get(f"{name}_attention_factor", 1.0)
    # An angle of float32 comes from a 32-bit fraction of a turn, 1.5e-9 radians.
    rtol, atol = (2e-6, 3e-9) if precision is SINGLE else (1e-12, 1e-15)
    for vector in vectors:
        cos, sin = np.split(np.asarray(vector), 2)
        np.testing.assert_allclose(np.arctan2(sin, cos), expected, rtol=rtol, atol=atol)
        np.testing.assert_allclose(np.hypot(cos, sin), np.full(expected.shape, factor), rtol=rtol)


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
def test_rope_frequencies_and_attention_factors(name: str, precision: Precision):
    check_frequencies(turned(*FREQUENCIES[name], precision), name, precision)


@pytest.mark.parametrize("name", [name for name in FREQUENCIES if name.startswith(("dynamic", "longrope"))])
def test_rope_frequencies_of_a_traced_length(name: str):
    *sizes, length = FREQUENCIES[name]
    check_frequencies(jax.jit(lambda length: turned(*sizes, length, SINGLE))(jnp.int32(length)), name, SINGLE)


ROTATIONS = {
    "llama_default": aj.RoPE(),
    "llama_yarn_clamped": aj.RoPE(scaling=aj.YaRN(4.0, 64)),
    "gptj": aj.RoPE(layout="interleaved"),
    "neox": aj.RoPE(fraction=0.25),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotated_queries_and_keys(name: str, precision: Precision):
    golden, encoding = load("rope_rotations"), ROTATIONS[name]
    pos = jnp.asarray(golden["positions"], jnp.int32)
    q, k = precision.array(golden["q"]), precision.array(golden["k"])
    over_heads = functools.partial(jax.vmap, in_axes=(1, None), out_axes=1)
    turn_q = jax.vmap(over_heads(lambda q, pos: encoding.map_q((), (), q, pos)))
    turn_k = jax.vmap(over_heads(lambda k, pos: encoding.map_k((), k, pos)))
    turned_q, turned_k = jax.jit(lambda q, k, pos: (turn_q(q, pos), turn_k(k, pos)))(q, k, pos)
    precision.check(turned_q, golden[f"{name}_q"])
    precision.check(turned_k, golden[f"{name}_k"])


def test_layouts_are_not_interchangeable():
    golden = load("rope_rotations")
    pos = jnp.asarray(golden["positions"][0], jnp.int32)
    turned = aj.RoPE(layout="half").map_q((), (), SINGLE.array(golden["q"][0, :, 0]), pos)
    assert np.abs(turned - golden["gptj_q"][0, :, 0]).max() > 0.1


def test_xpos_scores(precision: Precision):
    golden, encoding = load("xpos"), aj.XPos(layout="interleaved")
    pos = np.arange(24, dtype=np.int32)

    @jax.jit
    @jax.vmap
    def scores(q, k):
        return encoding.map_q((), (), q, pos) @ encoding.map_k((), k, pos).T

    precision.check(scores(precision.array(golden["q"]), precision.array(golden["k"])), golden["scores"])


# Absolute encodings and additive biases ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["concatenated", "interleaved"])
def test_sinusoidal_tables(order: str, precision: Precision):
    expected = load("sinusoidal")[order]
    table = aj.Sinusoidal(order=order).embed((), precision.array(np.zeros_like(expected)), np.arange(40))
    precision.check(table, expected)


def bias(encoding: aj.PositionEncoding, params: aj.EncodingParams, heads: int, q_pos, k_pos) -> jax.Array:
    """[N, T, S] of an additive encoding: `bias` on all pairs of positions."""
    bound = encoding.bind(params, heads)
    n = jnp.asarray(np.subtract.outer(q_pos, k_pos), jnp.int32)
    return jax.vmap(lambda head: encoding.bias(head, bound.shared, n))(jax.tree.map(jnp.asarray, bound.head))


@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (16, 64), (32, 200)])
def test_t5_buckets_of_hugging_face(kind: str, buckets: int, max_distance: int):
    golden = load("t5_buckets")
    encoding = aj.T5Bias(buckets, max_distance, bidirectional=kind == "bidirectional")
    numbered = aj.EncodingParams(head={"table": jnp.arange(buckets, dtype=jnp.float32)[None]})
    found = bias(encoding, numbered, 1, golden["distance"].astype(np.int32), np.zeros(1, np.int32))[0, :, 0]
    np.testing.assert_array_equal(found, golden[f"{kind}_{buckets}_{max_distance}"])


def test_t5_bias_of_x_transformers(precision: Precision):
    golden = load("t5_x_transformers")
    # x-transformers multiplies what it looks up by `scale`, here sqrt(8).
    params = aj.EncodingParams(head={"table": precision.array(golden["table"] * 8**0.5)})
    encoding = aj.T5Bias(16, 64, bidirectional=True)
    precision.check(bias(encoding, params, 4, np.arange(35, 40), np.arange(40)), golden["bias"])


@pytest.mark.parametrize("heads", [1, 6, 8, 12])
def test_alibi_of_bloom_and_x_transformers(heads: int):
    golden = load("alibi")
    causal = bias(aj.ALiBi(), aj.EncodingParams(), heads, np.arange(20), np.arange(20))
    # BLOOM adds m * j, which differs from -m * (i - j) by a constant per row.
    expected = np.broadcast_to(golden[f"bloom_{heads}"][:, None], causal.shape)
    SINGLE.check(causal - causal[:, :, :1], expected - expected[:, :, :1])
    symmetric = bias(aj.ALiBi(symmetric=True), aj.EncodingParams(), heads, np.arange(5, 11), np.arange(11))
    SINGLE.check(symmetric, golden[f"symmetric_{heads}"])


@pytest.mark.parametrize("heads", [1, 6, 8, 12])
def test_alibi_weights_of_bloom(heads: int):
    logits = np.where(np.tri(20, dtype=bool), load("alibi")[f"bloom_{heads}"][:, None], -np.inf)
    expected = np.exp(logits - logits.max(-1, keepdims=True))
    zeros = jnp.zeros((1, 20, heads, 2))
    weights = jax.jit(lambda q: aj.attention_weights(q, q, encoding=aj.ALiBi(), mask=aj.Mask(causal=True)))
    SINGLE.check(weights(zeros)[0], expected / expected.sum(-1, keepdims=True))


# Scores that see queries and keys ------------------------------------------------------------------------------------


def scores(encoding: aj.PositionEncoding, params: aj.EncodingParams, q, k, q_pos, k_pos, visible) -> jax.Array:
    """[B, N, T, S] from the hooks of one head: mapped queries and keys, 1/sqrt(H), then `score`."""
    scale = jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    params = encoding.bind(params, q.shape[2])

    def one(head, q, k):
        q, k = encoding.map_q(head, params.shared, q, q_pos), encoding.map_k(params.shared, k, k_pos)
        tile = aj.Tile(scale * q @ k.T, q, k, jnp.asarray(q_pos), jnp.asarray(k_pos), visible, scale)
        found = encoding.score(head, params.shared, tile)
        return found[0] if encoding.has("carry") else found

    return jax.jit(jax.vmap(jax.vmap(one, in_axes=(0, 1, 1)), in_axes=(None, 0, 0)))(params.head, q, k)


@dataclasses.dataclass(frozen=True)
class Case:
    """An encoding whose outputs and gradients are known: the file, the prefix of its arrays, and how to call `attend`.

    `head` and `shared` map the name of a parameter to the names of its array and of its gradient.
    """

    file: str
    encoding: aj.PositionEncoding
    prefix: str = ""
    head: tuple[tuple[str, str, str], ...] = ()
    shared: tuple[tuple[str, str, str], ...] = ()
    causal: bool = False
    scale: float | None = None
    first: int = 0

    def params(self, convert, column: int) -> aj.EncodingParams:
        golden = load(self.file)
        head = {row[0]: convert(golden[row[column]]) for row in self.head}
        return aj.EncodingParams(head=head, shared={row[0]: convert(golden[row[column]]) for row in self.shared})


def learned(prefix: str, *names: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, f"raw_{name}", f"{prefix}_grad_{name}") for name in names)


def t5(kind: str) -> Case:
    table = (("table", "table", f"{kind}_grad_table"),)
    encoding = aj.T5Bias(bidirectional=kind == "bidirectional")
    return Case("t5_attention", encoding, f"{kind}_", head=table, causal=kind == "causal", scale=1.0)


CASES = {
    "t5_causal": t5("causal"),
    "t5_bidirectional": t5("bidirectional"),
    "kerple_log": Case("learned_biases", aj.Kerple("log"), "kerple_log_", head=learned("kerple_log", "r1", "r2")),
    "kerple_power": Case(
        "learned_biases", aj.Kerple("power"), "kerple_power_", head=learned("kerple_power", "r1", "r2")
    ),
    "fire": Case(
        "learned_biases",
        aj.FIRE(hidden=8, threshold=5.0),
        "fire_",
        head=learned("fire", "out", "out_bias"),
        shared=learned("fire", "hidden", "hidden_bias", "c", "threshold"),
    ),
    "transformer_xl": Case(
        "transformer_xl",
        aj.TransformerXL(),
        head=(("u", "u", "grad_u"), ("v", "v_bias", "grad_v_bias"), ("w_r", "w_r", "grad_w_r")),
        first=4,
    ),
    "cope": Case("cope", aj.CoPE(max_position=5), shared=(("table", "table", "grad_table"),), causal=True),
    "pope": Case("pope", aj.PoPE(), head=(("delta", "delta", "grad_delta"),), causal=True),
}


def check_attention(precision: Precision, inputs, expected, params, expected_params, **options) -> None:
    """`attend` and its gradients with respect to q, k, v and every learned parameter, for the loss sum(out * w)."""
    *qkv, w = map(precision.array, inputs)

    def loss(q, k, v, params):
        out = aj.attend(q, k, v, params=params, **options)
        return jnp.vdot(out, w), out

    (_, out), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(*qkv, params)
    precision.check(out, expected[0], "out")
    for name, grad, reference in zip("qkv", grads[:3], expected[1:], strict=True):
        precision.check(grad, reference, f"gradient of {name}")
    named, _ = jax.tree_util.tree_flatten_with_path(grads[3])
    for (path, grad), reference in zip(named, jax.tree.leaves(expected_params), strict=True):
        precision.check(grad, reference, f"gradient of {jax.tree_util.keystr(path)}")


def choose(everyday: dict[tuple[str, str], set[str]], names: dict[str, object]) -> list:
    """Every (name, implementation, precision); what compiles long and is mostly covered by another is for the night."""
    return [
        pytest.param(name, *way, marks=() if name in wanted else pytest.mark.nightly, id=f"{name}-{way[0]}-{way[1]}")
        for way, wanted in everyday.items()
        for name in names
    ]


EVERYDAY_CASES = {
    ("dense", "float32"): set(CASES),
    ("dense", "float64"): set(),
    ("chunked", "float32"): set(),
    ("chunked", "float64"): {"t5_bidirectional", "fire", "cope", "pope"},
}


@pytest.mark.parametrize(("name", "implementation", "precision"), choose(EVERYDAY_CASES, CASES), indirect=["precision"])
def test_outputs_and_gradients_of_encodings(name: str, implementation: str, precision: Precision, small_tiles: None):
    case, golden = CASES[name], load(CASES[name].file)
    check_attention(
        precision,
        [golden[array] for array in "qkvw"],
        [golden[case.prefix + array] for array in ("out", "grad_q", "grad_k", "grad_v")],
        case.params(precision.array, 1),
        case.params(np.asarray, 2),
        encoding=case.encoding,
        mask=aj.Mask(causal=case.causal),
        scale=case.scale,
        q_pos=np.arange(golden["q"].shape[1]) + case.first,
        implementation=implementation,
    )


@pytest.mark.parametrize("name", ["t5_causal", "t5_bidirectional", "kerple_log", "kerple_power"])
def test_learned_biases(name: str, precision: Precision):
    case = CASES[name]
    expected = load(case.file)[f"{case.prefix}bias"]
    positions = map(np.arange, expected.shape[1:])
    precision.check(bias(case.encoding, case.params(precision.array, 1), 4, *positions), expected)


@pytest.mark.parametrize(("name", "key"), [("transformer_xl", "scores"), ("cope", "logits"), ("pope", "scores")])
def test_scores_before_the_softmax(name: str, key: str, precision: Precision):
    case, golden = CASES[name], load(CASES[name].file)
    q, k, expected = precision.array(golden["q"]), precision.array(golden["k"]), golden[key]
    # The scores of PoPE were kept as they are before 1/sqrt(H).
    expected = expected * q.shape[-1] ** -0.5 if name == "pope" else expected
    T, S = expected.shape[2:]
    visible = jnp.tri(T, S, dtype=bool) if case.causal else jnp.ones((T, S), bool)
    pos = np.arange(T, dtype=np.int32) + case.first, np.arange(S, dtype=np.int32)
    found = scores(case.encoding, case.params(precision.array, 1), q, k, *pos, visible)
    precision.check(jnp.where(visible, found, 0.0), np.where(visible, expected, 0.0))


def test_fire_bias(precision: Precision):
    case, pos = CASES["fire"], np.arange(9, dtype=np.int32)
    zeros, visible = precision.array(np.zeros((1, 9, 4, 2))), jnp.ones((9, 9), bool)
    found = scores(case.encoding, case.params(precision.array, 1), zeros, zeros, pos, pos, visible)
    precision.check(found[0], load("learned_biases")["fire_bias"])


# Attention without an encoding ---------------------------------------------------------------------------------------

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


EVERYDAY_MASKS = {
    ("dense", "float64"): set(MASKS),
    ("chunked", "float64"): {"window", "left_padding", "mqa"},
    # The softmax of jax.nn is float32 whatever the type of its inputs.
    ("xla", "float32"): {"left_padding", "mqa"},
}


@pytest.mark.parametrize(("name", "implementation", "precision"), choose(EVERYDAY_MASKS, MASKS), indirect=["precision"])
def test_torch_attention(name: str, implementation: str, precision: Precision, small_tiles: None):
    golden = load("sdpa")
    mask, heads, T, S = MASKS[name]
    inputs = [golden["q"][:, :T], golden[f"k{heads}"][:, :S], golden[f"v{heads}"][:, :S], golden["w"][:, :T]]
    expected = [golden[f"{name}_{array}"] for array in ("out", "grad_q", "grad_k", "grad_v")]
    check_attention(precision, inputs, expected, *[aj.EncodingParams()] * 2, mask=mask, implementation=implementation)
