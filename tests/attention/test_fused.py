"""What kernels of libraries are handed: extra columns in place of linear biases, our masks in their words, and what comes back.

The kernel of cuDNN is not here; XLA's takes its place, of which a GPU's may differ in rounding alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import ALiBi, Cable, DynamicNTK, FoX, Mask, NoPE, PoPE, RoPE, XPos, attend, compose, explain
from attnjax.attention import fused, support
from attnjax.attention.dense import dense
from attnjax.attention.inputs import from_caller, prepare
from tests.attention.test_dispatch import CAUSAL, B, H, K, N, content, learned, shapes
from tests.attention.toys import PerLength

LOWERED = {"nope": NoPE(), "rope": RoPE(), "xpos": XPos(), "pope": PoPE(), "alibi": ALiBi()}


def inputs_of(encoding, T, S=None, dtype="float32", mask=CAUSAL, arrays=None, pos=None, scale=None):
    q, k, v = content(T, S, dtype) if arrays is None else arrays
    params = jax.tree.map(lambda leaf: leaf.astype("float64" if dtype == "float64" else "float32"), learned(encoding))
    return prepare(q, from_caller(q, k, v, pos), encoding, params, pos, mask, scale, None, None)


def plain_attention(q, k, v, seen):
    """softmax(q.k) v and nothing else, in NumPy, for arrays in the layout of `jax.nn`."""
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    scores = np.where(seen[None, None], np.einsum("btnh,bsnh->bnts", q, k), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", LOWERED)
def test_arrays_with_columns_need_no_encoding(name):
    """Plain softmax attention of the queries, keys and values with columns is the attention with the encoding."""
    T, pos = 9, np.array([0, 3, 4, 255, 256, 300, 700, 1000, 1001])

    @jax.jit
    def both():
        inputs = inputs_of(LOWERED[name], T, dtype="float64", pos=pos, scale=0.5)
        q, k, v, scale = fused.columns(inputs)
        assert scale == 0.5
        return [fused.pad_width(x, 8) for x in (scale * q, k, v)], dense(inputs)[0]

    (q, k, v), expected = jax.tree.map(np.asarray, both())
    assert q.shape[-1] == k.shape[-1] == v.shape[-1]
    assert q.shape[-1] % 8 == 0
    out = plain_attention(q, k, v, np.tril(np.ones((T, T), bool)))
    np.testing.assert_allclose(out[..., :H], dense_layout(expected), rtol=1e-9, atol=1e-12)
    assert not out[..., H:].any()


def dense_layout(out):
    """[B,K,G,T,H] -> [B,T,N,H]."""
    return np.asarray(out).reshape(B, N, -1, H).swapaxes(1, 2)


SPREAD = np.array([0, 1, 255, 256, 257, 4095, 32_769, 65_409, 65_535])
"""Positions that span all that columns can tell apart."""


@pytest.mark.quick(
    "0-None-float32",
    "0-0.3-float16",
    "66000-1.0-bfloat16",
    "1000000-None-float16",
    "1000000-0.3-float32",
    "1000000000-None-bfloat16",
    "1000000000-1.0-float32",
    "-1000000000-0.3-float16",
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
@pytest.mark.parametrize("first", [0, 66_000, 10**6, 10**9, -(10**9)])
def test_columns_are_the_linear_bias_at_any_offset(first, scale, dtype):
    """scale * q_columns . k_columns is -m (i - j) plus a number of the row, to 2^-24 of m times the span, in 16 bits too."""
    pos = first + SPREAD
    inputs = inputs_of(ALiBi(), len(pos), dtype=dtype, pos=pos, scale=scale)
    q, k, _, factor = fused.columns(inputs)
    q, k = (np.asarray(x[..., H : H + 9], np.float64) for x in (q, k))
    bias = factor * np.einsum("tnc,snc->nts", q[0], np.repeat(k[0], N // K, axis=1))
    slopes = 2.0 ** -np.array([2, 4, 6, 8])
    expected = slopes[:, None, None] * np.broadcast_to(pos, (len(pos), len(pos)))[None]
    difference = bias - expected
    difference -= difference[:, :, :1]
    assert np.all(np.abs(difference) <= 2.0**-24 * 65_536 * slopes[:, None, None])


def test_columns_of_positions_in_any_order_are_exact_where_slopes_are():
    """Positions that fall, and a row for each example."""
    pos = np.stack([SPREAD[::-1], np.arange(9)]) + 10**6
    q, k, _, _ = fused.columns(inputs_of(ALiBi(), 9, pos=pos, mask=CAUSAL, scale=1.0))
    bias = np.einsum(
        "btnc,bsnc->bnts", *(np.asarray(x[..., H : H + 9], np.float64) for x in (q, np.repeat(k, 2, axis=2)))
    )
    slopes = 2.0 ** -np.array([2, 4, 6, 8])
    expected = slopes[None, :, None, None] * (pos - pos[:, :1])[:, None, None]
    np.testing.assert_array_equal(bias - bias[..., :1], np.broadcast_to(expected, bias.shape))


def test_the_gradient_of_a_position_is_that_of_its_own_columns():
    """That of the first was the sum over all keys: on an H200 it was wrong by 0.12 of the largest gradient at 4,096 tokens."""
    T = 9
    pos = jnp.cumsum(jax.random.uniform(jax.random.key(0), (B, N, T)), -1)
    keys, back = jax.vjp(lambda pos: fused.columns(inputs_of(FoX(), T, pos=pos))[1], pos)
    each = jax.vmap(lambda s: back(jnp.zeros_like(keys).at[:, s].set(1.0))[0])(jnp.arange(T))
    np.testing.assert_array_equal(np.asarray(each != 0).any((1, 2)), np.eye(T, dtype=bool))


@pytest.fixture
def kernel(monkeypatch):
    """`jax.nn.dot_product_attention` with the cuDNN implementation replaced by XLA's; returns the options of each call."""
    calls, real = [], jax.nn.dot_product_attention

    def fake(q, k, v, *, implementation, **options):
        assert implementation == "cudnn"
        assert q.shape[1] % 2 == k.shape[1] % 2 == 0, "JAX refuses gradients of odd lengths"
        calls.append({"dtype": q.dtype.name, "width": q.shape[-1], **options})
        # In float32, because XLA's path does not run on 16 bits under strict promotion.
        return real(*(x.astype("float32") for x in (q, k, v)), implementation="xla", **options).astype(q.dtype)

    monkeypatch.setattr(jax.nn, "dot_product_attention", fake)
    return calls


