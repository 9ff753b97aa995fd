"""Encoder and decoder together: size of the published model, what sees what, packing, gates and decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask
from attnjax.modules import EncoderDecoder, Gates, Memory, TransformerConfig
from attnjax.positions import Learned, RoPE, T5Bias


@pytest.fixture
def source() -> np.ndarray:
    """Two sequences of six tokens below 11."""
    return np.random.default_rng(1).integers(0, 11, (2, 6))


def test_the_original_base_model_has_the_published_size(count):
    D, F, L, V = 512, 2048, 6, 37_000
    attention, feed_forward, norm = 4 * D * D, 2 * D * F + F + D, 2 * D
    encoder = L * (attention + feed_forward + 2 * norm)
    decoder = L * (2 * attention + feed_forward + 3 * norm)
    parameters = count(EncoderDecoder, TransformerConfig.original_base(V))
    assert parameters == encoder + decoder + V * D == 63_045_632
    # Table 3 of the paper prints 65 million, for a vocabulary of about 37,000.
    assert abs(parameters / 65e6 - 1) < 0.04


def test_matrices_of_the_vocabulary(config, count):
    layers = count(EncoderDecoder, config()) - 11 * 16
    assert count(EncoderDecoder, config(), share_embedding=False) == layers + 2 * 11 * 16
    assert count(EncoderDecoder, config(tie_embeddings=False)) == layers + 2 * 11 * 16
    untied = config(tie_embeddings=False)
    assert count(EncoderDecoder, untied, untied, share_embedding=False) == layers + 3 * 11 * 16


def test_target_is_causal_and_source_is_not(config, build, tokens, source):
    model = build(EncoderDecoder, config(layers=1, norm_position="post"))
    x, y = model.embedding(source), model.embedding(tokens)

    def features(x, y):
        memory = Memory(model.encoder(x, pos=np.arange(6)))
        return model.decoder(y, memory, mask=Mask(causal=True), pos=np.arange(8)).sum(-1)[0]

    to_source, to_target = jax.jit(jax.jacobian(features, (0, 1)))(x, y)
    assert (np.abs(to_source[:, 0]).sum(-1) > 0).all()
    np.testing.assert_array_equal(np.abs(to_target[:, 0]).sum(-1) > 0, np.tri(8, dtype=bool))
    assert np.abs(to_source[:, 1]).max() == np.abs(to_target[:, 1]).max() == 0


def test_padding_of_the_source_is_seen_by_nobody(config, build, call, tokens, source):
    model, valid = build(EncoderDecoder, config(layers=1)), np.array([True] * 4 + [False] * 2)
    expected = call(model, source[:, :4], tokens)
    np.testing.assert_allclose(call(model, source, tokens, source_mask=Mask(k_valid=valid)), expected, atol=1e-5)


def test_packed_pairs_equal_pairs_alone(config, build, call, tokens, source):
    model = build(EncoderDecoder, config(layers=1, encoding=RoPE()))
    of_source, of_target = np.array([0, 0, 1, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1, 1, 1])
    packed = call(
        model,
        source,
        tokens,
        source_mask=Mask(q_segments=of_source, k_segments=of_source),
        target_mask=Mask(q_segments=of_target, k_segments=of_target),
    )
    np.testing.assert_allclose(packed[:, 3:], call(model, source[:, 2:], tokens[:, 3:]), atol=1e-5)


def test_weights_and_gates_of_three_kinds(config, build, call, tokens, source):
    model = build(EncoderDecoder, config(kv_heads=2, layers=1))
    weights = call(model.weights, source, tokens)
    assert [w.shape for w in weights] == [(1, 2, 4, 6, 6), (1, 2, 4, 8, 8), (1, 2, 4, 8, 6)]
    for w in weights:
        np.testing.assert_allclose(w.sum(-1), np.ones(w.shape[:-1]), atol=1e-6)
    loss = lambda gates: model(source, tokens, gates=gates).std()
    importance = jax.jit(jax.grad(loss))(Gates(*(jnp.ones((1, 4)) for _ in range(3))))
    assert all(np.all(np.abs(gradient) > 0) for gradient in importance)


def test_encoder_and_decoder_may_have_encodings_of_their_own(config, build, call, tokens, source):
    """T5: both directions in the encoder, the past in the decoder, none across."""
    both, past = (config(encoding=T5Bias(8, bidirectional=way), share_encoding=True) for way in (True, False))
    model = build(EncoderDecoder, both, past)
    encodings = [stack.blocks[1].attention.encoding.bidirectional for stack in (model.encoder, model.decoder)]
    assert encodings == [True, False]
    assert call(model, source, tokens).shape == (2, 8, 11)


def test_decoding_equals_the_whole_target(config, build, call, tokens, source):
    model = build(EncoderDecoder, config(layers=1, encoding=Learned(8)))
    valid = np.array([[True] * 6, [True, True, True, False, False, True]])
    expected = call(model, source, tokens, source_mask=Mask(k_valid=valid))
    session = jax.jit(lambda source, valid: model.start(source, 8, mask=Mask(k_valid=valid)))(source, valid)
    first, session = call(model.decode, tokens[:, :7], session)
    last, _ = call(model.decode, tokens[:, 7:], session)
    np.testing.assert_allclose(jnp.concatenate([first, last], 1), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": 32}, "model must be the same in encoder and decoder, got 16 and 32"),
        ({"vocab": 12}, "vocab must be the same in encoder and decoder, which share an embedding, got 11 and 12"),
        ({"embed_scale": True}, "embed_scale must be the same .* share an embedding, got False and True"),
        ({"embed_std": 0.1}, "embed_std must be the same .* share an embedding, got None and 0.1"),
        ({"token_types": 2}, "token_types must be the same .* share an embedding, got 0 and 2"),
        ({"dtype": "bfloat16"}, "dtype must be the same .* share an embedding, got float32 and bfloat16"),
        ({"param_dtype": "float16"}, "param_dtype must be the same .* share an embedding, got float32 and float16"),
    ],
)
def test_configs_that_do_not_fit_are_refused(config, build, fields, message):
    with pytest.raises(ValueError, match=message):
        build(EncoderDecoder, config(), config(**fields))


def test_embeddings_of_their_own_may_differ(config, build, call, source):
    """What the encoder alone scales is scaled: with its own embedding the field acts."""
    one, other = (
        build(EncoderDecoder, config(embed_scale=scaled), config(), share_embedding=False) for scaled in (False, True)
    )
    np.testing.assert_array_equal(other.source_embedding(source), 4 * one.source_embedding(source))
    np.testing.assert_array_equal(other.embedding(source), one.embedding(source))
