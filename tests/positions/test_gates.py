"""FoX, Cable, RePo and Selective RoPE, whose positions are computed from the tokens, against the authors' code and by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import slow_except
from tests.positions.hooks import close, golden, run, self_attention, with_gradients

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


@pytest.mark.parametrize("name", slow_except(CASES, "fox", "repo", "selective_rope"))
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


def positions(encoding, params, arrays, heads=2):
    sizes = aj.Sizes(16, heads, 2, 8)
    return run(lambda params, x: aj.context_positions(encoding, params, x, np.arange(12), sizes), params, arrays["x"])


@pytest.mark.parametrize(("encoding", "heads"), [(aj.FoX(), 4), (aj.Cable(), 2)], ids=str)
def test_positions_are_sums_and_the_bias_that_of_the_authors(encoding, heads, x64):
    arrays = golden(f"frontier_{type(encoding).__name__.lower()}")
    pos = positions(encoding, gates_of(arrays), arrays, heads)
    if heads == 4:
        close(pos, -np.cumsum(arrays["log_gate"], axis=1).swapaxes(1, 2))
    n = pos[..., :, None] - pos[..., None, :]
    both = run(lambda n: (encoding.bias({}, n), encoding.slope({}).astype(n.dtype) * n), n)
    for bias in both:
        close(np.tril(bias), arrays["bias"])


def turned(encoding, pos, x):
    p = encoding.constants(aj.Sizes(16, 2, 2, 8))
    heads = jax.vmap(lambda x, pos: encoding.map_q(p, x, pos), in_axes=(1, 0), out_axes=1)
    return run(jax.vmap(heads), x, pos)


def test_positions_and_rotations_of_repo_are_the_authors(x64):
    arrays = golden("frontier_repo")
    pos = positions(aj.RePo(), repo_of(arrays), arrays)
    close(pos, arrays["positions"])
    close(turned(aj.RePo(), pos, arrays["q"]), arrays["turned_q"])
    assert np.ptp(pos) > 3, "or the rotations would prove little"


def test_rotations_of_selective_rope_are_the_authors(x64):
    arrays = golden("frontier_selective_rope")
    close(SELECTIVE.constants(aj.Sizes(16, 2, 2, 8))["temperature"], arrays["low_rank_temperature"])
    ones = np.concatenate([np.ones((2, 12, 2, 4)), np.zeros((2, 12, 2, 4))], -1)
    pos = positions(SELECTIVE, selective_of(arrays), arrays)
    assert pos.shape == (2, 2, 12, 16)
    both = turned(SELECTIVE, np.concatenate([pos, pos], 1), np.concatenate([arrays["q"], ones], 2))
    close(both[:, :, :2], arrays["low_rank_turned_q"])
    close(both[:, :, 2:], arrays["low_rank_cos_sin"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gates_are_summed_in_float32(dtype):
    """In 16 bits a sum of 4,096 steps of log 2 would stop growing; every gate is 1/2 at first."""
    x, params = np.ones((1, 4096, 4), dtype), {"w": np.zeros((1, 4), np.float32), "b": np.zeros(1, np.float32)}
    one = lambda x: aj.context_positions(aj.FoX(), params, x, np.arange(4096), aj.Sizes(4, 1, 1, 4))
    pos = run(one, x)
    assert pos.dtype == np.float32
    np.testing.assert_allclose(pos[0, 0], math.log(2) * np.arange(1, 4097), rtol=1e-5)


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
