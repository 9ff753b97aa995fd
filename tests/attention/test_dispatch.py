"""Which implementation runs, what the others are refused for, and the adapters to kernels that this machine lacks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import (
    FIRE,
    ALiBi,
    CoPE,
    Dropout,
    Kerple,
    Mask,
    NoPE,
    PoPE,
    RoPE,
    Sandwich,
    Sizes,
    T5Bias,
    TransformerXL,
    XPos,
    attend,
    attend_with_lse,
    attention_weights,
    compose,
    explain,
)
from attnjax.attention import dispatch, fused
from attnjax.attention.dense import dense
from attnjax.attention.problem import Keys, prepare

B, N, K, H = 2, 4, 2, 8
CAUSAL = Mask(causal=True)
NAMES = ("dense", "chunked", "xla", "cudnn")


def shapes(T, S=None, dtype="float32", batch=B, heads=N, head=H):
    """q, k and v without content."""
    shape = lambda n, heads: jax.ShapeDtypeStruct((batch, n, heads, head), dtype)
    return shape(T, heads), shape(S or T, K), shape(S or T, K)


def content(T, S=None, dtype="float32"):
    normal = np.random.default_rng(0).normal
    return tuple(jnp.asarray(normal(size=x.shape), dtype) for x in shapes(T, S))


def learned(encoding):
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, K, H))
    return jax.tree.map(lambda leaf: leaf + 0.3, params)


def reasons(explanation) -> dict[str, str]:
    assert {explanation.implementation, *dict(explanation.rejected)} == set(NAMES)
    return dict(explanation.rejected)


# The choice


@pytest.mark.parametrize("encoding", [NoPE(), RoPE(), ALiBi(), T5Bias(), CoPE()])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("T", "expected"), [(1, "dense"), (362, "dense"), (363, "chunked"), (2**20, "chunked")])
def test_small_is_dense_and_large_is_chunked(T, expected, dtype, encoding):
    """B N T S tables of float32 up to 4 MiB are dense: 8 * 362 * 362 * 4 bytes are just below. Kernels of libraries are
    not chosen on this backend."""
    params = jax.eval_shape(lambda: learned(encoding))
    chosen = explain(*shapes(T, dtype=dtype), encoding=encoding, params=params, mask=CAUSAL)
    assert chosen.implementation == expected


def test_reasons_of_a_small_problem():
    chosen = explain(*shapes(16), encoding=RoPE())
    assert (chosen.implementation, chosen.reason) == ("dense", "the [B,N,T,S] table takes 8 KiB, at most 4 MiB")
    assert reasons(chosen) == {
        "chunked": "dense is chosen first where it can serve",
        "xla": "dense serves the same cases; ask for it by name",
        "cudnn": "it needs an NVIDIA GPU, the backend is 'cpu'",
    }


def test_reasons_of_a_large_problem():
    chosen = explain(*shapes(8192), encoding=T5Bias(), params=jax.eval_shape(lambda: learned(T5Bias())))
    assert chosen.implementation == "chunked"
    assert chosen.reason == "the [B,N,T,S] table would take 2 GiB; tiles need memory linear in T and S"
    assert reasons(chosen) == {
        "dense": "the [B,N,T,S] table would take 2 GiB; ask for it by name",
        "xla": "the hook 'bias' of the encoding would need a bias tensor",
        "cudnn": "the hook 'bias' of the encoding would need a bias tensor",
    }


def test_an_explanation_is_a_record_that_prints():
    chosen = explain(
        *shapes(16), implementation="chunked", encoding=CoPE(), params=jax.eval_shape(lambda: learned(CoPE()))
    )
    assert dataclasses.is_dataclass(chosen)
    with pytest.raises(dataclasses.FrozenInstanceError):
        chosen.implementation = "dense"
    assert hash(chosen) == hash(dataclasses.replace(chosen))
    assert str(chosen).splitlines() == [
        "chunked: asked for by name",
        "  not dense: another was asked for",
        "  not xla: the hook 'carry' of the encoding would need a bias tensor",
        "  not cudnn: the hook 'carry' of the encoding would need a bias tensor",
    ]


def test_explain_takes_arrays_or_their_shapes():
    q, k, v = content(5)
    assert explain(q, k, v, mask=CAUSAL) == explain(*shapes(5), mask=CAUSAL)


@pytest.mark.parametrize(("T", "expected"), [(5, "dense"), (1040, "chunked")])
def test_attend_runs_what_explain_says(monkeypatch, T, expected):
    ran = []
    for name in ("dense", "chunked"):
        fake = lambda problem, name=name: ran.append(name) or (problem.rows.q, problem.rows.q[..., 0])
        monkeypatch.setitem(dispatch.WITH_LSE, name, fake)
    jax.eval_shape(lambda *qkv: attend(*qkv, mask=CAUSAL), *shapes(T))
    jax.eval_shape(lambda *qkv: attend_with_lse(*qkv, mask=CAUSAL), *shapes(T))
    assert ran == [explain(*shapes(T), mask=CAUSAL).implementation] * 2 == [expected] * 2


# Refusals


@pytest.mark.parametrize("function", [attend, attend_with_lse, explain])
def test_unknown_implementation(function):
    with pytest.raises(
        ValueError, match="unknown implementation 'flash'; choose from dense, chunked, xla, cudnn or None"
    ):
        function(*content(3), implementation="flash")


@pytest.mark.parametrize(
    ("encoding", "hook"),
    [
        (T5Bias(), "bias"),
        (Kerple(), "bias"),
        (ALiBi(symmetric=True), "bias"),
        (FIRE(), "score"),
        (CoPE(), "carry"),
        (compose(ALiBi(), T5Bias()), "bias"),
    ],
)
@pytest.mark.parametrize("name", ["xla", "cudnn"])
def test_kernels_refuse_what_needs_a_bias(encoding, hook, name):
    text = (
        f"implementation '{name}' cannot serve {encoding}: the hook '{hook}' of the encoding would need a bias tensor"
    )
    with pytest.raises(NotImplementedError) as error:
        attend(*content(3), encoding=encoding, params=learned(encoding), mask=CAUSAL, implementation=name)
    assert str(error.value) == f"{text}; these can: dense, chunked"


def test_kernels_have_no_dropout_and_no_log_sum_exp():
    with pytest.raises(
        NotImplementedError, match=r"'xla' cannot serve NoPE\(\): it has no attention dropout; these can: dense"
    ):
        attend(*content(3), dropout=Dropout(jax.random.key(0), 0.1), implementation="xla")
    with pytest.raises(
        NotImplementedError, match=r"does not return the log-sum-exp of our scores; these can: dense, chunked"
    ):
        attend_with_lse(*content(3), implementation="xla")


def test_cudnn_needs_a_gpu():
    with pytest.raises(
        NotImplementedError, match=r"needs an NVIDIA GPU, the backend is 'cpu'; these can: dense, chunked, xla"
    ):
        attend(*content(3, dtype="bfloat16"), implementation="cudnn")


GPU_CASES = {
    "rope": (RoPE(), CAUSAL, {}, None),
    "full": (NoPE(), Mask(), {"S": 80}, None),
    "window": (ALiBi(), Mask(causal=True, window=9), {}, None),
    "float32": (RoPE(), CAUSAL, {"dtype": "float32"}, "it needs bfloat16 or float16 queries, got float32"),
    "bias": (T5Bias(), CAUSAL, {}, "the hook 'bias' of the encoding would need a bias tensor"),
    "wide": (RoPE(), CAUSAL, {"head": 256}, "its heads have at most 128 channels, with columns these have 256"),
    "widened": (PoPE(), CAUSAL, {"head": 72}, "its heads have at most 128 channels, with columns these have 144"),
    "columns": (Sandwich(), CAUSAL, {}, "its heads have at most 128 channels, with columns these have 136"),
    "segments": (RoPE(), Mask(True, None, np.zeros(64, int), np.zeros(64, int)), {}, "mask"),
    "padding": (RoPE(), Mask(True, k_valid=np.arange(64) > 2), {}, "mask"),
    "index": (RoPE(), Mask(True, q_index=np.arange(64) + 1), {}, "mask"),
    "allowed": (RoPE(), Mask(True, allowed=np.eye(64, dtype=bool)), {}, "mask"),
    "two-sided": (RoPE(), Mask(window=3), {}, "mask"),
    "cross": (RoPE(), CAUSAL, {"S": 80}, "mask"),
}


@pytest.mark.parametrize("name", GPU_CASES)
def test_the_choice_on_a_gpu(name, monkeypatch):
    """cuDNN where it serves, for any size; otherwise as elsewhere, with the reason."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    encoding, mask, options, reason = GPU_CASES[name]
    q, k, v = shapes(64, **{"dtype": "bfloat16"} | options)
    sizes = Sizes(N * q.shape[3], N, K, q.shape[3])
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes))
    chosen = explain(q, k, v, encoding=encoding, params=params, mask=mask)
    if reason is None:
        assert (chosen.implementation, chosen.reason) == ("cudnn", "the fused kernel of this GPU")
        assert reasons(chosen)["dense"] == "cudnn is chosen first where it can serve"
    else:
        assert chosen.implementation == "dense"
        full = "it takes causal or full masks over default indices, with a window to the left only"
        assert reasons(chosen)["cudnn"] == (full if reason == "mask" else reason)


