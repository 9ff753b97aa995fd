"""Flax NNX modules: parameters and projections around the pure functions of `positions` and `attention`.

Every module also works in Flax's tree mode: no references are shared and nothing is sown, so a model is a pytree.

    graph, params = nnx.split(model, graph=False)
    loss = lambda params, tokens: f(nnx.merge(graph, params)(tokens))
    jax.vmap(jax.grad(loss), in_axes=(0, None))         of a population: params with a leading axis
"""

from attnjax.modules.attention import MultiHeadAttention
from attnjax.modules.block import Memory, TransformerBlock
from attnjax.modules.config import TransformerConfig
from attnjax.modules.decoder import Decoder
from attnjax.modules.encoder import Encoder
from attnjax.modules.encoder_decoder import EncoderDecoder, Gates
from attnjax.modules.feed_forward import FeedForward
from attnjax.modules.generate import generate

__all__ = [
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "FeedForward",
    "Gates",
    "Memory",
    "MultiHeadAttention",
    "TransformerBlock",
    "TransformerConfig",
    "generate",
]
