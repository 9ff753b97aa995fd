"""Encoder and decoder: order of tokens, causality, probes, gates, where encodings act, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.attention import Mask
from attnjax.modules import Decoder, Encoder
from attnjax.modules.embedding import TokenEmbedding
from attnjax.positions import ALiBi, Learned, NoPE, PositionEncoding, RoPE, Sinusoidal, T5Bias, compose

ORDER = np.array([3, 0, 7, 1, 6, 2, 5, 4])


class AddOne(PositionEncoding):
    """Shows how often `embed` is called."""

    def embed(self, shared, x, pos):
        return x + jnp.ones((), x.dtype)


def permuted(weights):
    return weights[..., ORDER, :][..., ORDER]


def test_permuting_tokens_permutes_attention_and_nothing_else(config, build, call, tokens):
    encoder = build(Encoder, config())
    plain, shuffled = call(encoder.weights, tokens), call(encoder.weights, tokens[:, ORDER])
    np.testing.assert_allclose(shuffled, permuted(plain), atol=1e-6)
    np.testing.assert_allclose(call(encoder, tokens[:, ORDER]), call(encoder, tokens)[:, ORDER], atol=1e-5)


@pytest.mark.parametrize("encoding", [Sinusoidal(), RoPE(), ALiBi(symmetric=True)], ids=["embedding", "map", "bias"])
def test_an_encoding_ends_the_symmetry(config, build, call, tokens, encoding):
    encoder = build(Encoder, config(encoding=encoding))
    plain, shuffled = call(encoder.weights, tokens), call(encoder.weights, tokens[:, ORDER])
    assert np.abs(shuffled - permuted(plain)).max() > 0.01


def test_a_causal_model_without_encoding_still_knows_order(config, build, call, tokens):
    decoder = build(Decoder, config())
    assert np.abs(call(decoder, tokens[:, ORDER]) - call(decoder, tokens)[:, ORDER]).max() > 0.01


@pytest.mark.parametrize(("window", "reach"), [(None, 8), (2, 2 * 2)], ids=["causal", "window"])
def test_causality_by_gradient(config, build, tokens, window, reach):
    """Position t depends on all positions t - reach .. t, through two layers, and on no other."""
    decoder = build(Decoder, config(window=window))
    x = decoder.embedding(tokens)
    run = lambda x: decoder.stack(x, mask=decoder.rules(Mask()), pos=np.arange(8)).sum(-1)[0]
    gradient = np.abs(np.asarray(jax.jit(jax.jacobian(run))(x)[:, 0])).sum(-1)
    t, s = np.indices((8, 8))
    np.testing.assert_array_equal(gradient > 0, (s <= t) & (s >= t - reach))


def test_probes_are_returned(config, build, call, tokens):
    decoder = build(Decoder, config(norm="rms"))
    weights, states = call(decoder.weights, tokens), call(decoder.hidden_states, tokens)
    assert weights.shape == (2, 2, 4, 8, 8)
    np.testing.assert_allclose(weights.sum(-1), np.ones((2, 2, 4, 8)), atol=1e-6)
    assert np.triu(np.asarray(weights), 1).max() == 0
    assert states.shape == (3, 2, 8, 16)
    np.testing.assert_allclose(states[0], decoder.embedding(tokens), atol=1e-6)
    np.testing.assert_allclose(states[-1], call(decoder.features, tokens), atol=1e-6)
    np.testing.assert_allclose(states[-1] @ decoder.embedding.table[...].T, call(decoder, tokens), atol=1e-5)


def test_gates_are_per_layer(config, build, call, tokens):
    decoder = build(Decoder, config())
    closed = jnp.array([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0]])
    removed = build(Decoder, config())
    removed.stack.blocks[1].attention.w_o[...] = removed.stack.blocks[1].attention.w_o[...].at[1].set(0.0)
    np.testing.assert_allclose(call(decoder, tokens, gate=closed), call(removed, tokens), atol=1e-5)
    importance = jax.jit(jax.grad(lambda gate: decoder(tokens, gate=gate).std()))(jnp.ones((2, 4)))
    assert np.all(np.abs(importance) > 0)


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({}, 11 * 16 + 2 * (4 * 256 + 64 + 2 * 16 * 24 + 24 + 16 + 64) + 32),
        ({"norm_position": "post"}, 11 * 16 + 2 * (4 * 256 + 64 + 2 * 16 * 24 + 24 + 16 + 64)),
        ({"bias": False, "norm": "rms", "tie_embeddings": False}, 2 * 11 * 16 + 2 * (4 * 256 + 2 * 16 * 24 + 32) + 16),
        ({"bias": False, "encoding": Learned(9)}, (11 + 9) * 16 + 2 * (4 * 256 + 2 * 16 * 24 + 64) + 32),
        ({"bias": False, "encoding": T5Bias(8)}, 11 * 16 + 2 * (4 * 256 + 2 * 16 * 24 + 64 + 32) + 32),
        (
            {"bias": False, "encoding": T5Bias(8), "share_encoding": True},
            11 * 16 + 2 * (4 * 256 + 2 * 16 * 24 + 64) + 64,
        ),
    ],
)
def test_parameters_counted_by_hand(config, count, fields, parameters):
    assert count(Decoder, config(**fields)) == count(Encoder, config(**fields)) == parameters


def test_shared_parameters_of_an_encoding_act_in_every_layer(config, build, call, tokens):
    own, shared = (build(Decoder, config(encoding=T5Bias(8), share_encoding=share)) for share in (False, True))
    copies = jax.tree.leaves_with_path(own)
    values = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(shared)}
    table = shared.stack.blocks[0].attention.encoding_params().head["table"]
    leaves = [values.get(jax.tree_util.keystr(path), table) for path, _ in copies]
    own = jax.tree.unflatten(jax.tree.structure(own), leaves)
    np.testing.assert_allclose(call(shared, tokens), call(own, tokens), atol=1e-6)


@pytest.mark.parametrize(
    "encoding", [AddOne(), (AddOne(), NoPE()), compose(AddOne(), RoPE())], ids=["all", "one", "part"]
)
def test_embeddings_meet_each_encoding_once(config, build, encoding, tokens):
    encoder = build(Encoder, config(encoding=encoding))
    x = encoder.embedding(tokens)
    np.testing.assert_allclose(encoder.stack.embed(x, np.arange(8)), x + 1, atol=1e-6)


def test_layers_may_differ_in_their_encoding(config, build, call, tokens):
    """RoPE in the first layer only: shifted positions leave everything as it is, stretched ones do not."""
    decoder = build(Decoder, config(encoding=(RoPE(), NoPE())))
    assert [block.attention.encoding for block in decoder.stack.blocks] == [RoPE(), NoPE()]
    plain = call(decoder.weights, tokens)
    np.testing.assert_allclose(call(decoder.weights, tokens, pos=np.arange(8) + 5), plain, atol=1e-5)
    assert np.abs(call(decoder.weights, tokens, pos=np.arange(8) * 2) - plain).max() > 0.01


def test_padding_and_packing_change_nothing_for_the_rest(config, build, call, tokens):
    decoder = build(Decoder, config(layers=1, encoding=RoPE()))
    alone = call(decoder, tokens[:, 3:])
    segments, pos = np.array([0, 0, 0, 1, 1, 1, 1, 1]), np.array([0, 1, 2, 0, 1, 2, 3, 4])
    packed = call(decoder, tokens, pos=pos, mask=Mask(q_segments=segments, k_segments=segments))
    np.testing.assert_allclose(packed[:, 3:], alone, atol=1e-5)
    padded = call(decoder, tokens, mask=Mask(k_valid=segments == 1))
    np.testing.assert_allclose(padded[:, 3:], alone, atol=1e-5)


def test_a_window_in_the_mask_replaces_that_of_the_config(config, build, call, tokens):
    near, far = build(Decoder, config(layers=1, window=2)), build(Decoder, config(layers=1))
    np.testing.assert_allclose(call(near, tokens), call(far, tokens, mask=Mask(window=2)), atol=1e-6)
    np.testing.assert_allclose(call(near, tokens, mask=Mask(window=99)), call(far, tokens), atol=1e-6)


def test_embeddings_are_scaled_where_they_are_read_only(config, build, tokens):
    plain, scaled = (build(Encoder, config(embed_scale=scale)) for scale in (False, True))
    np.testing.assert_allclose(scaled.embedding(tokens), 4 * plain.embedding(tokens), rtol=1e-6)
    x = plain.embedding(tokens)
    np.testing.assert_array_equal(scaled.embedding.logits(x), plain.embedding.logits(x))


def test_half_precision_computes_logits_in_float32(config, build, call, tokens):
    fields = {"layers": 1, "encoding": T5Bias(), "norm": "rms", "qk_norm": True, "activation": "swiglu"}
    half = build(Decoder, config(dtype="bfloat16", param_dtype="bfloat16", **fields))
    assert half.embedding(tokens).dtype == jnp.bfloat16
    logits = call(half, tokens)
    assert logits.dtype == jnp.float32
    wide = build(Decoder, config(**fields))
    np.testing.assert_allclose(logits, call(wide, tokens), atol=0.2)


def test_double_precision_runs_through(x64, config, build, call, tokens):
    fields = {"layers": 1, "encoding": compose(Sinusoidal(), T5Bias()), "norm": "rms", "qk_norm": True}
    double = build(Decoder, config(dtype="float64", param_dtype="float64", **fields))
    logits = call(double, tokens)
    assert logits.dtype == jnp.float64
    np.testing.assert_allclose(logits, call(build(Decoder, config(**fields)), tokens), atol=1e-4)


def test_dropout_needs_a_key(config, build, call, tokens):
    decoder, plain = (build(Decoder, config(layers=1, residual_dropout=rate)) for rate in (0.5, 0.0))
    np.testing.assert_array_equal(call(decoder, tokens), call(plain, tokens))
    one, same, other = (call(decoder, tokens, key=jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other, atol=1e-3)


def test_initial_token_vectors_have_length_one_on_average(config):
    embedding = TokenEmbedding(config(vocab=200), rngs=nnx.Rngs(0))
    np.testing.assert_allclose((embedding.table[...] ** 2).sum(-1).mean(), 1, rtol=0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m, t: m(t[0]), r"tokens must be integers \[B, T\], got int64\[8\]"),
        (lambda m, t: m(t * 1.0), r"tokens must be integers \[B, T\], got float64\[2, 8\]"),
        (lambda m, t: m(t + 5), r"tokens must be in 0\.\.10, got values in 5\.\.15"),
        (lambda m, t: m(t - 11), r"tokens must be in 0\.\.10, got values in -11\.\.-1"),
        (lambda m, t: m(t, pos=np.arange(7)), r"embed needs .* pos \[T\] or \[B, T\].*pos \(7,\)"),
        (lambda m, t: m(t, pos=np.arange(8) + 3), r"Learned has rows for positions 0\.\.8, got positions 3\.\.10"),
        (lambda m, t: m(t, gate=jnp.ones((1, 4))), r"gate must have one row per layer, 2, got shape \(1, 4\)"),
        (lambda m, t: m.decode(t, m.cache(2, 8)[:1]), "decode needs one cache per layer, 2, got 1"),
        (lambda m, t: m.decode(t, m.cache(2, 7)), "the cache has 7 slots; 8 tokens do not fit"),
    ],
)
def test_calls_that_do_not_fit_are_refused(config, build, tokens, wrong, message):
    decoder = build(Decoder, config(encoding=Learned(9)))
    with pytest.raises(ValueError, match=message):
        wrong(decoder, tokens)


def test_an_unknown_token_that_is_traced_becomes_nan(config, build, call, tokens):
    embedding = build(Decoder, config()).embedding
    for wrong in (-1, 11):
        tokens[0, 3] = wrong
        vectors = call(embedding, tokens)
        assert np.isnan(vectors[0, 3]).all()
        assert np.isfinite(np.delete(vectors[0], 3, axis=0)).all()


def test_one_sided_alibi_is_refused_in_an_encoder(config, build, tokens):
    with pytest.raises(ValueError, match=r"ALiBi.*causal"):
        build(Encoder, config(encoding=ALiBi()))(tokens)
