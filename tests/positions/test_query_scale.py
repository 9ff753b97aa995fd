"""SSMax, LogN and the temperature of Llama 4 against implementations of others, by hand, and before and between positions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from tests.cases import OPTIMISED
from tests.positions.hooks import CAUSAL, close, golden, run, with_gradients


def factors(encoding, p, pos):
    return run(lambda p, pos: encoding.map_q(p, jnp.ones((len(pos), 1)), pos)[:, 0], p, pos)


@pytest.mark.parametrize("biased", [False, True])
def test_ssmax_agrees_with_the_reference_arrays(biased, x64):
    arrays, encoding = golden("frontier_scalable_softmax"), aj.SSMax(biased=biased)
    params = {name: arrays[name] for name in ("sb" if biased else "s")}
    options = {"encoding": encoding, "mask": CAUSAL, "implementation": "dense"}
    call = lambda params, q, k: aj.attend(q, k, jnp.asarray(arrays["v"]), params=params, **options)
    if not biased:
        close(run(call, params, arrays["q"], arrays["k"]), arrays["plain_out"])
        return
    out, (of_params, *of_qk) = with_gradients(call, arrays["w"], params, arrays["q"], arrays["k"])
    close(out, arrays["biased_out"])
    for name, gradient in (of_params | dict(zip("qk", of_qk))).items():
        close(gradient, arrays[f"grad_{name}"])


def test_ssmax_by_hand():
    """s ln(pos + 1), so that the third query weighs logits of 0, 1, 2 as 3^0, 3^1, 3^2; 0 before position 0."""
    pos = np.float32([-3, -0.5, 0, 0.5, 2, 6.25, 2**31])
    expected = 2 * np.log(np.maximum(pos, 0) + 1)
    np.testing.assert_allclose(factors(aj.SSMax(), {"s": np.float32(2)}, pos), expected, rtol=1e-6)
    biased = factors(aj.SSMax(biased=True), {"s": np.float32(2), "b": np.float32(3)}, pos)
    np.testing.assert_allclose(biased, expected + 3, rtol=1e-6)
    weights = np.exp(np.arange(3) * factors(aj.SSMax(), {"s": np.float32(1)}, np.array([2])))
    np.testing.assert_allclose(weights / weights.sum(), [1 / 13, 3 / 13, 9 / 13], rtol=1e-6)


def test_gradients_of_ssmax_are_finite_from_the_first_position_on():
    pos = np.float32([-5, -0.5, 0, 1])
    total = lambda s, q: aj.SSMax().map_q({"s": s}, q, pos).sum()
    found = run(jax.grad(total, argnums=(0, 1)), np.float32(0.4), np.ones((4, 2), np.float32))
    assert all(np.isfinite(leaf).all() for leaf in found)


def test_log_n_by_hand():
    """Up to the trained length nothing changes."""
    found = factors(aj.LogN(length=8), {}, np.array([-3, 0, 7, 63, 511]))
    np.testing.assert_allclose(found, [1, 1, 1, 2, 3], rtol=1e-6)


# Llama 4 -------------------------------------------------------------------------------------------------------------


def test_a_layer_of_llama4_of_transformers(x64):
    """Without RoPE: projections, two key heads for four heads, steps of 3; and the steps of the default configuration."""
    arrays = golden("frontier_llama4")
    x = arrays["x"]
    project = lambda name, heads: (x @ arrays[f"{name}_proj.weight"].T).reshape(2, 12, heads, 8)
    options = {"encoding": aj.Llama4Temperature(3, 0.4), "mask": CAUSAL, "implementation": "dense"}
    out = run(lambda q, k, v: aj.attend(q, k, v, **options), project("q", 4), project("k", 2), project("v", 2))
    close(out.reshape(2, 12, 32) @ arrays["o_proj.weight"].T, arrays["temperature_out"])
    close(factors(aj.Llama4Temperature(), {}, arrays["scale_position"].astype(np.int32)), arrays["scale"])


def test_steps_are_where_they_should_be_in_compiled_programs():
    """Single precision, around multiples: a division by a constant is compiled to a product with its reciprocal, and

    n * (1 / n) is below 1 for n = 41, 47, 55 ..., while (pos + 1) / L rounded up would be a step too early elsewhere.
    """
    below = [n for n in range(2, 301) if np.float32(n) * (1 / np.float32(n)) < 1]
    scales, steps = np.array([3, 7, 10, *below[::6]]), np.array([1, 2, 3, 7, 41, 100, 1000, 30_000])
    assert 41 in below
    pos = (scales[:, None, None] * steps[:, None] + np.arange(-2, 1)).reshape(len(scales), -1).astype(np.int32)
    one = lambda L, row: aj.Llama4Temperature(int(L)).map_q({}, jnp.ones((len(row), 1)), row)[:, 0]
    all_scales = jax.jit(lambda pos: [one(L, row) for L, row in zip(scales, pos, strict=True)])
    found = all_scales.lower(list(pos)).compile(OPTIMISED)(list(pos))
    np.testing.assert_allclose(found, 1 + 0.1 * np.log1p((pos + 1) // scales[:, None]), rtol=3e-7)


def test_positions_before_zero_and_far_away():
    pos = np.array([-(2**31), -8193, -1, 0, 8190, 8191, 2**31 - 1])
    expected = 1 + 0.1 * np.log1p([0, 0, 0, 0, 0, 1, 2**31 / 8192])
    np.testing.assert_allclose(factors(aj.Llama4Temperature(), {}, pos.astype(np.int32)), expected, rtol=1e-6)
    assert math.isclose(1 + 0.1 * math.log(2), expected[5])
