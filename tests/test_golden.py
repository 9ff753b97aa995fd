"""Encodings and attention against arrays made by other libraries; golden/README.md says what each array is.

Rotations are compared in `test_golden_rotary.py`.

Comparisons run in float64, where only the last digits of two float64 programs may differ, and most in float32 as well.
"""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.golden_arrays import SINGLE, Precision, in_precision, load

pytestmark = pytest.mark.slow


@pytest.fixture(params=["float32", "float64"])
def precision(request: pytest.FixtureRequest) -> Iterator[Precision]:
    """float32, then float64; a test may also ask for one of them by indirect parametrisation."""
    with in_precision(request.param) as precision:
        yield precision


TILES = aj.Tiling(4, 3)
"""Smaller than these short sequences, so that joining tiles is compared as well."""


# Absolute encodings and additive biases ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["concatenated", "interleaved"])
def test_sinusoidal_tables(order: str, precision: Precision):
    expected = load("sinusoidal")[order]
    zeros = precision.array(np.zeros_like(expected))[None]
    table = aj.embed(aj.Sinusoidal(order=order), None, zeros, np.arange(40))[0]
    precision.check(table, expected)


def by_head(encoding: aj.PositionEncoding, params: dict, sizes: aj.Sizes) -> tuple[dict, dict]:
    """Parameters and constants as hooks read them, and the axis of each for `jax.vmap` over heads."""
    p = jax.tree.map(jnp.asarray, aj.resolve(encoding, params, sizes))
    return p, {name: 0 if name in encoding.per_head else None for name in p}


def bias(encoding: aj.PositionEncoding, params: dict, heads: int, q_pos, k_pos) -> jax.Array:
    """[N, T, S] of an additive encoding: `bias` on all pairs of positions."""
    p, axes = by_head(encoding, params, aj.Sizes(8 * heads, heads, heads, 8))
    n = jnp.asarray(np.subtract.outer(q_pos, k_pos), float)
    return jax.vmap(lambda p: encoding.bias(p, n), (axes,))(p)


@pytest.mark.parametrize("kind", ["causal", "bidirectional"])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (16, 64), (32, 200)])
def test_t5_buckets_of_hugging_face(kind: str, buckets: int, max_distance: int):
    golden = load("t5_buckets")
    encoding = aj.T5Bias(buckets, max_distance, bidirectional=kind == "bidirectional")
    numbered = {"table": jnp.arange(buckets, dtype=jnp.float32)[None]}
    found = bias(encoding, numbered, 1, golden["distance"].astype(np.int32), np.zeros(1, np.int32))[0, :, 0]
    np.testing.assert_array_equal(found, golden[f"{kind}_{buckets}_{max_distance}"])


def test_t5_bias_of_x_transformers(precision: Precision):
    golden = load("t5_x_transformers")
    # x-transformers multiplies what it looks up by `scale`, here sqrt(8).
    params = {"table": precision.array(golden["table"] * 8**0.5)}
    encoding = aj.T5Bias(16, 64, bidirectional=True)
    precision.check(bias(encoding, params, 4, np.arange(35, 40), np.arange(40)), golden["bias"])


@pytest.mark.parametrize("heads", [1, 6, 8, 12])
def test_alibi_of_bloom_and_x_transformers(heads: int):
    golden = load("alibi")
    causal = bias(aj.ALiBi(), {}, heads, np.arange(20), np.arange(20))
    # BLOOM adds m * j, which differs from -m * (i - j) by a constant per row.
    expected = np.broadcast_to(golden[f"bloom_{heads}"][:, None], causal.shape)
    SINGLE.check(causal - causal[:, :, :1], expected - expected[:, :, :1])
    symmetric = bias(aj.ALiBi(symmetric=True), {}, heads, np.arange(5, 11), np.arange(11))
    SINGLE.check(symmetric, golden[f"symmetric_{heads}"])


@pytest.mark.parametrize("heads", [1, 6, 8, 12])
def test_alibi_weights_of_bloom(heads: int):
    logits = np.where(np.tri(20, dtype=bool), load("alibi")[f"bloom_{heads}"][:, None], -np.inf)
    expected = np.exp(logits - logits.max(-1, keepdims=True))
    zeros = jnp.zeros((1, 20, heads, 2))
    weights = jax.jit(lambda q: aj.attention_weights(q, q, encoding=aj.ALiBi(), mask=aj.Mask(causal=True)))
    SINGLE.check(weights(zeros)[0], expected / expected.sum(-1, keepdims=True))


# Scores that see queries and keys ------------------------------------------------------------------------------------


def scores(encoding: aj.PositionEncoding, params: dict, q, k, q_pos, k_pos, visible) -> jax.Array:
    """[B, N, T, S] from the hooks: mapped queries and keys, 1/sqrt(H), then `score`."""
    scale = jnp.asarray(q.shape[-1] ** -0.5, q.dtype)
    _, _, heads, width = q.shape
    p, axes = by_head(encoding, params, aj.Sizes(heads * width, heads, heads, width))

    def example(q, k):
        q = jax.vmap(lambda p, q: encoding.map_q(p, q, q_pos), (axes, 1))(p, q)
        k = jax.vmap(lambda p, k: encoding.map_k(p, k, k_pos), (axes, 1))(p, k)
        pos = jnp.asarray(q_pos), jnp.asarray(k_pos)
        tile = aj.Tile(scale * jnp.einsum("nth,nsh->nts", q, k), q, k, *pos, visible, scale)
        if encoding.whole_table:
            return encoding.score(p, tile._replace(q_pos=pos[0][None], k_pos=pos[1][None]))
        return jax.vmap(encoding.score, (axes, aj.Tile(0, 0, 0, None, None, None, None)))(p, tile)

    return jax.jit(jax.vmap(example))(q, k)


