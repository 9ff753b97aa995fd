"""Which implementation runs, what the others are refused for, and what kernels of libraries are handed.

The kernel of cuDNN is not here; XLA's takes its place, of which a GPU's may differ in rounding alone.
"""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import ALiBi, Dropout, FoX, KVCache, Mask, NoPE, RoPE, Sizes, T5Bias, attend, compose, explain
from attnjax.attention import choice, fused
from attnjax.attention.call import prepare
from tests.attention.matrix import compiled, learned
from tests.cases import slow_except

B, N, K, H = 2, 4, 2, 8
CAUSAL = Mask(causal=True)
NAMES = ("dense", "chunked", "cudnn")


def shapes(T, S=None, dtype="float32", batch=B, head_dim=H):
    """q, k and v without content."""
    shape = lambda n, heads: jax.ShapeDtypeStruct((batch, n, heads, head_dim), dtype)
    return shape(T, N), shape(S or T, K), shape(S or T, K)


def content(T, dtype="float32"):
    """q, k and v in float32, rounded to another type."""
    normal = np.random.default_rng(0).normal
    return tuple(normal(size=x.shape).astype(jnp.dtype(dtype)).astype(np.float32) for x in shapes(T))


def params_of(encoding, head_dim=H):
    return learned(encoding, Sizes(N * head_dim, N, K, head_dim), np.random.default_rng(1))


def told(*arrays, encoding=NoPE(), **options):
    """The implementation, the reason, and the reasons against the others."""
    params = params_of(encoding, arrays[0].shape[3])
    found = explain(*arrays, encoding=encoding, params=params, **options)
    assert {found.implementation, *dict(found.rejected)} == set(NAMES)
    assert all(reason for _, reason in found.rejected)
    return found.implementation, found.reason, dict(found.rejected)


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(fused, "has_cuda", lambda: True)


# The choice


SIZED = [(False, 1, "dense"), (False, 362, "dense"), (False, 363, "chunked"), (False, 2**20, "chunked")]
SIZED += [(True, 363, "dense"), (True, 2896, "dense"), (True, 2897, "chunked")]


@pytest.mark.parametrize(("gpu", "T", "expected"), SIZED)
def test_small_is_dense_and_large_is_chunked(gpu, T, expected, monkeypatch):
    """By the size of the table in float32, 32 T^2 bytes, up to 4 MiB on a CPU and 256 MiB on a GPU."""
    monkeypatch.setattr(fused, "has_cuda", lambda: gpu)
    for encoding, dtype in ((NoPE(), "float32"), (T5Bias(), "float32"), *([] if gpu else [(NoPE(), "bfloat16")])):
        found, _, others = told(*shapes(T, dtype=dtype), encoding=encoding, mask=CAUSAL)
        assert found == expected
        assert not gpu or "float32" in others["cudnn"]


def test_reasons():
    """In numbers; and arrays or their shapes will do, of a cache too."""
    name, reason, others = told(*shapes(8192), encoding=T5Bias())
    assert (name, "2 GiB" in reason, "2 GiB" in others["dense"]) == ("chunked", True, True)
    asked = explain(*shapes(16), implementation=aj.Tiling(4, 4), encoding=RoPE())
    assert re.findall(r"^ *(.*?):", str(asked), re.M) == ["chunked", "not dense", "not cudnn"]
    assert explain(*content(5), mask=CAUSAL) == explain(*shapes(5), mask=CAUSAL)
    q, cache = shapes(1)[0], jax.eval_shape(lambda: KVCache.create(B, 8, K, H, heads=N))
    assert explain(q, cache=cache).implementation == "dense"


@pytest.mark.parametrize(("T", "expected"), [(5, "dense"), (1040, "chunked")])
def test_attend_runs_what_explain_says(monkeypatch, T, expected):
    ran = []
    for name, function in (("dense", "dense"), ("chunked", "blockwise")):
        real = getattr(choice, function)
        monkeypatch.setattr(choice, function, lambda *x, name=name, real=real: ran.append(name) or real(*x))
    for function in (attend, aj.attend_with_lse):
        jax.eval_shape(lambda *qkv, function=function: function(*qkv, mask=CAUSAL), *shapes(T))
    assert ran == [explain(*shapes(T), mask=CAUSAL).implementation] * 2 == [expected] * 2


