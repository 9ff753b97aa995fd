"""A trained model, read past its trained length without training: another encoding and mask, the same parameters.

`extended` puts the encoding of a method (`methods.py`) in place of the RoPE of every layer. Layers without a rotation keep
their encoding; under lm_infinite and streaming_llm they read through the same window and see the same first keys as the others.
"""

import dataclasses
from typing import Any

import jax
from flax import nnx

from attnjax import positions as enc
from attnjax.config.architecture import Window
from attnjax.evaluation.methods import extended_encoding
from attnjax.modules import Decoder, TransformerConfig
from attnjax.modules.config import left_of, windowed
from attnjax.modules.parameters import with_parameters
from attnjax.positions import PositionEncoding, RoPE
from attnjax.positions.compose import joined, parts_of


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
      ValueError: `extended_encoding` refuses; and a config without RoPE, with RoPE beside other parts in a composition, or with
        another rotation.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32, encoding=RoPE())
      >>> found = extended_config(config, "streaming_llm", trained=64, factor=4.0)
      >>> found.window, found.window_first
      ((59, 0), 4)
    """
    for one in config.encodings:
        if not isinstance(one, RoPE) and any(map(_rotates, parts_of(one))):
            raise ValueError(f"extended: methods are for RoPE alone, and the model turns queries and keys by {one}")
    if not any(isinstance(one, RoPE) for one in config.encodings):
        raise ValueError(f"extended: methods are for RoPE, and the model has no RoPE, but {config.encodings[0]}")
    sizes = {"head_dim": config.sizes.head_dim, "scaled_after": scaled_after}
    change = lambda rope: extended_encoding(method, rope, trained, factor, **sizes, **options)
    return _with_encodings(config, tuple(change(one) if isinstance(one, RoPE) else one for one in config.encodings))


def _rotates(part: PositionEncoding) -> bool:
    return part.has("angle", "map_k") or isinstance(part, enc.Remapped | enc.PaTH)


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

    A part that joins an encoding has no parameters, but changes their paths; their order stays.
    """
    make = lambda: Decoder(config, rngs=nnx.Rngs(0))
    ours, theirs = (nnx.to_pure_dict(nnx.split(one, graph=False)[1]) for one in (model, nnx.eval_shape(make)))
    if [leaf.shape for leaf in jax.tree.leaves(ours)] != [leaf.shape for leaf in jax.tree.leaves(theirs)]:
        raise ValueError(f"{config} has other parameters than {model.config}")
    return with_parameters(make, jax.tree.unflatten(jax.tree.structure(theirs), jax.tree.leaves(ours)))
