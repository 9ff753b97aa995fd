"""One layer: the order of norms and residuals, its residual branch at zero, cross-attention, dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask
from attnjax.modules import Memory, TransformerBlock
from attnjax.modules.dropout import drop, split
from attnjax.positions import ALiBi, Learned, T5Bias, compose
from tests.modules.by_hand import draw, layer_norm


def rms_norm(x, norm, epsilon=1e-6):
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * np.asarray(norm.scale[...])


@pytest.fixture
def sublayers(call):
    """Self-attention, cross-attention and feed-forward of a block as functions of NumPy arrays."""

    def of(block, memory):
        compiled = lambda module, *rest: lambda x: np.asarray(call(module, jnp.asarray(x, jnp.float32), *rest))
        return compiled(block.attention), compiled(block.cross, memory), compiled(block.feed_forward)

    return of


@pytest.mark.parametrize(("norm", "formula"), [("layer", layer_norm), ("rms", rms_norm)])
def test_post_norm_is_that_of_the_paper(config, build, call, sublayers, norm, formula):
    block = build(TransformerBlock, config(norm=norm, norm_position="post"), cross=True)
    x, memory = draw(2, 5, 16), draw(2, 3, 16, seed=1)
    attend, cross, feed_forward = sublayers(block, memory)
    expected = formula(x + attend(x), block.attention_norm)
    expected = formula(expected + cross(expected), block.cross_norm)
    expected = formula(expected + feed_forward(expected), block.feed_forward_norm)
    np.testing.assert_allclose(call(block, x, Memory(memory)), expected, atol=1e-5)


def test_pre_norm_norms_the_input_of_each_sublayer(config, build, call, sublayers):
    block = build(TransformerBlock, config(), cross=True)
    x, memory = draw(2, 5, 16), draw(2, 3, 16, seed=1)
    attend, cross, feed_forward = sublayers(block, memory)
    expected = x + attend(layer_norm(x, block.attention_norm))
    expected = expected + cross(layer_norm(expected, block.cross_norm))
    expected = expected + feed_forward(layer_norm(expected, block.feed_forward_norm))
    np.testing.assert_allclose(call(block, x, Memory(memory)), expected, atol=1e-5)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_branches_of_zero_leave_the_identity_up_to_the_norm(config, build, call, norm_position):
    block, x = build(TransformerBlock, config(norm_position=norm_position)), draw(2, 5, 16)
    for parameter in (block.attention.w_o, block.attention.b_o, block.feed_forward.w_out, block.feed_forward.b_out):
        parameter[...] = jnp.zeros_like(parameter[...])
    expected = x
    if norm_position == "post":
        expected = layer_norm(layer_norm(x, block.attention_norm), block.feed_forward_norm)
    np.testing.assert_allclose(call(block, x), expected, atol=1e-5)


def test_norms_do_not_lose_a_small_spread_around_a_large_mean(config, build, call):
    block = build(TransformerBlock, config(norm_position="post"))
    for parameter in (block.attention.w_o, block.attention.b_o, block.feed_forward.w_out, block.feed_forward.b_out):
        parameter[...] = jnp.zeros_like(parameter[...])
    x = draw(1, 1, 16)
    shifted = jnp.round(x * 64) / 64 + 4096
    expected = layer_norm(layer_norm(shifted, block.attention_norm), block.feed_forward_norm)
    np.testing.assert_allclose(call(block, shifted), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "cross", "parameters"),
    [
        ({}, False, 4 * 256 + 64 + (2 * 16 * 24 + 24 + 16) + 2 * 32),
        ({}, True, 2 * (4 * 256 + 64) + (2 * 16 * 24 + 24 + 16) + 3 * 32),
        ({"norm": "rms", "bias": False, "activation": "swiglu"}, False, 4 * 256 + 3 * 16 * 24 + 2 * 16),
        ({"bias": False, "feed_forward_bias": True}, False, 4 * 256 + (2 * 16 * 24 + 24 + 16) + 2 * 32),
        ({"encoding": compose(Learned(9), T5Bias(8))}, False, 4 * 256 + 64 + (2 * 16 * 24 + 24 + 16) + 2 * 32 + 4 * 8),
    ],
)
def test_parameters_counted_by_hand(config, count, fields, cross, parameters):
    assert count(TransformerBlock, config(**fields), cross=cross) == parameters


def test_weights_are_those_of_the_call(config, build, call, sublayers):
    block = build(TransformerBlock, config(encoding=ALiBi()), cross=True)
    x, memory, mask = draw(2, 5, 16), Memory(draw(2, 3, 16, seed=1)), Mask(causal=True)
    own, cross = call(block.weights, x, memory, mask=mask)
    np.testing.assert_allclose(
        own, call(block.attention.weights, layer_norm(x, block.attention_norm).astype(np.float32), mask=mask), atol=1e-6
    )
    halfway = x + call(block.attention, layer_norm(x, block.attention_norm).astype(np.float32), mask=mask)
    halfway = layer_norm(halfway, block.cross_norm).astype(np.float32)
    np.testing.assert_allclose(cross, call(block.cross.weights, halfway, memory.x), atol=1e-5)


def test_decoding_with_a_memory_equals_the_whole_sequence(config, build, call):
    block = build(TransformerBlock, config(encoding=ALiBi()), cross=True)
    x, valid = draw(2, 5, 16), np.array([[True] * 3, [True, False, True]])
    memory = Memory(draw(2, 3, 16, seed=1), Mask(k_valid=valid))
    expected = call(block, x, memory, mask=Mask(causal=True))
    past, cache = call(block.project_memory, memory), block.attention.cache(2, 5)
    first, cache = call(block.decode, x[:, :4], cache, past)
    last, _ = call(block.decode, x[:, 4:], cache, past)
    np.testing.assert_allclose(jnp.concatenate([first, last], 1), expected, atol=1e-5)


def test_a_memory_goes_with_cross_attention(config, build):
    x = jnp.ones((1, 2, 16))
    with pytest.raises(ValueError, match="a layer with cross-attention was given no memory"):
        build(TransformerBlock, config(), cross=True)(x)
    plain = build(TransformerBlock, config())
    for wrong in (plain, plain.weights):
        with pytest.raises(ValueError, match="a layer without cross-attention was given a memory"):
            wrong(x, Memory(x))
    with pytest.raises(ValueError, match="a layer without cross-attention was given a memory"):
        plain.project_memory(Memory(x))


def test_a_query_subset_goes_without_dropout(config, build):
    block, key = build(TransformerBlock, config(attention_dropout=0.5)), jax.random.key(0)
    with pytest.raises(ValueError, match="query_indices are for calls without dropout, got a key too"):
        block(jnp.ones((1, 2, 16)), query_indices=jnp.zeros((1, 1), int), key=key)


def test_a_layer_must_be_one_of_the_config(config, build):
    with pytest.raises(ValueError, match=r"layer must be in 0\.\.1, got 2"):
        build(TransformerBlock, config(), 2)


def test_dropout_scales_what_it_keeps_and_repeats_with_its_key():
    key, x = jax.random.key(0), jnp.ones((100, 100))
    dropped = np.asarray(drop(x, key, 0.25))
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / 0.75], rtol=1e-6)
    np.testing.assert_allclose(dropped.mean(), 1, atol=0.03)
    np.testing.assert_array_equal(dropped, drop(x, key, 0.25))
    assert drop(x, None, 0.25) is x
    assert drop(x, key, 0.0) is x


def test_a_block_drops_only_with_a_key(config, build, call):
    block, x = build(TransformerBlock, config(attention_dropout=0.5, residual_dropout=0.5)), draw(2, 5, 16)
    plain = build(TransformerBlock, config())
    results = [call(block, x, key=jax.random.key(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.allclose(results[0], results[2], atol=1e-3)
    np.testing.assert_array_equal(call(block, x), call(plain, x))


def test_keys_must_be_typed():
    with pytest.raises(ValueError, match=r"key must be one typed key made by jax\.random\.key"):
        split(jnp.zeros(2, jnp.uint32), 2)
    assert split(None, 3) == [None] * 3