def test_hooks_are_called_once():
    """Each call traced the bias twice, and called init twice, where positions were not known. Where they are, there is one bias
    per distance."""
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Counted(ALiBi):
        def init(self, key, sizes):
            seen.append("init")
            return {}

        def constants(self, sizes, length=None):
            seen.append("constants")
            return super().constants(sizes, length)

        def bias(self, p, n):
            seen.append(f"bias of {n.ndim} axes")
            return super().bias(p, n)

    options = {"encoding": Counted(), "params": {"slope": np.ones(N, np.float32)}, "mask": CAUSAL}
    index = np.arange(6, dtype=np.int32)

    def run(q, k, v, pos, way, known):
        pos = index if known else pos
        return attend(q, k, v, q_pos=pos, k_pos=pos, implementation=way, **options)

    for way, known in itertools.product(("dense", None), (False, True)):
        seen.clear()
        jax.eval_shape(functools.partial(run, way=way, known=known), *shapes(6), index)
        assert sorted(seen) == [f"bias of {1 if known else 2} axes", "constants"], (way, known)


# Refusals

DROPOUT, SINK = {"dropout": Dropout(jax.random.key(0), 0.1)}, {"sink": np.zeros(N, np.float32)}
REFUSED = [
    ("chunked", DROPOUT, "these can: dense$"),
    ("cudnn", SINK, "sink.*these can: dense, chunked$"),
    ("cudnn", {}, "NVIDIA GPU.*these can: dense, chunked$"),
    ("cudnn", {"encoding": compose(ALiBi(), aj.FIRE()), "mask": CAUSAL}, "'score'.*these can: dense, chunked$"),
]


@pytest.mark.parametrize(("name", "change", "reason"), REFUSED)
def test_an_implementation_says_why_it_cannot_serve(name, change, reason):
    with pytest.raises(NotImplementedError, match=rf"(?m)'{name}'.*{reason}"):
        told(*shapes(3), implementation=name, **change)


def test_the_kernel_returns_no_log_sum_exp_and_is_not_of_double_precision(on_a_gpu):
    with pytest.raises(NotImplementedError, match="log-sum-exp.*these can: dense, chunked$"):
        aj.attend_with_lse(*content(3), implementation="cudnn")
    with jax.enable_x64(True), pytest.raises(NotImplementedError, match="(?m)float64.*these can: dense, chunked$"):
        explain(*shapes(3, dtype="float64"), implementation="cudnn")


# cuDNN: without a bias, with extra columns where they fit into the head, with an array where it fits into memory, then tiles

FULL, IDS = "default indices", np.zeros(64, int)
GPU_CASES = {
    "rope": (64, RoPE(), CAUSAL, {}, None),
    "window": (64, ALiBi(), Mask(causal=True, window=9), {}, None),
    "columns of any length": (2**15, ALiBi(), CAUSAL, {}, None),
    "array": (64, T5Bias(), CAUSAL, {}, None),
    "array where columns do not fit": (2**13, ALiBi(), CAUSAL, {"head_dim": 128}, None),
    "columns and array too large": (2**14, ALiBi(), CAUSAL, {"head_dim": 120}, r"128 channels.* 129.*2147483648 bytes"),
    "float32": (64, RoPE(), CAUSAL, {"dtype": "float32"}, "float32"),
    "wide": (64, RoPE(), CAUSAL, {"head_dim": 256}, "128 channels.* 256"),
    "segments": (64, RoPE(), Mask(True, q_segments=IDS, k_segments=IDS), {}, FULL),
    "padding": (64, RoPE(), Mask(True, k_valid=np.arange(64) > 2), {}, FULL),
    "allowed": (64, RoPE(), Mask(True, allowed=np.eye(64, dtype=bool)), {}, FULL),
    "two-sided": (64, RoPE(), Mask(window=3), {}, FULL),
    "first keys": (64, RoPE(), Mask(True, 3, first=1), {}, FULL),
    "cross": (64, RoPE(), Mask(True, q_index=np.arange(64)), {"S": 80}, FULL),
}


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("name", GPU_CASES)
def test_the_choice_on_a_gpu(name, monkeypatch):
    monkeypatch.setattr(fused, "BIAS_BYTES", 2**30)
    T, encoding, mask, options, reason = GPU_CASES[name]
    found, _, others = told(*shapes(T, **{"dtype": "bfloat16"} | options), encoding=encoding, mask=mask)
    if reason is None:
        assert (found, "cudnn" in others["dense"]) == ("cudnn", True)
    else:
        assert found == ("dense" if T == 64 else "chunked")
        assert re.search(reason, others["cudnn"])


