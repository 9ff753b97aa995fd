"""Gates on the output of heads: against a whole layer of the authors' code, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax import Mask, RoPE, attend
from attnjax.modules import AttentionOptions
from attnjax.modules.gating import apply_gate, gate_kernel
from tests.positions.attending import golden

D, N, K, H = 16, 4, 2, 8


def kernels(arrays, case):
    """(queries [D,N,H], gates [D,N] or [D,N,H]) of a matrix that holds, for each key head, both of its group."""
    rows = arrays[f"{case}_q_proj.weight"].reshape(K, -1, D)
    queries, gates = np.split(rows, [N // K * H], axis=1)
    gates = gates.reshape(N, D).T if case == "headwise" else gates.reshape(N, H, D).transpose(2, 0, 1)
    return queries.reshape(N, H, D).transpose(2, 0, 1), gates


@pytest.mark.slow
@pytest.mark.parametrize("case", ["headwise", "elementwise"])
def test_a_layer_of_the_authors(case, x64):
    arrays = golden("frontier_gated")
    # Two cases share these three matrices.
    w_k, w_v = (arrays[f"{name}_proj.weight"].reshape(K, H, D).transpose(2, 0, 1) for name in "kv")
    w_o = arrays["o_proj.weight"].reshape(D, N, H)
    w_q, w_gate = kernels(arrays, case)

    def layer(x):
        q, k, v = (jnp.einsum("btd,dnh->btnh", x, w) for w in (w_q, w_k, w_v))
        out = attend(q, k, v, encoding=RoPE(), mask=Mask(causal=True))
        return jnp.einsum("btnh,dnh->btd", apply_gate(out, x, jnp.asarray(w_gate)), w_o)

    x, w = jnp.asarray(arrays["x"]), arrays["w"]
    np.testing.assert_allclose(layer(x), arrays[f"{case}_out"], atol=1e-12)
    np.testing.assert_allclose(jax.grad(lambda x: (w * layer(x)).sum())(x), arrays[f"{case}_grad_x"], atol=1e-11)


def test_by_hand():
    out = jnp.array([[[[2.0, 4.0], [8.0, 16.0]]]])
    x = jnp.array([[[1.0, 2.0]]])
    of_heads = jnp.log(jnp.array([[3.0, 1.0], [1.0, 1.0]]))  # logits ln 3 and 0: gates 3/4 and 1/2
    np.testing.assert_allclose(apply_gate(out, x, of_heads), [[[[1.5, 3.0], [4.0, 8.0]]]], rtol=1e-6)
    of_channels = jnp.stack([of_heads, jnp.zeros((2, 2))], -1)
    np.testing.assert_allclose(apply_gate(out, x, of_channels), [[[[1.5, 2.0], [4.0, 8.0]]]], rtol=1e-6)


@pytest.mark.parametrize(("gated", "shape"), [("head", (256, 8)), ("channel", (256, 8, 16))])
def test_gates_are_about_a_half_at_first(gated, shape):
    kernel = gate_kernel(256, 8, 16, gated, dtype="float32", rngs=nnx.Rngs(0))[...]
    assert (kernel.shape, kernel.dtype) == (shape, jnp.float32)
    np.testing.assert_allclose(np.std(kernel), 0.02, rtol=0.05)
    x = jax.random.normal(jax.random.key(1), (2, 5, 256))
    gates = apply_gate(jnp.ones((2, 5, 8, 16)), x, kernel)
    np.testing.assert_allclose(gates.mean(), 0.5, atol=0.05)


def test_sixteen_bit_outputs_stay_so():
    out, x = jnp.ones((1, 2, 4, 8), jnp.bfloat16), jnp.ones((1, 2, 16), jnp.bfloat16)
    gated = apply_gate(out, x, jnp.full((16, 4), 0.1))
    assert gated.dtype == jnp.bfloat16
    np.testing.assert_allclose(gated.astype(jnp.float32), 1 / (1 + np.exp(-1.6)), rtol=2e-2)


def test_refuses():
    refusal = "AttentionOptions.attention_gate must be one of 'head', 'channel', got 'all'"
    with pytest.raises(ValueError, match=refusal):
        AttentionOptions(attention_gate="all")
