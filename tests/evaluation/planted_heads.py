"""Models whose heads are known because their weights were written by hand, and models of random numbers."""

import jax
import numpy as np
from flax import nnx

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import T5Bias

VOCAB, LENGTH = 12, 32
SHARP = 30.0
"""A logit that leaves nothing to the other keys: e^-30 is below float32's resolution of 1."""


def tokens(windows: int, seed: int = 0) -> np.ndarray:
    """Random tokens of 1 .. 11 behind a first token 0 that never comes again, [windows, 32]."""
    drawn = np.random.default_rng(seed).integers(1, VOCAB, (windows, LENGTH))
    drawn[:, 0] = 0
    return drawn


def config(**fields) -> TransformerConfig:
    """Two heads of width 12 in a stream of 24, which hold two one-hot tokens; a norm that only scales them."""
    sizes = {"vocab": VOCAB, "model": 2 * VOCAB, "layers": 1, "heads": 2, "head_dim": VOCAB, "hidden": 4, "norm": "rms"}
    return TransformerConfig(**{**sizes, "encoding": T5Bias(buckets=8, max_distance=16), **fields})


def filled(settings: TransformerConfig, value, kind=Decoder):
    """A model whose parameters are value(shape), arrays of NumPy: nothing is compiled."""
    abstract = jax.eval_shape(lambda: kind(settings, rngs=nnx.Rngs(0)))
    return jax.tree.map(lambda leaf: np.asarray(value(leaf.shape), leaf.dtype), abstract)


def drawn(settings: TransformerConfig, kind=Decoder, scale: float = 0.3):
    """A model of random numbers."""
    draw = np.random.default_rng(0)
    return filled(settings, lambda shape: scale * draw.normal(size=shape), kind)


def blank(settings: TransformerConfig, kind=Decoder):
    """A model of zeros but for its norms: every head attends to all it sees alike."""
    model = filled(settings, np.zeros, kind)
    norms = [norm for block in model.stack.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
    for norm in [*norms, model.stack.norm]:
        norm.scale[...] = np.ones(norm.scale.shape, np.float32)
    return model


def put(parameter, place, value) -> None:
    """Writes numbers into a parameter."""
    made = np.array(parameter[...])
    made[place] = value
    parameter[...] = made


def favour_distance(block, head: int, distance: int) -> None:
    """Let a head with a T5 bias attend to one distance (below 4) alone."""
    put(block.attention.position["table"], (head, distance), SHARP)


def previous_by_bias(kind=Decoder) -> LoadedModel:
    """Head 1 of one layer attends to the previous token through its bias, head 2 to all alike."""
    settings = config() if kind is Decoder else config(encoding=T5Bias(8, 16, bidirectional=True))
    model = blank(settings, kind)
    favour_distance(model.stack.blocks[0], 0, 1)
    return LoadedModel(model, "previous by bias")


def induction() -> LoadedModel:
    """Two layers: head 1 of the first writes the previous token beside the own, head 1 of the second looks for it.

    The stream holds a token one-hot in its first half. The norm scales all vectors alike, since all have one one (after
    layer 1: two). Layer 1 copies the previous token's one-hot to the second half; layer 2 matches the query's first half
    to the key's second: it attends to whatever followed an earlier occurrence.
    """
    model = blank(config(layers=2))
    one_hot, own, other = np.eye(VOCAB), slice(VOCAB), slice(VOCAB, None)
    put(model.embedding.table, (slice(None), own), one_hot)
    first, second = model.stack.blocks
    favour_distance(first, 0, 1)
    put(first.attention.w_v, (own, 0), one_hot)
    put(first.attention.w_o, (0, slice(None), other), one_hot / np.sqrt(2 * VOCAB))
    put(second.attention.w_q, (own, 0), 3 * one_hot)
    put(second.attention.w_k, (other, 0), 3 * one_hot)
    return LoadedModel(model, "induction")
