"""Which implementation runs, what the others are refused for, and the weights that `attend` gives."""

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
    KVCache,
    Mask,
    NoPE,
    PoPE,
    RoPE,
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
from attnjax.attention import dispatch, support

B, N, K, H = 2, 4, 2, 8
CAUSAL = Mask(causal=True)
NAMES = ("dense", "chunked", "xla", "cudnn")


def shapes(T, S=None, dtype="float32", batch=B, heads=N, head_dim=H):
    """q, k and v without content."""
    shape = lambda n, heads: jax.ShapeDtypeStruct((batch, n, heads, head_dim), dtype)
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
        "cudnn": "it needs an NVIDIA GPU, and this process sees none",
    }


def test_reasons_of_a_large_problem():
    chosen = explain(*shapes(8192), encoding=T5Bias(), params=jax.eval_shape(lambda: learned(T5Bias())))
    assert chosen.implementation == "chunked"
    assert chosen.reason == "the [B,N,T,S] table would take 2 GiB; tiles need memory linear in T and S"
    assert reasons(chosen) == {
        "dense": "the [B,N,T,S] table would take 2 GiB; ask for it by name",
        "xla": "dense serves the same cases; ask for it by name",
        "cudnn": "it needs an NVIDIA GPU, and this process sees none",
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
        "  not xla: the hook 'score' of the encoding computes the logits",
        "  not cudnn: the hook 'score' of the encoding computes the logits",
    ]


def test_explain_takes_arrays_or_their_shapes():
    q, k, v = content(5)
    assert explain(q, k, v, mask=CAUSAL) == explain(*shapes(5), mask=CAUSAL)


def test_explain_does_not_count_the_tokens_of_a_cache():
    """As its docstring says: nothing is computed, and an empty cache may be one that is filled later."""
    q, cache = content(1)[0], KVCache.create(B, 8, K, H)
    with pytest.raises(ValueError, match="got 1 queries, the cache holds 0 tokens"):
        attend(q, cache=cache)
    assert explain(q, cache=cache).implementation == "dense"


@pytest.mark.parametrize(("T", "expected"), [(5, "dense"), (1040, "chunked")])
def test_attend_runs_what_explain_says(monkeypatch, T, expected):
    ran = []
    for name in ("dense", "chunked"):
        fake = lambda inputs, name=name: ran.append(name) or (inputs.queries.q, inputs.queries.q[..., 0])
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
    "encoding", [FIRE(), CoPE(), TransformerXL(), compose(RoPE(), CoPE()), compose(ALiBi(), FIRE())]
)
@pytest.mark.parametrize("name", ["xla", "cudnn"])
def test_kernels_refuse_what_has_a_score_of_its_own(encoding, name):
    text = f"implementation '{name}' cannot serve {encoding}: the hook 'score' of the encoding computes the logits"
    with pytest.raises(NotImplementedError) as error:
        attend(*content(3), encoding=encoding, params=learned(encoding), mask=CAUSAL, implementation=name)
    assert str(error.value) == f"{text}; these can: dense, chunked"


def test_a_rate_is_no_dropout():
    with pytest.raises(ValueError, match=r"dropout must be Dropout\(key, rate\) or None, got 0.1"):
        attend(*content(3), dropout=0.1)


def test_the_bias_of_parts_at_positions_of_their_own():
    """Each part of a composition may have positions of its own; the kernel of XLA gets the sum of their biases."""
    encoding, pos = compose(ALiBi(), ALiBi(slopes=(0.5,) * N)), np.arange(3)
    options = {"encoding": encoding, "q_pos": (pos, pos * 2), "k_pos": (pos, pos * 2), "mask": CAUSAL}
    found = [attend(*content(3), **options, implementation=name) for name in ("xla", "dense")]
    np.testing.assert_allclose(*found, atol=2e-6)


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
        NotImplementedError,
        match="needs an NVIDIA GPU, and this process sees none; these can: dense, chunked, xla",
    ):
        attend(*content(3, dtype="bfloat16"), implementation="cudnn")


GPU_CASES = {
    "rope": (RoPE(), CAUSAL, {}, None),
    "full": (NoPE(), Mask(), {"S": 80}, None),
    "window": (ALiBi(), Mask(causal=True, window=9), {}, None),
    "float32": (RoPE(), CAUSAL, {"dtype": "float32"}, "it needs bfloat16 or float16 queries, got float32"),
    "bias": (T5Bias(), CAUSAL, {}, "the hook 'bias' of the encoding would need a bias tensor"),
    "wider keys": (
        XPos(),
        CAUSAL,
        {"dtype": "float16"},
        "the encoding keeps queries or keys in a wider type than float16, which it would round",
    ),
    "wide": (RoPE(), CAUSAL, {"head_dim": 256}, "its heads have at most 128 channels, with columns these have 256"),
    "widened": (PoPE(), CAUSAL, {"head_dim": 72}, "its heads have at most 128 channels, with columns these have 144"),
    "columns": (ALiBi(), CAUSAL, {"head_dim": 120}, "its heads have at most 128 channels, with columns these have 129"),
    "symmetric": (ALiBi(symmetric=True), CAUSAL, {}, "the hook 'bias' of the encoding would need a bias tensor"),
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
    monkeypatch.setattr(support, "has_cuda", lambda: True)
    encoding, mask, options, reason = GPU_CASES[name]
    q, k, v = shapes(64, **{"dtype": "bfloat16"} | options)
    sizes = Sizes(N * q.shape[3], N, K, q.shape[3])
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), sizes))
    chosen = explain(q, k, v, encoding=encoding, params=params, mask=mask)
    if reason is None:
        assert (chosen.implementation, chosen.reason) == ("cudnn", "the fused kernel of the GPU")
        assert reasons(chosen)["dense"] == "cudnn is chosen first where it can serve"
    else:
        assert chosen.implementation == "dense"
        full = "it takes causal or full masks over default indices, with a window to the left only"
        assert reasons(chosen)["cudnn"] == (full if reason == "mask" else reason)


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