SPREAD = np.array([0, 1, 255, 256, 257, 4095, 32_769, 65_409, 65_535])
"""Positions that span all that columns can tell apart."""


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(
    ("pos", "dtype", "columns"),
    [
        (SPREAD - 10**9, "float16", True),
        (SPREAD + np.arange(9) // 8, "bfloat16", False),
        (jnp.arange(9), "bfloat16", False),
        (np.arange(9) / 4, "bfloat16", True),
        (jnp.arange(9) / 4, "bfloat16", True),
    ],
    ids=["offset", "too far", "traced", "fractions", "traced fractions"],
)
def test_a_linear_bias_is_columns_only_where_these_are_exact(pos, dtype, columns, monkeypatch):
    """Otherwise it is an array, if there is room for it."""
    options = {"encoding": ALiBi(), "q_pos": pos, "k_pos": pos, "mask": CAUSAL}
    assert told(*shapes(9, dtype=dtype), **options)[0] == "cudnn"
    monkeypatch.setattr(fused, "BIAS_BYTES", 0)
    found, _, others = told(*shapes(9, dtype=dtype), **options)
    assert found == ("cudnn" if columns else "dense")
    assert columns or "columns" in others["cudnn"]


def columns_of(encoding, arrays, pos, scale=1.0, params=None):
    """Queries and keys with the columns of a linear bias."""
    call = prepare(*arrays, encoding=encoding, params=params, q_pos=pos, k_pos=pos, mask=CAUSAL, scale=scale)
    return fused.with_columns(call, call.rows.q, call.cols.k, call.cols.v, scale)


OFFSETS = [(0, 1.0, "float32"), (10**9, 1.0, "bfloat16"), (-(10**9), 0.3, "float16")]


@pytest.mark.parametrize(("first", "scale", "dtype"), OFFSETS)
def test_columns_are_the_linear_bias_at_any_offset(first, scale, dtype):
    """scale * q_columns . k_columns is -m (i - j) plus a number of the row, to 2^-24 of m times the span, in 16 bits too."""
    pos = first + SPREAD
    q, k, _ = compiled(lambda *x: columns_of(ALiBi(), [a.astype(dtype) for a in x], pos, scale), *content(len(pos)))
    assert q.dtype == dtype
    q, k = (x[0, ..., H:].astype(np.float64) for x in (q, k))
    bias = float(np.float32(scale)) * np.einsum("kgtc,kzsc->kgts", q, k).reshape(N, 9, 9)
    slopes = 2.0 ** -np.array([2, 4, 6, 8])[:, None, None]
    difference = bias - slopes * pos[None, None].astype(float)
    assert np.all(np.abs(difference - difference[..., :1]) <= 2.0**-24 * 65_536 * slopes)


def test_the_gradient_of_a_position_is_that_of_its_own_columns():
    """That of the first was the sum over all keys: on an H200 it was wrong by 0.12 of the largest gradient at 4,096 tokens."""

    def each(pos):
        keys, back = jax.vjp(lambda pos: columns_of(FoX(), content(9), pos, params=params_of(FoX()))[1], pos)
        return jax.vmap(lambda s: back(jnp.zeros_like(keys).at[:, :, :, s].set(1.0))[0])(jnp.arange(9))

    found = compiled(each, np.broadcast_to(np.arange(9, dtype=np.float32) / 3, (B, N, 9)))
    np.testing.assert_array_equal((found != 0).any((1, 2)), np.eye(9, dtype=bool))


@pytest.fixture
def kernel(monkeypatch, on_a_gpu):
    """`jax.nn.dot_product_attention` with the cuDNN implementation replaced by XLA's; returns the options of each call."""
    calls, real = [], jax.nn.dot_product_attention

    def fake(q, k, v, *, implementation, bias=None, **options):
        assert implementation == "cudnn"
        assert q.shape[1] % 2 == k.shape[1] % 2 == 0, "JAX refuses gradients of odd lengths"
        assert {x.dtype for x in (q, k, v, *(() if bias is None else (bias,)))} == {q.dtype}
        calls.append({"width": q.shape[-1], "bias": None if bias is None else bias.shape, **options})
        # In float32, because XLA's path does not run on 16 bits under strict promotion.
        wide = lambda x: None if x is None else x.astype("float32")
        return real(*map(wide, (q, k, v)), bias=wide(bias), implementation="xla", **options).astype(q.dtype)

    monkeypatch.setattr(jax.nn, "dot_product_attention", fake)
    return calls


def assert_as_dense(encoding, mask=CAUSAL, dtype="bfloat16", pos=None, scale=None, T=9):
    """Output and gradients by cuDNN's adapter are those of dense in float32 from the same 16-bit numbers."""
    weight = np.random.default_rng(2).normal(size=(B, T, N, H)).astype(np.float32)
    known = pos is None or pos.dtype != np.float32

    def results(way, cast, arrays, pos_or_none, params):
        def loss(arrays, at, params):
            at = pos if known else at
            options = {"encoding": encoding, "params": params, "q_pos": at, "k_pos": at, "mask": mask, "scale": scale}
            out = attend(*(x.astype(cast) for x in arrays), implementation=way, **options).astype("float32")
            return (weight * out).sum(), out

        gradients, out = jax.grad(loss, (0, 2) if known else (0, 1, 2), has_aux=True)(arrays, pos_or_none, params)
        return out, gradients

    given = content(T, dtype), None if known else pos, params_of(encoding)
    got, expected = compiled(lambda *x: [results("cudnn", dtype, *x), results("dense", "float32", *x)], *given)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        error, unit = np.abs(a - b).max(), max(1.0, np.abs(b).max())
        assert error <= 0.02 * unit, f"{jax.tree_util.keystr(path)}: {error:.2g} of {unit:.2g}"


ARRAY = (1, N, 10, 10)
CUDNN = {
    "a window": (NoPE(), Mask(causal=True, window=3), 8, None),
    "alibi": (ALiBi(), CAUSAL, 24, None),
    "t5": (T5Bias(bidirectional=True), Mask(), 8, ARRAY),
    "kerple": (aj.Kerple(), Mask(causal=True, window=3), 8, ARRAY),
    "rope+alibi+t5": (compose(RoPE(), ALiBi(), T5Bias()), CAUSAL, 8, ARRAY),
}


@pytest.mark.parametrize("name", slow_except(CUDNN, "a window", "alibi", "t5"))
def test_the_adapter_of_cudnn(name, kernel):
    """Widths that are multiples of 8, even lengths, our mask in the words of `jax.nn`, and no array where columns serve; output
    and all gradients of dense, those of learned biases through the array."""
    encoding, mask, width, bias = CUDNN[name]
    assert_as_dense(encoding, mask)
    call = {"width": width, "bias": bias, "is_causal": mask.causal, "scale": float(np.float32(H**-0.5))}
    call["local_window_size"] = None if mask.window is None else (3, 0)
    for given in kernel:
        assert (given.pop("key_value_seq_lengths") is not None) == (not mask.causal)
        assert given == call


def test_positions_computed_from_content_are_columns(kernel):
    """Of FoX, with their gradients: one copy of the keys per query head where positions differ between these."""
    pos = np.cumsum(np.random.default_rng(1).exponential(size=(B, N, 9)), -1).astype(np.float32)
    assert_as_dense(FoX(), pos=pos)
    assert all(given["bias"] is None and given["width"] == 24 for given in kernel)


@pytest.mark.parametrize(("first", "scale"), slow_except([(0, 0.0), (10**6, -0.5), (10**9, None)], (10**9, None)))
def test_linear_biases_through_cudnn_at_far_positions(first, scale, kernel):
    """Columns of the positions themselves were wrong by up to 64 slopes there; 0 has no inverse."""
    assert_as_dense(ALiBi(), dtype="float16", pos=first + SPREAD, scale=scale)
    assert all(given["bias"] is None for given in kernel)


def test_chosen_by_itself_it_runs_where_the_program_is_lowered(kernel):
    """A program that is traced beside a GPU and lowered for a CPU is dense."""
    run = lambda way, *x: attend(*(a.astype("bfloat16") for a in x), encoding=ALiBi(), mask=CAUSAL, implementation=way)
    chosen, dense = compiled(lambda *x: (run(None, *x), run("dense", *x)), *content(6))
    np.testing.assert_array_equal(chosen, dense)
    assert len(kernel) == 1, "traced, and left out"
