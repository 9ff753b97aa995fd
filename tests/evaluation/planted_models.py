"""Small decoders of random numbers, in which the answer is known: heads that do nothing have no output matrix."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import RoPE

VOCAB, LAYERS, HEADS = 11, 2, 3


def decoder(seed: int = 0, scale: float = 0.3, **fields) -> Decoder:
    """Two layers of three heads, with noise on every parameter; JAX computes nothing."""
    sizes = {"vocab": VOCAB, "model": 12, "layers": LAYERS, "heads": HEADS, "hidden": 16, "encoding": RoPE()}
    config = TransformerConfig(**{**sizes, **fields})
    abstract = jax.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * draw.normal(size=leaf.shape), leaf.dtype), abstract)


def subject(**fields) -> LoadedModel:
    """The model as what the analysis takes."""
    return LoadedModel(decoder(**fields))


def with_only(*working: int) -> LoadedModel:
    """A model in which these heads alone, numbered layer * 3 + head, reach the residual stream."""
    model = decoder()
    for layer, block in enumerate(model.stack.blocks):
        keep = np.array([layer * HEADS + head in working for head in range(HEADS)])
        weights = block.attention.w_o[...]
        block.attention.w_o[...] = jnp.where(keep[:, None, None], weights, jnp.zeros_like(weights))
    return LoadedModel(model)


def documents(count: int = 4, length: int = 9, seed: int = 1) -> np.ndarray:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, VOCAB, (count, length))


def losses(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Cross-entropy of the next token in float64: log of the sum of exponentials less the logit of the truth."""
    logits = np.asarray(logits, np.float64)[:, :-1]
    truth = np.take_along_axis(logits, tokens[:, 1:, None], axis=2)[..., 0]
    return np.log(np.exp(logits).sum(2)) - truth
