"""What published architectures need of the modules: side by side sublayers, norms and types of embeddings, windows."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask
from attnjax.modules import (
    AttentionOptions,
    Decoder,
    Encoder,
    EncoderDecoder,
    MultiHeadAttention,
    TransformerBlock,
    generate,
)
from attnjax.positions import Learned
from tests.modules.by_hand import draw, layer_norm


def values(parameter):
    return np.asarray(parameter[...], np.float64)


def test_parallel_sublayers_read_the_same_input(config, build, call):
    block, x = build(TransformerBlock, config(parallel=True)), draw(2, 5, 16)
    inner = lambda module, norm: np.asarray(call(module, jnp.asarray(layer_norm(x, norm), jnp.float32)))
    expected = x + inner(block.attention, block.attention_norm) + inner(block.feed_forward, block.feed_forward_norm)
    np.testing.assert_allclose(call(block, x), expected, atol=1e-5)


def test_parallel_sublayers_decode_as_they_run(config, build, call, tokens):
    model = build(Decoder, config(parallel=True))
    logits, _ = call(model.decode, tokens, model.cache(2, 8))
    np.testing.assert_allclose(logits, call(model, tokens), atol=1e-5)


def test_parallel_sublayers_have_no_cross_attention(config, build):
    with pytest.raises(ValueError, match="a layer with cross-attention cannot have config.parallel=True"):
        build(EncoderDecoder, config(parallel=True))


def test_embeddings_and_positions_and_types_are_normed_as_one(config, build, call, tokens):
    model = build(Encoder, config(encoding=Learned(8), embedding_norm=True, token_types=3))
    types = np.random.default_rng(1).integers(0, 3, tokens.shape)
    table, position = values(model.embedding.table), values(model.stack.inputs[0].shared["table"])
    expected = layer_norm(
        table[tokens] + position[: tokens.shape[1]] + values(model.embedding.types)[types], model.stack.input_norm
    )
    np.testing.assert_allclose(call(model.hidden_states, tokens, types=types)[0], expected, atol=1e-5)


def test_tokens_without_types_are_of_the_first(config, build, call, tokens):
    model = build(Decoder, config(token_types=2))
    of_first = call(model, tokens, types=np.zeros_like(tokens))
    np.testing.assert_array_equal(call(model, tokens), of_first)
    logits, _ = call(model.decode, tokens, model.cache(2, 8), types=np.ones_like(tokens))
    np.testing.assert_allclose(logits, call(model, tokens, types=np.ones_like(tokens)), atol=1e-5)
    assert np.abs(logits - of_first).max() > 0.01


def test_wrong_types_are_refused(config, build, tokens):
    with pytest.raises(ValueError, match="token types were given to a model without; set token_types in its config"):
        build(Encoder, config())(tokens, types=np.zeros_like(tokens))
    model = build(Encoder, config(token_types=2))
    with pytest.raises(ValueError, match=r"token types must be in 0\.\.1, got values in 0\.\.2"):
        model(tokens, types=np.arange(16).reshape(2, 8) % 3)
    with pytest.raises(ValueError, match=r"token types must have the shape of the tokens, \(2, 8\), got \(2, 7\)"):
        model(tokens, types=np.zeros((2, 7), np.int32))


@pytest.mark.parametrize(("bias", "missing"), [(True, {"b_o"}), (False, {"b_q", "b_k", "b_v"})])
def test_bias_vectors_of_the_output_are_a_choice_of_their_own(build, bias, missing):
    layer = build(MultiHeadAttention, 16, 4, options=AttentionOptions(bias=bias, attention_output_bias=not bias))
    assert {name for name in ("b_q", "b_k", "b_v", "b_o") if getattr(layer, name) is None} == missing


def test_the_config_passes_that_choice_on(config, count):
    one = config(attention_output_bias=False)
    assert count(TransformerBlock, config()) - count(TransformerBlock, one) == 16


def test_epsilon_of_the_norm_of_queries_and_keys(config, build):
    block = build(TransformerBlock, config(qk_norm=True, qk_norm_epsilon=0.25))
    assert block.attention.q_norm.epsilon == block.attention.k_norm.epsilon == 0.25
    assert build(TransformerBlock, config(qk_norm=True)).attention.q_norm.epsilon == 1e-6


def test_logits_are_scaled(config, build, call, tokens):
    logits = lambda **fields: call(build(Decoder, config(**fields)), tokens)
    np.testing.assert_allclose(logits(logits_scale=0.25), logits() / 4, rtol=1e-6)


def test_each_layer_has_its_window(config, build, call, tokens):
    model = build(Decoder, config(windows=(2, None)))
    near, far = np.asarray(call(model.weights, tokens)) > 0
    t, s = np.indices((8, 8))
    assert (near == ((s <= t) & (s >= t - 2))).all()
    assert (far == (s <= t)).all()


def test_a_window_for_all_layers_is_one_for_each(config, build, call, tokens):
    one, each = build(Decoder, config(window=3)), build(Decoder, config(windows=(3, 3)))
    np.testing.assert_array_equal(call(one, tokens), call(each, tokens))
    np.testing.assert_array_equal(call(each, tokens, mask=Mask(window=1)), call(one, tokens, mask=Mask(window=1)))


def test_generating_with_windows_of_layers_equals_calling_again(config, build, call, tokens):
    model, found = build(Decoder, config(windows=(2, None))), tokens
    for _ in range(4):
        found = np.concatenate([found, np.asarray(call(model, found)[:, -1:].argmax(-1))], 1)
    np.testing.assert_array_equal(generate(model, tokens, 4), found[:, 8:])
