"""Flax NNX modules: learned projections around the pure functions of `positions` and `attention`.

Every module also works in Flax's tree mode, where a model is a pytree: no references are shared and nothing is sown.

    graph, params = nnx.split(model, graph=False)
    loss = lambda params, tokens: f(nnx.merge(graph, params)(tokens))
    jax.vmap(jax.grad(loss), in_axes=(0, None))         gradients of a population: params have a leading axis
"""

from attnjax.config.architecture import AttentionOptions
from attnjax.modules.attention import MultiHeadAttention
from attnjax.modules.block import Memory, TransformerBlock
from attnjax.modules.config import TransformerConfig
from attnjax.modules.decoder import Decoder
from attnjax.modules.encoder_decoder import EncoderDecoder, Gates
from attnjax.modules.extension import extended, extended_config, extended_encoding
from attnjax.modules.feed_forward import FeedForward
from attnjax.modules.generate import generate
from attnjax.modules.longer_table import stretched
from attnjax.modules.stack import replace_constants
from attnjax.modules.token_model import Encoder

__all__ = [
    "AttentionOptions",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "FeedForward",
    "Gates",
    "Memory",
    "MultiHeadAttention",
    "TransformerBlock",
    "TransformerConfig",
    "extended",
    "extended_config",
    "extended_encoding",
    "generate",
    "replace_constants",
    "stretched",
]
