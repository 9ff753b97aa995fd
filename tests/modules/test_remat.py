"""Layers whose activations are computed again for the gradient: the same numbers in less memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax import ALiBi, FoX, RoPE, Sinusoidal
from attnjax.modules import Decoder, EncoderDecoder, TransformerConfig

CONFIG = TransformerConfig(
    vocab=11, model=16, layers=3, heads=2, hidden=32, attention_dropout=0.2, residual_dropout=0.1
)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 9)), jnp.int32)


def loss_and_gradient(config, family=Decoder):
    """Of the mean of all logits squared, with dropout, as a function of the parameters."""
    graph, params = nnx.split(family(config, rngs=nnx.Rngs(0)))

    def loss(params, tokens):
        model = nnx.merge(graph, params)
        inputs = (tokens, tokens) if family is EncoderDecoder else (tokens,)
        return (model(*inputs, key=jax.random.key(1)) ** 2).mean()

    return jax.value_and_grad(loss), params


@pytest.mark.quick("alibi and rope")
@pytest.mark.parametrize(
    "encoding",
    [RoPE(), FoX(), Sinusoidal(), (ALiBi(), RoPE(), ALiBi())],
    ids=["rope", "fox", "sinusoidal", "alibi and rope"],
)
def test_loss_and_gradients_are_those_of_kept_activations(encoding):
    config = dataclasses.replace(CONFIG, encoding=encoding)
    kept, params = loss_and_gradient(config)
    again, _ = loss_and_gradient(dataclasses.replace(config, remat=True))
    for a, b in zip(*(jax.tree.leaves(jax.jit(f)(params, TOKENS)) for f in (kept, again)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_layers_of_an_encoder_and_a_decoder_that_reads_it():
    kept, params = loss_and_gradient(CONFIG, EncoderDecoder)
    again, _ = loss_and_gradient(dataclasses.replace(CONFIG, remat=True), EncoderDecoder)
    for a, b in zip(*(jax.tree.leaves(jax.jit(f)(params, TOKENS)) for f in (kept, again)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_forward_pass_keeps_one_array_of_features_for_each_layer():
    """Counted in what `jax.vjp` hands to the backward pass beside the parameters; XLA:CPU may keep more, as it likes."""
    deep = dataclasses.replace(CONFIG, layers=12, model=32, hidden=128, encoding=RoPE(), implementation="dense")
    tokens, features = jnp.zeros((8, 64), jnp.int32), 8 * 64 * 32

    def kept(config):
        graph, params = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))
        run = lambda params: nnx.merge(graph, params)(tokens, key=jax.random.key(1))
        _, backward = jax.eval_shape(lambda: jax.vjp(run, params))
        return sum(leaf.size for leaf in jax.tree.leaves(backward)) - sum(leaf.size for leaf in jax.tree.leaves(params))

    assert kept(deep) > 12 * 10 * features
    assert kept(dataclasses.replace(deep, remat=True)) < 12 * 3 * features
