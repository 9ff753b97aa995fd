"""FoX against the authors' code, a sum by hand, and what follows from its being a difference of sums."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax import EncodingParams, FoX, Sizes
from attnjax.attention.fused import LinearBias, columns, linear_bias_obstacle
from attnjax.attention.inputs import from_caller, prepare
from tests.positions.contextual import CAUSAL, assert_same, golden, self_attention, with_gradients

SIZES = Sizes(model=16, heads=4, kv_heads=2, head_dim=8)


def params_of(arrays):
    return EncodingParams(head={"w": arrays["gate_kernel"].T, "b": arrays["gate_bias"]})


@pytest.mark.parametrize("implementation", ["dense", aj.Tiling(5, 3)])
def test_agrees_with_the_authors_code(implementation, x64):
    arrays = golden("fox")
    out, gradients = with_gradients(FoX(), params_of(arrays), arrays, implementation=implementation)
    assert_same(out, arrays["full_out"])
    for name in ("x", "q", "k"):
        assert_same(gradients[name], arrays[f"grad_{name}"])
    assert_same(gradients["params"].head["w"].T, arrays["grad_gate_kernel"])
    assert_same(gradients["params"].head["b"], arrays["grad_gate_bias"])


@pytest.mark.slow
def test_agrees_with_the_authors_code_in_a_window(x64):
    arrays = golden("fox")
    x, q, k, v = (jnp.asarray(arrays[name]) for name in "xqkv")
    # The authors count the query among the 5 keys of its window.
    mask = aj.Mask(causal=True, window=4)
    assert_same(self_attention(FoX(), params_of(arrays), x, q, k, v, mask=mask), arrays["window_out"])


def test_positions_are_the_sums_of_the_gates(x64):
    arrays = golden("fox")
    pos = aj.context_positions(FoX(), params_of(arrays), jnp.asarray(arrays["x"]), np.arange(12), SIZES)
    assert_same(pos, -np.cumsum(arrays["log_gate"], axis=1).swapaxes(1, 2))
    n = pos[..., :, None] - pos[..., None, :]
    assert_same(jnp.tril(FoX().bias(EncodingParams(), n)), arrays["bias"])


def test_three_tokens_by_hand():
    """Gates of 1/2, 1/5 and 1/10: the last query sees the first key times 1/50, the second times 1/10."""
    x = jnp.array([[[0.0], [math.log(4)], [math.log(9)]]])
    params = EncodingParams(head={"w": jnp.array([[-1.0]]), "b": jnp.zeros(1)})
    q = k = jnp.zeros((1, 3, 1, 2))
    v = jnp.eye(3)[None, :, None, :2]
    out = self_attention(FoX(), params, x, q, k, v)
    np.testing.assert_allclose(out[0, 2, 0], np.array([1 / 50, 1 / 10]) / (1 / 50 + 1 / 10 + 1), rtol=1e-6)
    np.testing.assert_allclose(out[0, 1, 0], np.array([1 / 5, 1]) / (1 / 5 + 1), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gates_are_summed_in_float32(dtype):
    """In 16 bits a sum of 4,096 steps of log 2 would stop growing; the default of every gate is 1/2."""
    x = jnp.ones((1, 4096, 4), dtype)
    params = EncodingParams(head={"w": jnp.zeros((1, 4)), "b": jnp.zeros(1)})
    pos = aj.context_positions(FoX(), params, x, np.arange(4096), Sizes(4, 1, 1, 4))
    assert pos.dtype == jnp.float32
    np.testing.assert_allclose(pos[0, 0], math.log(2) * np.arange(1, 4097), rtol=1e-5)


@pytest.mark.slow
def test_documents_in_one_row_equal_rows_of_their_own(x64):
    """The sum runs on over the border, and only its differences count."""
    arrays = golden("fox")
    x, q, k, v = (jnp.asarray(arrays[name]) for name in "xqkv")
    ids = np.repeat([0, 1, 2], [5, 4, 3])
    mask = aj.Mask(causal=True, q_segments=ids, k_segments=ids)
    packed = self_attention(FoX(), params_of(arrays), x, q, k, v, mask=mask)
    for start, stop in ((0, 5), (5, 9), (9, 12)):
        alone = self_attention(FoX(), params_of(arrays), *(one[:, start:stop] for one in (x, q, k, v)))
        assert_same(packed[:, start:stop], alone)


def test_padding_on_the_left_changes_nothing(x64):
    arrays = golden("fox")
    x, q, k, v = (jnp.asarray(arrays[name]) for name in "xqkv")
    padded = [jnp.pad(one, [(0, 0), (3, 0), *[(0, 0)] * (one.ndim - 2)], constant_values=7.0) for one in (x, q, k, v)]
    mask = aj.Mask(causal=True, k_valid=np.arange(15) >= 3)
    out = self_attention(FoX(), params_of(arrays), *padded, mask=mask)
    assert_same(out[:, 3:], arrays["full_out"])


def test_the_bias_as_columns_for_kernels():
    """What a kernel without a bias computes from queries and keys with the extra columns, in float32."""
    encoding, n = FoX(), jnp.array([-1.5, 0.0, 2.0])
    assert isinstance(encoding, LinearBias)
    np.testing.assert_array_equal(encoding.slope(EncodingParams()) * n, encoding.bias(EncodingParams(), n))
    arrays = {name: jnp.asarray(array, jnp.float32) for name, array in golden("fox").items()}
    params, (x, q, k, v) = params_of(arrays), (arrays[name] for name in "xqkv")
    pos = aj.context_positions(encoding, params, x, np.arange(12), SIZES)
    inputs = prepare(q, from_caller(q, k, v, pos), encoding, params, pos, CAUSAL, None, None, None)
    wide_q, wide_k, wide_v, scale = columns(inputs)
    out = jax.nn.dot_product_attention(wide_q, wide_k, wide_v, scale=scale, is_causal=True, implementation="xla")
    assert_same(out[..., :8], golden("fox")["full_out"], 3e-6)
    inputs = inputs._replace(dtype=jnp.dtype("bfloat16"))
    assert linear_bias_obstacle(inputs) is None


@pytest.mark.parametrize("gate_bias", [0, 5.0, -1.0, np.float32(-1.5), np.int64(2)])
def test_initial_gates(gate_bias):
    head = FoX(gate_bias).init(jax.random.key(0), Sizes(512, 64, 64, 8)).head
    assert {name: leaf.shape for name, leaf in head.items()} == {"w": (64, 512), "b": (64,)}
    np.testing.assert_array_equal(head["b"], np.full(64, gate_bias))
    np.testing.assert_allclose([head["w"].mean(), head["w"].std()], [0, 0.02], atol=5e-4)


def test_the_initial_bias_of_x_transformers():
    np.testing.assert_array_equal(FoX(5.0).init(jax.random.key(0), SIZES).head["b"], golden("fox")["initial_gate_bias"])


@pytest.mark.parametrize("gate_bias", [float("nan"), float("inf"), "5", None, True])
def test_refuses_an_initial_bias_that_is_no_number(gate_bias):
    with pytest.raises(ValueError, match="FoX: gate_bias must be a finite number, got"):
        FoX(gate_bias)


def test_refuses_what_it_cannot_serve():
    x, q = jnp.zeros((1, 3, 16)), jnp.zeros((1, 3, 4, 8))
    params = FoX().init(jax.random.key(0), SIZES)
    with pytest.raises(ValueError, match=r"FoX rewards keys in the future .* pass Mask\(causal=True\)"):
        self_attention(FoX(), params, x, q, q, q, mask=aj.Mask())
    with pytest.raises(
        ValueError, match="computes positions from content: pass q_pos as context_positions returns them"
    ):
        aj.attend(q, q, q, encoding=FoX(), params=params, mask=CAUSAL)
    with pytest.raises(ValueError, match="FoX.* learns parameters: pass params=encoding.init"):
        self_attention(FoX(), None, x, q, q, q)
