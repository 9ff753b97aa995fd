"""The window and first keys of a model with LM-Infinite or StreamingLLM, which must be those that its encoding is made for.

The distances of both methods are made for a mask that shows W keys back and the first n (`positions/streaming.py`). Under
another mask the same encoding computes something else: without a window, StreamingLLM brings the first keys nearer while all
keys between stay visible. So a config says the two numbers twice, and must say the same.
"""

from collections.abc import Sequence
from typing import Any

from attnjax.config.architecture import TransformerOptions, Window
from attnjax.positions import LMInfinite, PositionEncoding, StreamingLLM
from attnjax.positions.compose import parts_of


def first_keys_of(encoding: PositionEncoding) -> tuple[LMInfinite | StreamingLLM, ...]:
    """Returns the parts of an encoding that are made for a window beside the first keys.

    Example:
      >>> from attnjax.positions import LogN, compose
      >>> first_keys_of(compose(LogN(length=64), StreamingLLM(first=4, window=59)))[0].window
      59
    """
    return tuple(part for part in parts_of(encoding) if isinstance(part, LMInfinite | StreamingLLM))


def visible_fields(encoding: PositionEncoding) -> dict[str, Any]:
    """Returns the fields of a config that show what the encoding is made for, in every layer; none for all other encodings.

    Example:
      >>> visible_fields(StreamingLLM(first=4, window=59))
      {'window': (59, 0), 'windows': None, 'window_first': 4}
    """
    fields: dict[str, Any] = {}
    for part in first_keys_of(encoding):
        fields |= {"window": (part.window, 0), "windows": None, "window_first": part.first}
    return fields


def check_first_keys(path: str, encodings: Sequence[PositionEncoding], options: TransformerOptions) -> None:
    """Raises ValueError unless each layer sees the window and the first keys that its encoding is made for.

    Args:
      path: what names of fields stand below, in an error.
      encodings: the encoding of each layer, L of them.
      options: with the windows of the layers.

    Example:
      >>> from attnjax.config import ModelConfig
      >>> check_first_keys("model", [StreamingLLM(window=59)] * 2, ModelConfig(window=(59, 0), window_first=4))
      >>> check_first_keys("model", [StreamingLLM(window=59)] * 2, ModelConfig(window=59))
      Traceback (most recent call last):
      ValueError: model.encoding has StreamingLLM(first=4, window=59) in layer 0, whose distances are those of a mask ...
    """
    for layer, (encoding, window) in enumerate(zip(encodings, options.layer_windows, strict=True)):
        for part in first_keys_of(encoding):
            if (left_of(window), options.window_first) != (part.window, part.first):
                n, W = part.first, part.window
                raise ValueError(
                    f"{path}.encoding has {type(part).__name__}(first={n}, window={W}) in layer {layer}, whose distances are "
                    f"those of a mask that shows {W} keys back and the first {n}: {path}.window (or the entry of the layer in "
                    f"{path}.windows) must be {(W, 0)} or {W} and {path}.window_first {n}, got {window} and "
                    f"{options.window_first}; another mask goes into the call of the model, mask=Mask(window=..., first=...)"
                )


def left_of(window: Window | None) -> int | None:
    """Returns how many keys back a window shows; None is all.

    Example:
      >>> left_of((59, 0)), left_of(3), left_of(None)
      (59, 3, None)
    """
    return window[0] if isinstance(window, tuple) else window