def through_cudnn(*arguments, **options):
    """The outputs of the adapter and of dense."""

    @jax.jit
    def both():
        inputs = inputs_of(*arguments, **options)
        return fused.cudnn(inputs), dense(inputs)[0]

    return both()


@pytest.mark.parametrize("mask", [CAUSAL, Mask(causal=True, window=3), Mask()])
@pytest.mark.parametrize("name", ["nope", "pope", "alibi"])
def test_the_adapter_of_cudnn(name, mask, kernel):
    """16-bit arrays in widths that are multiples of 8, our mask in the words of `jax.nn`, and the result of dense."""
    if name == "alibi" and not mask.causal:
        mask = CAUSAL
    out, expected = through_cudnn(LOWERED[name], 9, dtype="bfloat16", mask=mask)
    window = None if mask.window is None else (3, 0)
    width, scale = {"nope": 8, "pope": 16, "alibi": 24}[name], float(np.float32(H**-0.5))
    call = {"dtype": "bfloat16", "width": width, "scale": scale, "is_causal": mask.causal, "local_window_size": window}
    assert [{name: x for name, x in given.items() if name != "key_value_seq_lengths"} for given in kernel] == [call]
    np.testing.assert_allclose(out, expected, rtol=0, atol=0.03)


@pytest.mark.parametrize(("T", "S"), [(9, 9), (8, 8), (8, 5), (5, 8), (1, 1)])
@pytest.mark.parametrize("mask", [CAUSAL, Mask(causal=True, window=3), Mask()], ids=["causal", "window", "full"])
def test_odd_lengths_through_cudnn(mask, T, S, kernel):
    """JAX refuses their gradients, so that a query and a key are added which nobody sees; before, this was an error."""
    S = T if mask.causal else S
    q, k, v = (x.astype("bfloat16") for x in content(T, S))

    @jax.jit
    def gradients(q, k, v):
        def of(run):
            loss = lambda q, k, v: (run(q, k, v) ** 2).sum()
            return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)

        inputs = lambda *arrays: inputs_of(NoPE(), T, S, dtype="bfloat16", mask=mask, arrays=arrays)
        return of(lambda *arrays: fused.cudnn(inputs(*arrays))), of(lambda *arrays: dense(inputs(*arrays))[0])

    for got, expected in zip(*gradients(q, k, v), strict=True):
        np.testing.assert_allclose(got.astype("float32"), expected.astype("float32"), rtol=0.05, atol=0.05)
    assert all((call["key_value_seq_lengths"] is not None) == (S % 2 == 1 and not mask.causal) for call in kernel)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("first", [0, 66_000, 10**6, 10**9])
def test_linear_biases_through_cudnn_at_far_positions(first, dtype):
    """Columns of the positions themselves were wrong by up to 64 slopes here."""
    out, expected = through_cudnn(ALiBi(), 9, dtype=dtype, pos=first + SPREAD)
    np.testing.assert_allclose(out, expected, rtol=0, atol=0.03)
    out, expected = through_cudnn(ALiBi(), 9, dtype=dtype, pos=first + 7 * np.arange(9))
    np.testing.assert_allclose(out, expected, rtol=0, atol=0.03)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("encoding", [FoX(), Cable()], ids=["fox", "cable"])
