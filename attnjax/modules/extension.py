"""A trained decoder with RoPE, read past its trained length without training: other encodings and masks, the same parameters.

With L the trained length and s the factor by which it is exceeded, each method puts another encoding in place of every RoPE,
with the sizes that its authors use or, where they depend on s, the smallest that keep all distances below L:

    pi ntk dynamic_ntk yarn    the scalings by s                           `positions/scaling.py`, `scaling_dynamic.py`
    resonance                  whole wavelengths of the frequencies of yarn
    log_n                      logits times max(1, log_L n)
    self_extend                window W = L / 4, the smallest groups with which s L tokens have no distance of L
    rerope                     window L / 8
    leaky_rerope               window w = L / 8, the factor ceil((s L - w) / (L - w))
    dual_chunk                 chunks of 3 L / 4, L / 8 of them local
    lm_infinite                the first 10 keys, and the last L
    streaming_llm              the first 4 keys, and the last L - 4

`NAME+log_n` scales the logits of a method by log n as well, as the author of ReRoPE does. Layers without RoPE stay as they are.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

from flax import nnx

from attnjax.config.names import EXTENSION_NAMES, nearest
from attnjax.modules.config import TransformerConfig
from attnjax.modules.decoder import Decoder
from attnjax.modules.first_keys import visible_fields
from attnjax.positions import (
    DualChunk,
    DynamicNTK,
    LeakyReRoPE,
    LMInfinite,
    LogN,
    NTKAware,
    PositionEncoding,
    PositionInterpolation,
    Remapped,
    ReRoPE,
    Resonance,
    RoPE,
    SelfExtend,
    StreamingLLM,
    YaRN,
    compose,
)
from attnjax.positions.checks import validate_integer
from attnjax.positions.scaling import check_factor

LOG_N = "+log_n"
Options = dict[str, Any]


def _scaling(make: Callable[..., Any]) -> Callable[[RoPE, int, float, Options], RoPE]:
    """A method that replaces the scaling of a RoPE by what `make` makes of L and s."""

    def method(rope: RoPE, L: int, s: float, options: Options) -> RoPE:
        return dataclasses.replace(rope, scaling=dataclasses.replace(make(L, s), **options))

    return method


def _remapped(kind: type[Remapped], sizes: Callable[[int, float], Options]) -> Callable[..., Remapped]:
    """A method that remaps the positions of a RoPE, with sizes made of L and s."""
    return lambda rope, L, s, options: kind.of(rope, **{**sizes(L, s), **options})


def _slower(window: int, L: int, s: float) -> int:
    """How many times as slowly distances grow past a window, so that s L tokens have none of L or more."""
    return max(1, math.ceil((s * L - window) / (L - window)))


def _group(window: int, L: int, s: float) -> int:
    """The smallest groups of Self-Extend with which s L tokens have no distance of L or more."""
    farthest = lambda group: (math.ceil(s * L) - 1) // group + window - window // group
    return next(group for group in itertools.count(_slower(window, L, s)) if farthest(group) < L)


METHODS: dict[str, Callable[[RoPE, int, float, Options], PositionEncoding]] = {
    "pi": _scaling(lambda L, s: PositionInterpolation(s)),
    "ntk": _scaling(lambda L, s: NTKAware(s)),
    "dynamic_ntk": _scaling(lambda L, s: DynamicNTK(1.0, L)),
    "yarn": _scaling(lambda L, s: YaRN(s, L)),
    "resonance": _scaling(lambda L, s: Resonance(YaRN(s, L))),
    "log_n": lambda rope, L, s, options: compose(LogN(**{"length": L, **options}), rope),
    "self_extend": _remapped(SelfExtend, lambda L, s: {"window": L // 4, "group": _group(L // 4, L, s)}),
    "rerope": _remapped(ReRoPE, lambda L, s: {"window": L // 8}),
    "leaky_rerope": _remapped(LeakyReRoPE, lambda L, s: {"window": L // 8, "factor": _slower(L // 8, L, s)}),
    "dual_chunk": _remapped(DualChunk, lambda L, s: {"chunk": 3 * L // 4, "local": L // 8}),
    "lm_infinite": _remapped(LMInfinite, lambda L, s: {"first": 10, "window": L - 1}),
    "streaming_llm": _remapped(StreamingLLM, lambda L, s: {"first": 4, "window": L - 5}),
}
"""From the RoPE of a model, L, s and options that replace the sizes, to the encoding of a method."""


def extended_encoding(method: str, rope: RoPE, trained: int, factor: float, **options: Any) -> PositionEncoding:
    """The encoding of a method in place of a RoPE trained at `trained` positions, for `factor` times as many.

    Args:
      method: a name of the table above, with "+log_n" behind it or not.
      options: sizes in place of those of the table, by the names that the encoding or the scaling has for them.

    Raises:
      ValueError: an unknown method or option, with the choices, and sizes out of range.

    Example:
      >>> extended_encoding("self_extend", RoPE(), trained=128, factor=8.0).group
      11
    """
    validate_integer("extended", minimum=8, trained=trained)
    check_factor("extended", factor)
    name = method.removesuffix(LOG_N)
    if name not in METHODS or (name == "log_n" and method != name):
        raise ValueError(
            f"extended: unknown method {method!r}{nearest(name, EXTENSION_NAMES)}; choose from {', '.join(EXTENSION_NAMES)}"
        )
    try:
        found = METHODS[name](rope, trained, float(factor), options)
    except TypeError as error:
        raise ValueError(f"extended: {method} has no such option: {error}") from None
    return compose(LogN(length=trained), found) if method.endswith(LOG_N) else found


def extended_config(
    config: TransformerConfig, method: str, *, trained: int, factor: float, **options: Any
) -> TransformerConfig:
    """The config with the encoding of a method in place of every RoPE, and the window that the method reads through.

    Raises:
      ValueError: what `extended_encoding` refuses, and a config without RoPE, or with a method on it already.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32, encoding=RoPE())
      >>> found = extended_config(config, "streaming_llm", trained=64, factor=4.0)
      >>> found.window, found.window_first
      ((59, 0), 4)
    """
    if not any(type(one) is RoPE for one in config.encodings):
        raise ValueError(f"extended: the model has no RoPE whose positions could be changed, but {config.encodings[0]}")
    change = lambda one: extended_encoding(method, one, trained, factor, **options) if type(one) is RoPE else one
    encodings = tuple(map(change, config.encodings))
    encoding = encodings if isinstance(config.encoding, tuple) else encodings[0]
    fields: dict[str, Any] = {"encoding": encoding}
    for one in encodings:
        fields |= visible_fields(one)
    return dataclasses.replace(config, **fields)


def extended(model: Decoder, method: str, *, trained: int, factor: float, **options: Any) -> Decoder:
    """A decoder with the parameters of `model`, whose RoPE a method extends; see `extended_config`. The model stays as it is.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32, encoding=RoPE())
      >>> model = extended(Decoder(config, rngs=nnx.Rngs(0)), "rerope+log_n", trained=64, factor=8.0)
      >>> [type(part).__name__ for part in model.config.encoding.parts]
      ['LogN', 'ReRoPE']
    """
    config = extended_config(model.config, method, trained=trained, factor=factor, **options)
    _, params = nnx.split(model, graph=False)
    graph, state = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))), graph=False)
    nnx.replace_by_pure_dict(state, nnx.to_pure_dict(params))
    return nnx.merge(graph, state)
