"""Encoder, decoder and both: embeddings and logits, packing and padding, windows, types, decoding, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.attention import Mask
from attnjax.modules import Decoder, Encoder, EncoderDecoder
from attnjax.positions import ALiBi, FoX, Learned, MRoPE, RoPE, Sinusoidal, SSMax, T5Bias, compose
from tests.modules.by_hand import TOKENS, build, call, config, layer_norm, value

SOURCE = np.random.default_rng(1).integers(0, 11, (2, 6))


def decoder(**fields):
    return build(Decoder, config(**{"layers": 1, **fields}))


# Embeddings and logits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_and_logits_are_those_in_numpy(tied):
    """With a scale of the embeddings that the tied output matrix does not have, a norm, types and positions."""
    fields = {"tie_embeddings": tied, "output_bias": not tied, "logits_scale": 0.25, "embed_scale": tied}
    model = build(Encoder, config(layers=1, **fields, encoding=Learned(9), embedding_norm=True, token_types=3))
    types = np.random.default_rng(1).integers(0, 3, TOKENS.shape)
    table, positions = value(model.embedding.table), value(model.stack.inputs[0]["table"])
    x = table[TOKENS] * (4 if tied else 1) + value(model.embedding.types)[types] + positions[:8]
    run = lambda model: (
        model.stack.embed(model.embedding(TOKENS, types), np.arange(8)),
        model.features(TOKENS, types=types),
        model(TOKENS, types=types),
    )
    embedded, features, logits = jax.jit(run)(model)
    np.testing.assert_allclose(embedded, layer_norm(x, model.stack.input_norm), atol=1e-5)
    w, bias = (table.T, 0) if tied else (value(model.embedding.w_out), value(model.embedding.b_out))
    np.testing.assert_allclose(logits, np.float64(features) @ w / 4 + bias, atol=1e-5)
    first = call(model.embedding, TOKENS, np.zeros_like(TOKENS))
    np.testing.assert_array_equal(call(model.embedding, TOKENS), first)


def test_a_traced_token_out_of_range_becomes_nan():
    embedding, wrong = decoder().embedding, TOKENS.copy()
    wrong[:, 3] = -1, 11
    isnan = np.isnan(call(embedding, wrong)).all(-1)
    assert (isnan == (np.arange(8) == 3)).all()


def test_logits_of_half_precision_are_float32():
    fields = {"encoding": T5Bias(), "norm": "rms", "qk_norm": True, "activation": "swiglu"}
    half = decoder(dtype="bfloat16", param_dtype="bfloat16", **fields)
    assert jax.eval_shape(half.features, TOKENS).dtype == jnp.bfloat16
    logits = call(half, TOKENS)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, call(decoder(**fields), TOKENS), atol=0.2)


@pytest.mark.parametrize("place", ["attention", "residual", pytest.param("embedding", marks=pytest.mark.slow)])
def test_nothing_is_dropped_without_a_key(place):
    model = decoder(**{f"{place}_dropout": 0.5})
    np.testing.assert_array_equal(call(model, TOKENS), call(decoder(), TOKENS))
    one, same, other = (call(model, TOKENS, key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other, atol=1e-3)


# Packing, padding, windows --------------------------------------------------------------------------------------


BY_CONTENT = {"path": aj.PaTH(), "fox": FoX(), "cable": aj.Cable(), "selective_rope": aj.SelectiveRoPE()}
BY_INDEX = {"learned": Learned(4), "ssmax": SSMax()}


@pytest.mark.parametrize(
    "name", [*BY_INDEX, "path", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fox", "cable"))]
)
def test_the_same_document_twice_in_a_row_has_the_same_logits(name):
    """Positions, sums and convolutions restart at each document, though no positions are given."""
    model, segments = decoder(encoding=(BY_INDEX | BY_CONTENT)[name]), np.repeat([4, 7], 4)
    logits = call(model, np.tile(TOKENS[:, :4], 2), mask=Mask(q_segments=segments, k_segments=segments))
    np.testing.assert_allclose(logits[:, 4:], logits[:, :4], atol=1e-5)


slow = [pytest.param(name, marks=pytest.mark.slow) for name in BY_CONTENT if name != "path"]


@pytest.mark.parametrize("name", ["path", *slow])
def test_padding_is_not_mixed_into_positions_from_content(name):
    """Three tokens of padding on the left, in a call and in a cache, which sums and convolutions would reach."""
    model, valid = decoder(encoding=BY_CONTENT[name]), np.arange(8) >= 3
    alone = call(model, TOKENS[:, 3:])
    np.testing.assert_allclose(call(model, TOKENS, mask=Mask(k_valid=valid))[:, 3:], alone, atol=1e-5)
    decoded, _ = call(model.decode, TOKENS, model.cache(2, 8), valid=valid)
    np.testing.assert_allclose(decoded[:, 3:], alone, atol=1e-5)


def test_each_layer_has_its_window_and_one_in_the_mask_replaces_it():
    model, t, s = build(Decoder, config(windows=(2, None))), *np.indices((8, 8))
    near, far = np.asarray(call(model.weights, TOKENS)) > 0
    assert (near == ((s <= t) & (s >= t - 2))).all()
    assert (far == (s <= t)).all()
    both = np.asarray(call(model.weights, TOKENS, mask=Mask(window=3))) > 0
    assert (both == ((s <= t) & (s >= t - 3))).all()


# Decoding --------------------------------------------------------------------------------------------------------------


def test_a_cache_goes_on_at_the_number_of_its_tokens():
    """Padding counts, and the positions of the tokens before do not."""
    model, valid = decoder(encoding=Sinusoidal()), np.arange(7) >= 2
    _, caches = call(model.decode, TOKENS[:, :7], model.cache(2, 8), pos=np.arange(7) + 100, valid=valid)
    default, seventh, next_one = (
        call(model.decode, TOKENS[:, 7:], caches, pos=pos)[0] for pos in (None, np.array([7]), np.array([107]))
    )
    np.testing.assert_allclose(default, seventh, atol=1e-6)
    assert np.abs(default - next_one).max() > 1e-3


def test_logits_of_some_positions():
    model, some = decoder(encoding=MRoPE()), np.array([[1, 6], [7, 0]])
    pos = np.random.default_rng(1).integers(0, 20, (2, 8, 3)).cumsum(1)
    expected = np.take_along_axis(np.asarray(call(model, TOKENS, pos=pos)), some[:, :, None], 1)
    np.testing.assert_allclose(call(model, TOKENS, pos=pos, query_indices=some), expected, atol=1e-5)


# Encoders and both -----------------------------------------------------------------------------------------------------


def test_an_encoder_reads_both_directions():
    """T5Bias tells earlier from later keys and ALiBi is symmetric."""
    one_sided, both = ((T5Bias(), ALiBi()), (T5Bias(bidirectional=True), ALiBi(symmetric=True)))
    encodings = lambda stack: tuple(block.attention.encoding for block in stack.blocks)
    encoder = build(Encoder, config(encoding=one_sided))
    assert encodings(encoder.stack) == encoder.config.encoding == both
    weights = call(encoder.weights, TOKENS)
    assert np.min(weights) > 0
    model = build(EncoderDecoder, config(encoding=compose(T5Bias(), RoPE())))
    assert encodings(model.encoder) == (compose(both[0], RoPE()),) * 2
    assert encodings(model.decoder) == (compose(T5Bias(), RoPE()),) * 2


@pytest.fixture(scope="module")
def both():
    return build(EncoderDecoder, config(layers=1, encoding=RoPE()))


def test_packed_pairs_equal_pairs_alone(both):
    of_source, of_target = np.array([0, 0, 1, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1, 1, 1])
    masks = {"source": of_source, "target": of_target}
    masks = {f"{name}_mask": Mask(q_segments=segments, k_segments=segments) for name, segments in masks.items()}
    packed = call(both, SOURCE, TOKENS, **masks)
    np.testing.assert_allclose(packed[:, 3:], call(both, SOURCE[:, 2:], TOKENS[:, 3:]), atol=1e-5)


def test_padding_of_the_source_is_hidden_in_a_call_and_in_decoding(both):
    valid = np.arange(6) < 4
    expected, mask = call(both, SOURCE[:, :4], TOKENS), Mask(k_valid=valid)
    np.testing.assert_allclose(call(both, SOURCE, TOKENS, source_mask=mask), expected, atol=1e-5)
    session = jax.jit(lambda model, valid: model.start(SOURCE, 8, mask=Mask(k_valid=valid)))(both, valid)
    some = np.array([[1, 6], [7, 0]])
    found, _ = call(both.decode, TOKENS, session, query_indices=some)
    np.testing.assert_allclose(found, np.take_along_axis(np.asarray(expected), some[:, :, None], 1), atol=1e-5)


def test_weights_of_three_kinds(both):
    weights = call(both.weights, SOURCE, TOKENS)
    assert [w.shape for w in weights] == [(1, 2, 4, 6, 6), (1, 2, 4, 8, 8), (1, 2, 4, 8, 6)]
    for w in weights:
        np.testing.assert_allclose(w.sum(-1), np.ones(w.shape[:-1]), atol=1e-6)


@pytest.mark.slow
def test_cross_attention_has_no_positions():
    """Coordinates of the target reach its self-attention alone, in a call, in its weights and in a step."""
    model = build(EncoderDecoder, config(layers=1, encoding=MRoPE()))
    same, plain = np.stack([np.stack([np.arange(8)] * 3, -1)] * 2), call(model, TOKENS, TOKENS)
    other = np.random.default_rng(1).integers(0, 20, (2, 8, 3)).cumsum(1)
    np.testing.assert_allclose(call(model, TOKENS, TOKENS, target_pos=same), plain, atol=1e-6)
    assert np.abs(call(model, TOKENS, TOKENS, target_pos=other) - plain).max() > 1e-3
    found = call(model.weights, TOKENS, TOKENS, target_pos=same).cross
    np.testing.assert_allclose(found, call(model.weights, TOKENS, TOKENS).cross, atol=1e-6)
    decoded, _ = model.decode(TOKENS, model.start(TOKENS, 8), pos=same)
    np.testing.assert_allclose(decoded, plain, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": 32}, "model .*got 16 and 32"),
        ({"embed_scale": True}, "embed_scale .*got False and True"),
        ({"param_dtype": "float16"}, "param_dtype .*got float32 and float16"),
    ],
)
def test_configs_that_share_no_embedding_are_refused(fields, message):
    with pytest.raises(ValueError, match=f"EncoderDecoder: {message}"):
        build(EncoderDecoder, config(), config(**fields))


@pytest.fixture(scope="module")
def models():
    return decoder(encoding=Learned(9)), decoder(token_types=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m, _: m(TOKENS[0]), r"tokens .*\[B, T\], got int64\[8\]"),
        (lambda m, _: m(TOKENS + 5), r"tokens .*0\.\.10, got values in 5\.\.15"),
        (lambda m, _: m(TOKENS, pos=np.arange(7)), r"pos \[T\] or \[B, T\].*pos int64\[7\]"),
        (lambda m, _: m(TOKENS, pos=np.arange(8) + 3), r"Learned .*0\.\.8, got positions 3\.\.10"),
        (lambda m, _: m(TOKENS, types=np.zeros_like(TOKENS)), "token_types"),
        (lambda _, m: m(TOKENS, types=np.arange(16).reshape(2, 8) % 3), r"types .*0\.\.1, got values in 0\.\.2"),
        (lambda _, m: m(TOKENS, types=np.zeros((2, 7), np.int32)), r"types .*\(2, 8\), got \(2, 7\)"),
        (lambda m, _: m.decode(TOKENS, m.cache(2, 7)), "0 of 7 tokens; 8 more"),
    ],
)
def test_calls_that_do_not_fit_are_refused(wrong, message, models):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: wrong(*models))
