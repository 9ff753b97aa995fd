"""Flax NNX modules: learned projections around the pure functions of `positions` and `attention`.

Every module also works in Flax's tree mode, where a model is a pytree: no references are shared and nothing is sown.

    graph, params = nnx.split(model, graph=False)
    loss = lambda params, tokens: f(nnx.merge(graph, params)(tokens))
    jax.vmap(jax.grad(loss), in_axes=(0, None))         gradients of a population: params have a leading axis
"""

from attnjax.config.architecture import AttentionOptions as AttentionOptions
from attnjax.modules.attention import MultiHeadAttention as MultiHeadAttention
from attnjax.modules.block import FeedForward as FeedForward, Memory as Memory, TransformerBlock as TransformerBlock
from attnjax.modules.config import TransformerConfig as TransformerConfig
from attnjax.modules.generate import generate as generate
from attnjax.modules.models import (
    Decoder as Decoder,
    Encoder as Encoder,
    EncoderDecoder as EncoderDecoder,
)
from attnjax.modules.stack import replace_constants as replace_constants