@pytest.mark.parametrize("heads", ["query heads", "key heads", "all heads"])
def test_positions_computed_from_content_through_cudnn(heads, encoding):
    """Sums of gates or costs as columns: one copy of the keys per query head where positions differ between these."""
    rows = {"query heads": (B, N), "key heads": (B, K), "all heads": (B, N)}[heads]
    pos = np.cumsum(np.random.default_rng(1).exponential(size=(*rows, 9)), -1).astype(np.float32)
    q_pos, k_pos = pos, pos
    if heads == "key heads":
        q_pos = np.repeat(pos, N // K, axis=1)
    if heads == "all heads":
        q_pos = k_pos = np.broadcast_to(pos[:, :1], pos.shape)
    q, k, v = content(9, dtype="bfloat16")

    @jax.jit
    def both(q_pos, k_pos):
        inputs = prepare(q, from_caller(q, k, v, k_pos), encoding, learned(encoding), q_pos, CAUSAL, None, None, None)
        return fused.cudnn(inputs), dense(inputs)[0]

    out, expected = both(q_pos, k_pos)
    np.testing.assert_allclose(out, expected, rtol=0, atol=0.03)


TRACED = "the positions of the keys are traced, so that their columns cannot be known to be exact"
FRACTIONS = "columns of fractional positions are exact in bfloat16 alone"


@pytest.mark.parametrize(
    ("pos", "dtype", "reason"),
    [
        (SPREAD, "bfloat16", None),
        (SPREAD - 10**9, "float16", None),
        (
            SPREAD + np.arange(9) // 8,
            "bfloat16",
            "positions of the keys span 65536, and their columns are exact below 65536",
        ),
        (jnp.arange(9), "bfloat16", TRACED),
        (np.arange(9) / 4, "bfloat16", None),
        (np.arange(9) / 4, "float16", FRACTIONS),
        (jnp.arange(9) / 4, "bfloat16", None),
    ],
    ids=["span", "offset", "too far", "traced", "fractions", "fractions in float16", "traced fractions"],
)
def test_a_linear_bias_is_columns_only_where_these_are_exact(pos, dtype, reason, monkeypatch):
    monkeypatch.setattr(support, "has_cuda", lambda: True)
    chosen = explain(*shapes(9, dtype=dtype), encoding=ALiBi(), q_pos=pos, k_pos=pos, mask=CAUSAL)
    assert (chosen.implementation == "cudnn") == (reason is None)
    assert dict(chosen.rejected).get("cudnn") == reason


BY_LENGTH = {
    "hooks of queries": compose(RoPE(scaling=DynamicNTK(2.0, original_length=4)), ALiBi()),
    "hook of scores": PerLength(),
}


@pytest.mark.parametrize("heads", [(4, 2), (2, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("name", BY_LENGTH)
def test_a_bias_beside_constants_of_the_length_through_xla(name, heads):
    """Parameters have an axis of examples there, which was taken for that of the heads: an error, or other slopes."""
    (q, k, v), valid = content(9), np.arange(9) < np.array([[9], [6]])
    q, k, v = q[:, :, : heads[0]], k[:, :, : heads[1]], v[:, :, : heads[1]]
    options = {"encoding": BY_LENGTH[name], "mask": Mask(causal=True, k_valid=valid)}
    outs = jax.jit(lambda: [attend(q, k, v, implementation=way, **options) for way in ("xla", "dense")])()
    np.testing.assert_allclose(*outs, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_traced_scale_is_not_rounded_to_sixteen_bits(dtype):
    """0.3 is 0.30078 in bfloat16, and queries times it were rounded once more: ten times the error of the scale as a number."""
    q, k, v = (3 * x for x in content(16, dtype=dtype))
    run = lambda scale: attend(q, k, v, scale=scale, implementation="xla").astype("float32")
    exact = attend(*(x.astype("float32") for x in (q, k, v)), scale=0.3, implementation="dense")
    known, traced = (np.abs(x - exact).max() for x in (run(0.3), jax.jit(run)(jnp.float32(0.3))))
    assert traced <= known + 1e-3, (traced, known)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_scale_without_an_inverse_through_cudnn(scale):
    out, expected = through_cudnn(ALiBi(), 9, dtype="bfloat16", scale=scale)
    np.testing.assert_allclose(out, expected, rtol=0, atol=0.03)


@pytest.mark.parametrize("mask", [CAUSAL, Mask(causal=True, window=3), Mask()])
def test_non_finite_entries_through_cudnn(mask, kernel):
    """The rows that are not finite are those of dense, though no table says who sees whom."""
    q, k, v = (np.array(x) for x in content(12))
    k[0, 4, 0, 1], v[1, 7, 1, 0], q[1, 2, 3, 0] = np.nan, np.inf, -np.inf
    arrays = [jnp.asarray(x, "bfloat16") for x in (q, k, v)]
    rows = [~np.isfinite(out).all(-1) for out in through_cudnn(NoPE(), 12, mask=mask, arrays=arrays)]
    assert rows[1].any()
    np.testing.assert_array_equal(*rows)
