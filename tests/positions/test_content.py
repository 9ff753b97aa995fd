"""Positions computed from content: by the authors' code, in pieces, in packed rows, with padding, over devices, in 16 bits."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import attnjax as aj
from attnjax.positions.projection import HIGHEST, project
from tests.cases import slow_except
from tests.positions.hooks import close, drawn, golden, run, self_attention, with_gradients

B, T, D = 2, 8, 6
SIZES = aj.Sizes(model=D, heads=4, kv_heads=2, head_dim=4)
DRAW = np.random.default_rng(0)
X, POS = DRAW.normal(size=(B, T, D)).astype(np.float32), np.arange(T)
SEGMENTS = np.array([7, 7, 7, 3, 5, 5, 5, 5])
BOTH = aj.compose(aj.RoPE(), aj.PaTH(rank=3, forget=True), aj.FoX(), aj.SelectiveRoPE(rank=3))
ROWS = ((4, 14), (4,), (2, 8))
"""Rows of the last three parts: per query head or per key head, with their features."""
PARAMS = drawn(BOTH, SIZES)
BEFORE = (None, *(DRAW.normal(size=(B, *shape)).astype(np.float32) for shape in ROWS))


@functools.partial(jax.jit, static_argnames="axis_name")
def found(x, pos=POS, before=None, **options):
    return aj.context_positions(BOTH, PARAMS, x, pos, SIZES, before, **options)


def test_pieces_equal_the_whole():
    """The last positions of a piece are all that the next one starts from."""
    whole, before, pieces = found(X, before=BEFORE), BEFORE, []
    for start, stop in ((0, 6), (6, 7), (7, T)):
        _, *piece = found(X[:, start:stop], POS[start:stop], before)
        before = (None, *(one[:, :, -1] for one in piece))
        pieces.append(piece)
    for part, expected in enumerate(whole[1:]):
        close(np.concatenate([piece[part] for piece in pieces], 2), expected, 1e-5)


def test_a_packed_document_has_the_bits_of_a_row_of_its_own():
    """Whatever lies beside it, convolutions included; in the first document the past goes on."""
    packed = found(X, before=BEFORE, segments=SEGMENTS)
    for document in np.unique(SEGMENTS):
        at = np.flatnonzero(document == SEGMENTS)
        # At the front of a row whose other tokens are a document of zeros.
        moved = np.zeros_like(X)
        moved[:, : len(at)] = X[:, at]
        before = jax.tree.map(lambda leaf: leaf * (at[0] == 0), BEFORE)  # noqa: B023, called at once
        alone = found(moved, before=before, segments=np.array(np.arange(T) >= len(at), int))
        for one, expected in zip(packed[1:], alone[1:], strict=True):
            np.testing.assert_array_equal(one[:, :, at], expected[:, :, : len(at)])


def test_padding_counts_as_zeros():
    """On the left too, where a convolution would mix it into the first token."""
    valid = np.arange(T) >= np.array([[3], [0]])
    padded, zeros = (np.where(valid[..., None], X, np.float32(junk)) for junk in (np.nan, 0))
    jax.tree.map(np.testing.assert_array_equal, found(padded, valid=valid), found(zeros))


def test_tokens_over_devices_equal_one_row():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("t",))
    call = lambda x, pos: found(x, pos, BEFORE, axis_name="t")
    specs = (P("t"), *(P(None, None, "t"),) * 3)
    over = jax.shard_map(call, mesh=mesh, in_specs=(P(None, "t"), P("t")), out_specs=specs)
    for one, expected in zip(run(over, X, POS), found(X, before=BEFORE), strict=True):
        close(one, expected, 1e-5)


@pytest.mark.parametrize(
    ("encoding", "pos", "options", "message"),
    [
        *(
            (aj.FoX(), pos, {}, r"pos \[T\] or \[B, T\]")
            for pos in (POS[:4], np.int32(0), POS[None], POS.reshape(2, 4))
        ),
        (aj.FoX(), POS, {}, "FoX.* learns parameters"),
        (BOTH, POS, {}, "PaTH.* learns parameters"),
        (BOTH, POS, {"before": np.zeros((B, 4))}, "before must be a tuple with one entry for each of the 4 parts"),
        (BOTH, POS, {"segments": SEGMENTS, "axis_name": "t"}, "segments and axis_name"),
    ],
)
def test_refuses_what_does_not_fit(encoding, pos, options, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: aj.context_positions(encoding, None, X, pos, SIZES, **options))


# FoX, Cable, RePo and Selective RoPE of their authors ---------------------------------------------------------------

SELECTIVE = aj.SelectiveRoPE(rank=4)


def gates_of(arrays, prefix=""):
    return {"w": arrays[f"{prefix}gate_kernel"].T, "b": arrays[f"{prefix}gate_bias"]}


def repo_of(arrays, prefix=""):
    return {name: arrays[f"{prefix}{name}_kernel"] for name in ("gate", "content")} | {
        "out": arrays[f"{prefix}final_kernel"].T
    }


def selective_of(arrays, prefix=""):
    """Weights of torch are [out, in]."""
    by_head = lambda name: arrays[f"low_rank_{prefix}{name}.weight"].reshape(2, 4, 4).swapaxes(1, 2)
    down = arrays[f"low_rank_{prefix}phi_proj.0.weight"].T
    return {"down": down, "up": by_head("phi_proj.1"), "convolution": by_head("phi_conv1d")}


CASES = {
    # Encoding, parameters of the arrays, the name of the output, and how to call `attend`.
    "fox": (aj.FoX(), gates_of, "full_out", {}),
    # The authors count the query among the 5 keys of its window.
    "fox, window": (aj.FoX(), gates_of, "window_out", {"mask": aj.Mask(causal=True, window=4)}),
    "cable": (aj.Cable(), gates_of, "out", {"scale": 1}),
    "repo": (aj.RePo(), repo_of, "out", {}),
    "selective_rope": (SELECTIVE, selective_of, "low_rank_out", {}),
}


@pytest.mark.parametrize("name", slow_except(CASES, "fox", "cable", "repo", "selective_rope"))
def test_attention_and_gradients_are_those_of_the_authors(name, x64):
    arrays, (encoding, params_of, output, options) = golden(f"frontier_{name.split(',')[0]}"), CASES[name]
    v = jnp.asarray(arrays["v"])
    call = lambda params, x, q, k: self_attention(encoding, params, x, q, k, v, **options)
    out, gradients = with_gradients(call, arrays["w"], params_of(arrays), *(arrays[key] for key in "xqk"))
    close(out, arrays[output])
    if name == "fox, window":
        return
    jax.tree.map(close, gradients[0], params_of(arrays, "grad_"))
    prefix = "low_rank_grad" if name == "selective_rope" else "grad"
    for key, gradient in zip("xqk", gradients[1:], strict=True):
        if f"{prefix}_{key}" in arrays:
            close(gradient, arrays[f"{prefix}_{key}"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gates_are_summed_in_float32(dtype):
    """In 16 bits a sum of 4,096 steps of log 2 would stop growing; every gate is 1/2 at first."""
    x, params = np.ones((1, 4096, 4), dtype), {"w": np.zeros((1, 4), np.float32), "b": np.zeros(1, np.float32)}
    one = lambda x: aj.context_positions(aj.FoX(), params, x, np.arange(4096), aj.Sizes(4, 1, 1, 4))
    pos = run(one, x)
    assert pos.dtype == np.float32
    np.testing.assert_allclose(pos[0, 0], math.log(2) * np.arange(1, 4097), rtol=1e-5)


@pytest.mark.parametrize("encoding", [aj.FoX(), aj.Cable()], ids=str)
def test_kernels_are_given_the_slope_of_the_bias(encoding):
    n = np.float32([2, 3])
    np.testing.assert_array_equal(encoding.slope({}) * n, run(lambda n: encoding.bias({}, n), n))


def test_refuses_sizes_that_do_not_fit():
    for encoding in (aj.RePo(), aj.SelectiveRoPE()):
        with pytest.raises(ValueError, match=f"{type(encoding).__name__} .* head dimension must be even, got 5"):
            encoding.constants(aj.Sizes(16, 2, 2, 5))
    sizes = aj.Sizes(15, 2, 2, 8)
    shapes = jax.eval_shape(lambda: SELECTIVE.init(jax.random.key(0), sizes))
    with pytest.raises(ValueError, match="chunk for each of 2 key heads, which do not divide D = 15"):
        jax.eval_shape(
            lambda p, x: aj.context_positions(SELECTIVE, p, x, np.arange(3), sizes), shapes, np.ones((1, 3, 15))
        )


# `project`: the bits of a plain product in float32; in 16 bits exact products of rounded operands, and so in its gradient ---

LEFT, RIGHT, DY = (DRAW.normal(size=shape).astype(np.float32) for shape in ((50, 32), (32, 5), (50, 5)))


def test_float32_is_the_plain_product():
    plain = lambda x, w: jnp.dot(x, w, precision=HIGHEST)
    of = lambda product, w: jax.make_jaxpr(jax.grad(lambda x, w: jnp.sin(product(x, w)).sum(), argnums=(0, 1)))(LEFT, w)
    for w in (RIGHT, RIGHT[:, 0]):
        assert str(of(project, w)) == str(of(plain, w))


@pytest.mark.parametrize(("dtype", "u"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_sixteen_bits_round_the_factors_alone(dtype, u):
    """Of the gradient the cotangent is rounded, and the result."""
    x = LEFT.astype(dtype)
    y, dx, dw = run(lambda x, w, dy: (lambda y, pull: (y, *pull(dy)))(*jax.vjp(project, x, w)), x, RIGHT, DY)
    rounded_x, rounded_w, dy = (np.asarray(one, np.float64) for one in (x, RIGHT.astype(dtype), DY))
    assert (y.dtype, dx.dtype, dw.dtype) == (np.float32, x.dtype, np.float32)
    close(y, rounded_x @ rounded_w, 1e-5)
    for found, left, right in ((dx, dy, rounded_w.T), (dw, rounded_x.T, dy)):
        bound = u * 1.01 * (np.abs(left) @ np.abs(right) + np.abs(left @ right)) + 1e-5
        error = np.abs(found.astype(np.float64) - left @ right)
        assert np.all(error <= bound)
        assert error.max() > u / 100
