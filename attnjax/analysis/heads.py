"""Checks of heads and tokens of a model, and the keys that its queries see."""

import numpy as np
from flax import nnx

from attnjax.analysis.loaded_model import LoadedModel
from attnjax.attention import Mask
from attnjax.attention.masks import visibility
from attnjax.modules import Decoder, Encoder
from attnjax.typing import Bool, Int


def module(subject: LoadedModel) -> Decoder | Encoder:
    """The subject's model, with its parameters."""
    return nnx.merge(subject.graph, subject.params)


def check_head(subject: LoadedModel, layer: int, head: int) -> None:
    """Raise ValueError unless the subject has this head; both are counted from 0."""
    for name, index, count in (("layer", layer, subject.layers), ("head", head, subject.heads)):
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
            raise ValueError(f"{name} must be in 0..{count - 1} for {subject.name}, got {index!r}")


def check_tokens(subject: LoadedModel, tokens: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
    """The tokens as int32. Raises ValueError unless they are integers [B, T], T > 0, in the vocabulary of the model."""
    tokens, vocab = np.asarray(tokens), subject.config.vocab
    if tokens.ndim != 2 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"tokens must be integers [B, T], at least one, got {tokens.dtype}{list(tokens.shape)}")
    if not 0 <= tokens.min() <= tokens.max() < vocab:
        raise ValueError(
            f"tokens must be in 0..{vocab - 1} for {subject.name}, got values in {tokens.min()}..{tokens.max()}"
        )
    return tokens.astype(np.int32)


def visible_keys(subject: LoadedModel, length: int) -> Bool[np.ndarray, "T T"]:
    """Which keys each query of a text of this length sees. Raises ValueError if layers have different windows."""
    windows = set(subject.config.layer_windows)
    if len(windows) > 1:
        raise ValueError(f"all layers of {subject.name} must see equally far, got windows {subject.config.windows}")
    causal = isinstance(module(subject), Decoder)
    span = Mask(causal=causal, window=windows.pop(), first=subject.config.window_first).span
    index = np.arange(length, dtype=np.int32).reshape(1, 1, 1, length)
    return np.asarray(visibility(span, index, index, None, None, np.ones_like(index, bool), None)[0, 0, 0])