# What the adapters hand to a kernel


LOWERED = {
    "nope": NoPE(),
    "rope": RoPE(),
    "xpos": XPos(),
    "pope": PoPE(),
    "alibi": ALiBi(),
    "sandwich": Sandwich(width=10),
    "transformer_xl": TransformerXL(),
    "rope+alibi": compose(RoPE(), ALiBi()),
    "alibi+sandwich": compose(ALiBi(), Sandwich(width=6)),
}


def problem_of(encoding, T, S=None, dtype="float32", mask=CAUSAL, inputs=None, pos=None):
    q, k, v = content(T, S, dtype) if inputs is None else inputs
    params = jax.tree.map(lambda leaf: leaf.astype("float64" if dtype == "float64" else "float32"), learned(encoding))
    return prepare(q, Keys(k, v, pos, None, None), encoding, params, pos, mask, None, None)


def plain_attention(q, k, v, seen):
    """softmax(q.k) v and nothing else, in NumPy, for arrays in the layout of `jax.nn`."""
    k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
    scores = np.where(seen[None, None], np.einsum("btnh,bsnh->bnts", q, k), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", LOWERED)
def test_lowered_arrays_need_no_encoding(name):
    """Plain softmax attention of the lowered queries, keys and values is the attention with the encoding."""
    T, pos = 9, np.array([0, 3, 4, 255, 256, 300, 700, 1000, 1001])

    @jax.jit
    def both():
        problem = problem_of(LOWERED[name], T, dtype="float64", pos=pos)
        return [fused.pad_width(x, 8) for x in fused.lower(problem)], dense(problem)[0]

    (q, k, v), expected = jax.tree.map(np.asarray, both())
    assert q.shape[-1] == k.shape[-1] == v.shape[-1]
    assert q.shape[-1] % 8 == 0
    out = plain_attention(q, k, v, np.tril(np.ones((T, T), bool)))
    expected = expected.reshape(B, N, T, H).swapaxes(1, 2)
    # The bias of Sandwich is float32 in dense, by the contract of `bias`.
    np.testing.assert_allclose(out[..., :H], expected, rtol=1e-9 if "sandwich" not in name else 1e-5, atol=1e-12)
    assert not out[..., H:].any()


def test_columns_of_alibi_are_exact_in_bfloat16():
    """Nothing is lost where a kernel wants 16 bits, up to position 65,535."""
    pos = np.array([0, 1, 255, 256, 257, 4095, 32_769, 65_535])
    q, k, _ = jax.jit(lambda: fused.lower(problem_of(ALiBi(), len(pos), pos=pos)))()
    for columns in (q[..., H : H + 6], k[..., H : H + 6]):
        np.testing.assert_array_equal(columns.astype("bfloat16").astype("float32"), columns)
    bias = np.einsum(
        "tnc,snc->nts", np.float64(q[0, :, :, H : H + 6]), np.repeat(np.float64(k[0, :, :, H : H + 6]), 2, axis=1)
    )
    slopes = 2.0 ** -np.array([2, 4, 6, 8])
    np.testing.assert_array_equal(bias, slopes[:, None, None] * pos[None, None, :] + 0.0 * pos[None, :, None])


@pytest.fixture
def kernel(monkeypatch):
    """`jax.nn.dot_product_attention` with the cuDNN implementation replaced by XLA's; returns the options of each call."""
    calls, real = [], jax.nn.dot_product_attention

    def fake(q, k, v, *, implementation, **options):
        assert implementation == "cudnn"
        calls.append({"dtype": q.dtype.name, "width": q.shape[-1], **options})
        # In float32, because XLA's path does not run on 16 bits under strict promotion.
        return real(*(x.astype("float32") for x in (q, k, v)), implementation="xla", **options).astype(q.dtype)

    monkeypatch.setattr(jax.nn, "dot_product_attention", fake)
    return calls


def through_cudnn(*arguments, **options):
    """The outputs of the adapter and of dense."""

    @jax.jit
    def both():
        problem = problem_of(*arguments, **options)
        return fused.cudnn(problem), dense(problem)[0]

    return both()


@pytest.mark.parametrize("mask", [CAUSAL, Mask(causal=True, window=3), Mask()])
@pytest.mark.parametrize("name", ["nope", "pope", "alibi"])
def test_the_adapter_of_cudnn(name, mask, kernel):
    """16-bit arrays in widths that are multiples of 8, our mask in the words of `jax.nn`, and the result of dense."""
    if name == "alibi" and not mask.causal:
        mask = CAUSAL
    out, expected = through_cudnn(LOWERED[name], 9, dtype="bfloat16", mask=mask)
    window = None if mask.window is None else (3, 0)
    width = {"nope": 8, "pope": 16, "alibi": 16}[name]
    call = {"dtype": "bfloat16", "width": width, "scale": 1.0, "is_causal": mask.causal, "local_window_size": window}
    assert kernel == [call]
    np.testing.assert_allclose(out, expected, rtol=0, atol=0.03)


@pytest.mark.parametrize("mask", [CAUSAL, Mask(causal=True, window=3), Mask()])
def test_non_finite_entries_through_cudnn(mask, kernel):
    """The rows that become NaN are those of dense, though no table says who sees whom."""
    q, k, v = (np.array(x) for x in content(12))
    k[0, 4, 0, 1], v[1, 7, 1, 0], q[1, 2, 3, 0] = np.nan, np.inf, -np.inf
    inputs = [jnp.asarray(x, "bfloat16") for x in (q, k, v)]
    np.testing.assert_array_equal(*map(np.isnan, through_cudnn(NoPE(), 12, mask=mask, inputs=inputs)))


def test_weights_of_every_head():
    """`attention_weights` is dense whatever the size, and needs no values."""
    q, k, v = content(6)
    options = {"encoding": RoPE(), "mask": CAUSAL}
    weights, found = jax.jit(lambda: (attention_weights(q, k, **options), attend(q, k, v, **options)))()
    assert weights.shape == (B, N, 6, 6)
    np.testing.assert_allclose(weights.sum(-1), np.ones((B, N, 6)), rtol=1e-6)
    assert not np.triu(weights, 1).any()
    out = np.einsum("bnts,bsnh->btnh", weights, np.repeat(v, N // K, axis=2))
    np.testing.assert_allclose(found, out, rtol=1e-5, atol=1e-6)
