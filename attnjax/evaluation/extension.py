"""A trained model, read past its trained length without training: another encoding and mask, the same parameters.

`extended` puts the encoding of a method (`methods.py`) in place of every RoPE of a decoder. Layers without RoPE keep their
encoding; under lm_infinite and streaming_llm they read through the same window, and see the same first keys, as the others.

A RoPE in a composition is exchanged too, and the other parts stay: scales of queries, such as SSMax, and biases. A part that
reads queries or keys was trained with those that RoPE has turned, and RoPE at remapped positions turns them later, in the
score: beside such a part these methods are refused. They replace logits, so they come first.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from attnjax import positions as enc
from attnjax.config.architecture import Window
from attnjax.evaluation.methods import extended_encoding
from attnjax.modules import Decoder, TransformerConfig
from attnjax.modules.config import left_of, windowed
from attnjax.modules.parameters import with_parameters
from attnjax.positions import LogN, PositionEncoding, RoPE
from attnjax.positions.compose import joined, parts_of

BY_LOGARITHM = (enc.SSMax, enc.Llama4Temperature, LogN)
"""Encodings that scale queries by a logarithm of their position."""
OF_LOGITS = (enc.FIRE, enc.StickBreaking)
"""Scores that read positions and logits, and neither queries nor keys."""


def extended(
    model: Decoder, method: str, *, trained: int, factor: float, scaled_after: bool = False, **options: Any
) -> Decoder:
    """Returns a decoder with the parameters of `model`, whose RoPE a method extends; see `extended_config`.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32, encoding=RoPE())
      >>> model = extended(Decoder(config, rngs=nnx.Rngs(0)), "rerope+log_n", trained=64, factor=8.0)
      >>> [type(part).__name__ for part in model.config.encoding.parts]
      ['LogN', 'ReRoPE']
    """
    known = {"trained": trained, "factor": factor, "scaled_after": scaled_after}
    return with_config(model, extended_config(model.config, method, **known, **options))


def extended_config(
    config: TransformerConfig, method: str, *, trained: int, factor: float, scaled_after: bool = False, **options: Any
) -> TransformerConfig:
    """Returns the config with the encoding of a method in place of every RoPE, and the window that the method reads through.

    All arguments but the config are those of `extended_encoding`.

    Raises:
      ValueError: `extended_encoding` refuses; a config without RoPE, with another rotation, or with a method on it; and a
        composition in which the method would not do to RoPE as its authors do.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32, encoding=RoPE())
      >>> found = extended_config(config, "streaming_llm", trained=64, factor=4.0)
      >>> found.window, found.window_first
      ((59, 0), 4)
    """
    parts = [part for one in dict.fromkeys(config.encodings) for part in parts_of(one)]
    for part in parts:
        if (part.has("angle", "map_k") or isinstance(part, enc.Remapped | enc.PaTH)) and not isinstance(part, RoPE):
            raise ValueError(f"extended: methods are for RoPE, and the model turns queries and keys by {part}")
    if not any(isinstance(part, RoPE) for part in parts):
        raise ValueError(f"extended: methods are for RoPE, and the model has no RoPE, but {config.encodings[0]}")
    sizes = {"head_dim": config.sizes.head_dim, "scaled_after": scaled_after}
    change = lambda rope: extended_encoding(method, rope, trained, factor, **sizes, **options)
    return _with_encodings(config, tuple(_exchanged(one, method, change) for one in config.encodings))


def _exchanged(encoding: PositionEncoding, method: str, change: Callable[[RoPE], PositionEncoding]) -> PositionEncoding:
    """Returns the encoding with that of a method in place of its RoPE, or first where the method replaces logits."""
    parts = parts_of(encoding)
    ropes = [part for part in parts if isinstance(part, RoPE)]
    if not ropes:
        return encoding
    if len(ropes) > 1:
        raise ValueError(f"extended: a method takes the place of one RoPE, and {encoding} has {len(ropes)}")
    at, made = parts.index(ropes[0]), parts_of(change(ropes[0]))
    before, after = parts[:at], parts[at + 1 :]
    replaces = any(one.replaces_logits for one in made)
    for part in (*before, *after):
        if isinstance(part, BY_LOGARITHM) and any(isinstance(one, LogN) for one in made):
            raise ValueError(f"extended: {method} multiplies logits by log n, which {part} does already")
        if replaces and part.has("map_q", "score") and not isinstance(part, BY_LOGARITHM + OF_LOGITS):
            raise ValueError(
                f"extended: {method} turns queries and keys in the score, and {part}, which reads them, was trained with those "
                "that are turned before"
            )
    return joined((*made, *before, *after) if replaces else (*before, *made, *after))


def _with_encodings(config: TransformerConfig, encodings: tuple[PositionEncoding, ...]) -> TransformerConfig:
    """Returns the config with these encodings and the mask that they are made for: no layer sees further than before.

    Where the own window of a layer is smaller than that of LM-Infinite or StreamingLLM, both become the own one.
    """
    made_for = [part for one in encodings for part in windowed(one)]
    fields: dict[str, Any] = {}
    if made_for:
        widest, first = made_for[0].window, made_for[0].first
        lefts = [left_of(one) for one in config.layer_windows]
        narrow = [left is not None and left <= widest for left in lefts]
        windows = tuple(one if own else (widest, 0) for one, own in zip(config.layer_windows, narrow, strict=True))
        encodings = tuple(map(_narrowed, encodings, windows))
        same = len(set(windows)) == 1
        fields = {"window": windows[0], "windows": None} if same else {"window": None, "windows": windows}
        fields["window_first"] = first
    by_layer = isinstance(config.encoding, tuple) or len(set(encodings)) > 1
    return dataclasses.replace(config, encoding=encodings if by_layer else encodings[0], **fields)


def _narrowed(encoding: PositionEncoding, window: Window | None) -> PositionEncoding:
    """Returns the encoding with this window where it is made for one."""
    change = lambda part: dataclasses.replace(part, window=left_of(window)) if windowed(part) else part
    return joined(tuple(map(change, parts_of(encoding))))


def with_config(model: Decoder, config: TransformerConfig) -> Decoder:
    """Returns a decoder of another config with the parameters of `model`, which must be the same in the same order.

    The parameters of a part of a composition have the place of the part in their path, which changes where a part moves or one
    without parameters joins it; their order does not.
    """
    make = lambda: Decoder(config, rngs=nnx.Rngs(0))
    ours, theirs = (nnx.to_pure_dict(nnx.split(one, graph=False)[1]) for one in (model, nnx.eval_shape(make)))
    if [leaf.shape for leaf in jax.tree.leaves(ours)] != [leaf.shape for leaf in jax.tree.leaves(theirs)]:
        raise ValueError(f"{config} has other parameters than {model.config}")
    return with_parameters(make, jax.tree.unflatten(jax.tree.structure(theirs), jax.tree.leaves(ours)))
