"""The temperature of Llama 4 against transformers, at every step and far beyond float32's whole numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import EncodingParams, Llama4Temperature, Mask, attend
from tests.cases import OPTIMISED, slow_except
from tests.positions.contextual import assert_same, golden


def factors(encoding, pos):
    return encoding.map_q(EncodingParams(), jnp.ones((len(pos), 1)), jnp.asarray(pos))[:, 0]


def test_steps_are_those_of_transformers(x64):
    arrays = golden("llama4")
    assert_same(factors(Llama4Temperature(), arrays["scale_position"].astype(np.int32)), arrays["scale"])


def test_a_layer_of_transformers(x64):
    """A whole attention layer without RoPE: projections, two key heads for four heads, steps of 3."""
    arrays = golden("llama4")
    x = jnp.asarray(arrays["x"])
    project = lambda name, heads: (x @ arrays[f"{name}_proj.weight"].T).reshape(2, 12, heads, 8)
    q, k, v = project("q", 4), project("k", 2), project("v", 2)
    out = attend(q, k, v, encoding=Llama4Temperature(3, 0.4), mask=Mask(causal=True))
    assert_same(out.reshape(2, 12, 32) @ arrays["o_proj.weight"].T, arrays["temperature_out"])


@pytest.mark.parametrize("floor_scale", [3, 7, 10, 8192])
def test_the_steps_are_where_they_should_be(floor_scale):
    """Single precision, around every multiple: (pos + 1) / L rounded up to a whole number would be a step too early."""
    whole = np.array([1, 2, 3, 500, 1000]) * floor_scale
    pos = np.concatenate([whole - 2, whole - 1, whole]).astype(np.int32)
    expected = 1 + 0.1 * np.log1p((pos + 1) // floor_scale)
    np.testing.assert_allclose(factors(Llama4Temperature(floor_scale), pos), expected, rtol=3e-7)


SCALES = {
    "all": np.arange(2, 301),
    "below 1": np.array([n for n in range(2, 301) if np.float32(n) * (1 / np.float32(n)) < 1]),
}


@pytest.mark.parametrize("name", slow_except(SCALES, "below 1"))
def test_the_steps_of_every_scale_in_compiled_programs(name):
    """A division by a constant is compiled to a product with its reciprocal: 41 * (1 / 41) is below 1."""
    scales, steps = SCALES[name], np.array([1, 2, 3, 7, 41, 100, 1000, 30_000])
    pos = (scales[:, None, None] * steps[:, None] + np.arange(-2, 1)).reshape(len(scales), -1).astype(np.int32)
    expected = 1 + 0.1 * np.log1p((pos + 1) // scales[:, None])
    found = lambda pos: [factors(Llama4Temperature(int(L)), row) for L, row in zip(scales, pos, strict=True)]
    found = jax.jit(found).lower(list(pos)).compile(OPTIMISED)(list(pos))
    np.testing.assert_allclose(found, expected, rtol=3e-7)


def test_positions_before_zero_and_far_away():
    pos = np.array([-(2**31), -8193, -1, 2**31 - 1])
    steps = np.array([0, 0, 0, 2**31 / 8192])
    np.testing.assert_allclose(factors(Llama4Temperature(), pos.astype(np.int32)), 1 + 0.1 * np.log1p(steps), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"floor_scale": 0}, "Llama4Temperature: floor_scale must be positive and finite, got 0"),
        ({"attn_scale": float("nan")}, "Llama4Temperature: attn_scale must be positive and finite, got nan"),
    ],
)
def test_refuses_hyperparameters(options, message):
    with pytest.raises(ValueError, match=message):
        Llama4Temperature(**options)