@dataclasses.dataclass(frozen=True)
class Case:
    """An encoding whose outputs and gradients are known: the file, the prefix of its arrays, and how to call `attend`.

    `parameters` have a row each: the name of a parameter, of its array and of its gradient.
    """

    file: str
    encoding: aj.PositionEncoding
    prefix: str = ""
    parameters: tuple[tuple[str, str, str], ...] = ()
    causal: bool = False
    scale: float | None = None
    first: int = 0

    def params(self, convert, column: int) -> dict:
        golden = load(self.file)
        return {row[0]: convert(golden[row[column]]) for row in self.parameters}


def learned(prefix: str, *names: str) -> tuple[tuple[str, str, str], ...]:
    return tuple((name, f"raw_{name}", f"{prefix}_grad_{name}") for name in names)


def t5(kind: str) -> Case:
    table = (("table", "table", f"{kind}_grad_table"),)
    encoding = aj.T5Bias(bidirectional=kind == "bidirectional")
    return Case("t5_attention", encoding, f"{kind}_", parameters=table, causal=kind == "causal", scale=1.0)


CASES = {
    "t5_causal": t5("causal"),
    "t5_bidirectional": t5("bidirectional"),
    "kerple_log": Case("learned_biases", aj.Kerple("log"), "kerple_log_", parameters=learned("kerple_log", "r1", "r2")),
    "kerple_power": Case(
        "learned_biases", aj.Kerple("power"), "kerple_power_", parameters=learned("kerple_power", "r1", "r2")
    ),
    "fire": Case(
        "learned_biases",
        aj.FIRE(hidden=8, threshold=5.0),
        "fire_",
        parameters=learned("fire", "out", "out_bias", "hidden", "hidden_bias", "c", "threshold"),
    ),
    "transformer_xl": Case(
        "transformer_xl",
        aj.TransformerXL(),
        parameters=(("u", "u", "grad_u"), ("v", "v_bias", "grad_v_bias"), ("w_r", "w_r", "grad_w_r")),
        first=4,
    ),
    "cope": Case("cope", aj.CoPE(max_position=5), parameters=(("table", "table", "grad_table"),), causal=True),
    "pope": Case("pope", aj.PoPE(), parameters=(("delta", "delta", "grad_delta"),), causal=True),
}


def check_attention(precision: Precision, inputs, expected, params, expected_params, **options) -> None:
    """`attend` and its gradients with respect to q, k, v and every learned parameter, for the loss sum(out * w)."""
    *qkv, w = map(precision.array, inputs)

    def loss(q, k, v, params):
        out = aj.attend(q, k, v, params=params, **options)
        return jnp.vdot(out, w), out

    if options["implementation"] == "chunked":
        options["implementation"] = TILES
    (_, out), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(*qkv, params)
    precision.check(out, expected[0], "out")
    for name, grad, reference in zip("qkv", grads[:3], expected[1:], strict=True):
        precision.check(grad, reference, f"gradient of {name}")
    named, _ = jax.tree_util.tree_flatten_with_path(grads[3])
    for (path, grad), reference in zip(named, jax.tree.leaves(expected_params), strict=True):
        precision.check(grad, reference, f"gradient of {jax.tree_util.keystr(path)}")


def choose(quick: dict[tuple[str, str], set[str]], names: dict[str, object]) -> list:
    """Every (name, implementation, precision); what compiles long and is mostly covered by another is slow."""
    return [
        pytest.param(name, *way, marks=() if name in wanted else pytest.mark.slow, id=f"{name}-{way[0]}-{way[1]}")
        for way, wanted in quick.items()
        for name in names
        if (name, way[0]) != ("cope", "chunked")  # which needs the whole table
    ]


QUICK_CASES = {
    ("dense", "float32"): set(CASES),
    ("dense", "float64"): set(),
    ("chunked", "float32"): set(),
    ("chunked", "float64"): {"t5_bidirectional", "fire", "pope"},
}


@pytest.mark.parametrize(("name", "implementation", "precision"), choose(QUICK_CASES, CASES), indirect=["precision"])
def test_outputs_and_gradients_of_encodings(name: str, implementation: str, precision: Precision):
    case, golden = CASES[name], load(CASES[name].file)
    index = np.arange(golden["q"].shape[1])
    check_attention(
        precision,
        [golden[array] for array in "qkvw"],
        [golden[case.prefix + array] for array in ("out", "grad_q", "grad_k", "grad_v")],
        case.params(precision.array, 1),
        case.params(np.asarray, 2),
        encoding=case.encoding,
        mask=aj.Mask(causal=case.causal, q_index=index),
        scale=case.scale,
        q_pos=index + case.first,
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


QUICK_MASKS = {
    ("dense", "float64"): set(MASKS),
    ("chunked", "float64"): {"window", "left_padding", "mqa"},
    # The softmax of jax.nn is float32 whatever the type of its inputs.
    ("xla", "float32"): {"left_padding", "mqa"},
}


@pytest.mark.parametrize(("name", "implementation", "precision"), choose(QUICK_MASKS, MASKS), indirect=["precision"])
def test_torch_attention(name: str, implementation: str, precision: Precision):
    golden = load("sdpa")
    mask, heads, T, S = MASKS[name]
    inputs = [golden["q"][:, :T], golden[f"k{heads}"][:, :S], golden[f"v{heads}"][:, :S], golden["w"][:, :T]]
    expected = [golden[f"{name}_{array}"] for array in ("out", "grad_q", "grad_k", "grad_v")]
    check_attention(precision, inputs, expected, {}, {}, mask=mask, implementation=implementation)
