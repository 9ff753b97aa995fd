"""Parameters: how many there are, how they start, their types, and numbers of encodings that differ in a population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.modules import (
    AttentionOptions,
    Decoder,
    EncoderDecoder,
    FeedForward,
    MultiHeadAttention,
    TransformerBlock,
    TransformerConfig,
    replace_constants,
)
from attnjax.modules.parameters import drop, split
from attnjax.positions import Learned, RoPE, Sinusoidal, T5Bias, compose, stacked_constants
from tests.modules.by_hand import TOKENS, build, call, config

ATTENTION, FED, NORM = 4 * 16 * 16, 2 * 16 * 24, 16


def attention(model=16, heads=4, *, shares_encoding=True, **options):
    given = {"encoding": T5Bias(8), "options": AttentionOptions(bias=False, **options), "rngs": nnx.Rngs(0)}
    return MultiHeadAttention(model, heads, shares_encoding=shares_encoding, **given)


def block(cross=False, **fields):
    return TransformerBlock(config(**fields), cross=cross, rngs=nnx.Rngs(0))


def model(kind=Decoder, **fields):
    return kind(config(**fields), rngs=nnx.Rngs(0))


def original():
    return EncoderDecoder(TransformerConfig.original_base(37_000), rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (lambda: attention(64, 4, attention_output_bias=True), 12_288 + 64 * 64 + 64),  # three matrices 64 x 64
        (lambda: attention(kv_heads=1, head_dim=6), 2 * 16 * 24 + 2 * 16 * 6),
        (lambda: attention(qk_norm=True), ATTENTION + 2 * 4),
        (lambda: attention(attention_sink=True, attention_gate="head"), ATTENTION + 4 + 16 * 4),
        (lambda: attention(attention_gate="channel"), ATTENTION + 16 * 16),
        (lambda: attention(shares_encoding=False), ATTENTION + 4 * 8),
        (lambda: FeedForward(6, 10, activation="swiglu", rngs=nnx.Rngs(0)), 3 * 6 * 10 + 2 * 10 + 6),
        (lambda: block(cross=True), 2 * (ATTENTION + 64) + FED + 24 + 16 + 6 * NORM),
        (lambda: block(norm="rms", bias=False, feed_forward_bias=True), ATTENTION + FED + 24 + 16 + 2 * NORM),
        (
            lambda: model(bias=False, encoding=compose(Learned(9), T5Bias(8)), share_encoding=True),
            (11 + 9) * 16 + 4 * 8 + 2 * (ATTENTION + FED + 4 * NORM) + 2 * NORM,
        ),
        (
            lambda: model(bias=False, tie_embeddings=False, output_bias=True, token_types=3, embedding_norm=True),
            (2 * 11 + 3) * 16 + 11 + 2 * (ATTENTION + FED + 4 * NORM) + 4 * NORM,
        ),
        # Table 3 of the paper prints 65 million, for a vocabulary of about 37,000: 63,045,632.
        (original, 6 * (12 * 512 * 512 + 2 * (2 * 512 * 2048 + 2048 + 512) + 5 * 1024) + 37_000 * 512),
    ],
)
def test_parameters_counted_by_hand(make, parameters):
    assert sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(make))) == parameters


FIELDS = {"vocab": 400, "model": 256, "heads": 8, "head_dim": 16, "hidden": 128, "attention_sink": True}
FIELDS |= {"attention_gate": "channel", "encoding": T5Bias(), "activation": "swiglu"}


@pytest.mark.parametrize("published", [False, True], ids=["plain", "of gpt2"])
def test_initial_values(published):
    """Normal with variance 1 / inputs, or as in GPT-2: 0.02, and less by sqrt(2 L) where residuals are added."""
    options = {"kernel_std": 0.02, "residual_start": True, "embed_std": 0.02} if published else {}
    found = jax.tree.map(np.asarray, jax.jit(lambda: model(layers=1, **FIELDS, **options))())
    block = found.stack.blocks[0]
    attention, fed = block.attention, block.feed_forward
    kernels = [(w, 256, 1) for w in (attention.w_q, attention.w_k, attention.w_v, fed.w_in, fed.w_gate)]
    kernels += [(w, 128, 2) for w in (attention.w_o, fed.w_out)]
    expected = [(w, 0.02 / np.sqrt(shared) if published else inputs**-0.5) for w, inputs, shared in kernels]
    for w, std in [*expected, (found.embedding.table, 0.02 if published else 1 / 16), (attention.w_g, 0.02)]:
        np.testing.assert_allclose([np.mean(w[...]), np.std(w[...])], [0, std], atol=0.05 * std)
    for bias in (attention.b_q, attention.b_o, attention.sink, fed.b_in, fed.b_out, block.attention_norm.bias):
        assert not np.any(bias[...])
    assert np.all(found.stack.norm.scale[...] == 1)


def test_types_of_parameters():
    """Sinks and parameters of encodings stay float32 where the others have 16 bits."""
    made = jax.eval_shape(lambda: model(param_dtype="bfloat16", **FIELDS))
    leaves = {jax.tree_util.keystr(path): leaf.dtype.name for path, leaf in jax.tree.leaves_with_path(made)}
    wide = {path for path, dtype in leaves.items() if dtype == "float32"}
    assert wide == {path for path in leaves if ".position" in path or ".sink" in path}
    assert set(leaves.values()) == {"float32", "bfloat16"}


THETAS, SIZES = (10.0, 500.0), config().sizes


def with_constants(model, of_sinusoidal, of_rope):
    replace_constants(model, {Sinusoidal(): of_sinusoidal, RoPE(): of_rope})
    return model(TOKENS)


@pytest.mark.parametrize("scan_layers", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["separate", "loop"])
def test_a_population_of_constants_is_one_program(scan_layers):
    """Bases of frequencies on the input and in every layer are data of one compiled program."""
    fields = lambda theta: config(scan_layers=scan_layers, encoding=compose(Sinusoidal(theta=theta), RoPE(theta=theta)))
    run = jax.vmap(with_constants, in_axes=(None, 0, 0))
    numbers = [stacked_constants([kind(theta=theta) for theta in THETAS], SIZES) for kind in (Sinusoidal, RoPE)]
    together = jax.jit(run)(build(Decoder, fields(10_000.0)), *numbers)
    np.testing.assert_allclose(together[0], call(build(Decoder, fields(THETAS[0])), TOKENS), atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 1e-3


def test_dropout_scales_what_it_keeps_and_repeats_with_its_key():
    key, x = jax.random.key(0), jnp.ones((100, 100))
    dropped = np.asarray(drop(x, key, 0.25))
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / 0.75], rtol=1e-6)
    np.testing.assert_allclose(dropped.mean(), 1, atol=0.03)
    np.testing.assert_array_equal(dropped, drop(x, key, 0.25))
    assert drop(x, None, 0.25) is x
    assert drop(x, key, 0.0) is x
    assert split(None, 3) == [None] * 3
    with pytest.raises(ValueError, match=r"typed key.*jax\.random\.key"):
        split(jnp.zeros(2, jnp.uint32), 2)
