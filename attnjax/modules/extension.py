"""A trained decoder with RoPE, read past its trained length without training: other encodings and masks, the same parameters.

With L the trained length and s the factor by which it is exceeded, each method puts another encoding in place of every RoPE,
with the sizes that its authors use or, where they depend on s, the smallest that keep all distances below L:

    pi ntk dynamic_ntk yarn    the scalings by s                           `positions/scaling.py`, `scaling_dynamic.py`
    longrope                   a factor for each pair past L, given or those of yarn; searched by `attnjax.long.factors`
    resonance                  whole wavelengths of the frequencies of yarn
    p_rope                     the fastest 3/4 of the pairs turn           whose authors train with it
    drope                      no rotation                                 whose authors train a little after it
    log_n                      logits times max(1, log_L n)
    self_extend                window W = L / 4, the smallest groups with which s L tokens have no distance of L
    rerope                     window L / 8
    leaky_rerope               window w = L / 8, the factor ceil((s L - w) / (L - w))
    dual_chunk                 chunks of 3 L / 4, L / 8 of them local
    lm_infinite                the first 10 keys, and the last L; fewer in a layer whose own window shows fewer
    streaming_llm              the first 4 keys, and the last L - 4; the same

A size that is given takes the place of that of the table, and the group, the factor or the window that depends on it follows:
the distances of self_extend, leaky_rerope and streaming_llm stay below L where any size of the other kind keeps them there.

`NAME+log_n` scales the logits of a method by log n as well, as the author of ReRoPE does. Layers without RoPE keep their
encoding; under lm_infinite and streaming_llm they read through the same window, and see the same first keys, as the others.

Under dynamic_ntk and longrope the frequencies depend on the length. A cache keeps keys unturned and turns all of them at the
frequencies of the length at hand; but what the layers above the first made of earlier tokens stays as it was made. So while the
frequencies change, past L under dynamic_ntk and from L to L + 1 under longrope, a model of several layers that generates with a
cache says other things than one that is run again on the whole text.

A RoPE in a composition is exchanged too, and the other parts stay: what scales queries, such as SSMax, and biases. A part that
reads queries or keys was trained with those that RoPE has turned, and RoPE at remapped positions turns them later, in the
score: beside such a part these methods are refused. They replace logits, so they come first.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from attnjax.config.architecture import Window
from attnjax.config.names import EXTENSION_NAMES, nearest
from attnjax.modules.config import TransformerConfig
from attnjax.modules.decoder import Decoder
from attnjax.modules.first_keys import first_keys_of, left_of
from attnjax.modules.stack import with_parameters
from attnjax.positions import (
    FIRE,
    AxialRoPE,
    DualChunk,
    DynamicNTK,
    LeakyReRoPE,
    Llama4Temperature,
    LMInfinite,
    LogN,
    LongRoPE,
    MixedRoPE,
    MRoPE,
    NoPE,
    NTKAware,
    PaTH,
    PoPE,
    PositionEncoding,
    PositionInterpolation,
    Remapped,
    RePo,
    ReRoPE,
    Resonance,
    RoPE,
    SelectiveRoPE,
    SelfExtend,
    SSMax,
    StickBreaking,
    StreamingLLM,
    Trait,
    XPos,
    YaRN,
    compose,
)
from attnjax.positions.checks import validate_integer
from attnjax.positions.compose import joined, parts_of
from attnjax.positions.factor_search import by_parts, check_factors
from attnjax.positions.scaling import check_factor

LOG_N = "+log_n"
KEEP = 0.75
"""p of p-RoPE."""
Options = dict[str, Any]

BY_LOGARITHM = (SSMax, Llama4Temperature, LogN)
"""Encodings that scale queries by a logarithm of their position."""
OF_LOGITS = (FIRE, StickBreaking)
"""Scores that read positions and logits, and neither queries nor keys."""
SEVERAL = "its positions have several coordinates, of which each has lengths and frequencies of its own"
COMPUTED = "what it turns by is computed from the tokens, so that no length bounds it"
OTHERS: tuple[tuple[type[PositionEncoding], str], ...] = (
    (
        XPos,
        "its scores also fade with the distance as they did in training, which another rotation would leave as it is",
    ),
    (
        PoPE,
        "it turns magnitudes of single channels, with learned phases, and has none of the pairs that the methods are made for",
    ),
    (AxialRoPE, SEVERAL),
    (MixedRoPE, SEVERAL),
    (MRoPE, SEVERAL),
    (RePo, COMPUTED),
    (SelectiveRoPE, COMPUTED),
    (PaTH, "its rotations are reflections of the tokens between, with no frequency"),
    (Remapped, "it is such a method already"),
)
"""Encodings that turn queries and keys and are no RoPE, and why no method takes them for one."""


def _scaling(make: Callable[..., Any]) -> Callable[[RoPE, int, float, Options], RoPE]:
    """A method that replaces the scaling of a RoPE by what `make` makes of L and s."""

    def method(rope: RoPE, L: int, s: float, options: Options) -> RoPE:
        return dataclasses.replace(rope, scaling=dataclasses.replace(make(L, s), **options))

    return method


def _longrope(rope: RoPE, L: int, s: float, options: Options) -> RoPE:
    """LongRoPE with factors for sequences past L; the frequencies stay up to L. The attention factor acts at every length."""

    def made(factors: Any, attention_factor: float | None = None) -> LongRoPE:
        return LongRoPE((1.0,) * len(factors), factors, L, attention_factor, s)

    return dataclasses.replace(rope, scaling=made(**options))


def _p_rope(rope: RoPE, L: int, s: float, options: Options) -> RoPE:
    """The RoPE of which a share of the pairs turns."""
    del L, s
    made = lambda keep=KEEP: dataclasses.replace(rope, keep=keep)
    return made(**options)


def _remapped(kind: type[Remapped], sizes: Callable[[int, float, Options], Options]) -> Callable[..., Remapped]:
    """A method that remaps the positions of a RoPE, with sizes made of L, s and those that are given."""

    def method(rope: RoPE, L: int, s: float, options: Options) -> Remapped:
        whole = {name: size for name, size in options.items() if name in ("window", "group", "first")}
        validate_integer(kind.__name__, **whole)
        return kind.of(rope, **{**sizes(L, s, whole), **options})

    return method


def _slower(window: int, L: int, s: float) -> int:
    """How many times as slowly distances grow past a window, so that s L tokens have none of L or more."""
    return max(1, math.ceil((s * L - window) / (L - window)))


def _self_extend(L: int, s: float, given: Options) -> Options:
    """Window L / 4 and the smallest groups, or for given groups the widest window up to L / 4, that keep distances below L."""
    farthest = lambda window, group: (math.ceil(s * L) - 1) // group + window - window // group
    if "group" in given and "window" not in given:
        widths = (width for width in range(L // 4, 0, -1) if farthest(width, given["group"]) < L)
        return {"window": next(widths, L // 4)}
    window = _size(given, "window", L, L // 4)
    groups = itertools.count(_slower(window, L, s))
    return {"window": window, "group": next(group for group in groups if farthest(window, group) < L)}


def _leaky_rerope(L: int, s: float, given: Options) -> Options:
    return {"window": L // 8, "factor": _slower(_size(given, "window", L, L // 8), L, s)}


def _streaming_llm(L: int, s: float, given: Options) -> Options:
    left = lambda name, usual: L - 1 - _size(given, name, L - 1, usual)
    return {"first": min(4, left("window", L - 5)), "window": left("first", 4)}


def _size(given: Options, name: str, limit: int, usual: int) -> int:
    """The size that is given, or the usual one where none is, or where no other size can make up for it."""
    size = given.get(name, usual)
    return size if size < limit else usual


METHODS: dict[str, Callable[[RoPE, int, float, Options], PositionEncoding]] = {
    "pi": _scaling(lambda L, s: PositionInterpolation(s)),
    "ntk": _scaling(lambda L, s: NTKAware(s)),
    "dynamic_ntk": _scaling(lambda L, s: DynamicNTK(1.0, L)),
    "yarn": _scaling(lambda L, s: YaRN(s, L)),
    "longrope": _longrope,
    "resonance": _scaling(lambda L, s: Resonance(YaRN(s, L))),
    "p_rope": _p_rope,
    "drope": lambda rope, L, s, options: NoPE(**options),
    "log_n": lambda rope, L, s, options: compose(LogN(**{"length": L, **options}), rope),
    "self_extend": _remapped(SelfExtend, _self_extend),
    "rerope": _remapped(ReRoPE, lambda L, s, given: {"window": L // 8}),
    "leaky_rerope": _remapped(LeakyReRoPE, _leaky_rerope),
    "dual_chunk": _remapped(DualChunk, lambda L, s, given: {"chunk": 3 * L // 4, "local": L // 8}),
    "lm_infinite": _remapped(LMInfinite, lambda L, s, given: {"first": 10, "window": L - 1}),
    "streaming_llm": _remapped(StreamingLLM, _streaming_llm),
}
"""From the RoPE of a model, L, s and options that replace the sizes, to the encoding of a method."""


STRETCHING = ("pi", "ntk", "dynamic_ntk", "yarn", "longrope", "resonance")
"""Methods that change the frequencies of a RoPE without scaling."""


def extended_encoding(
    method: str,
    rope: RoPE,
    trained: int,
    factor: float,
    *,
    head_dim: int | None = None,
    scaled_after: bool = False,
    **options: Any,
) -> PositionEncoding:
    """The encoding of a method in place of a RoPE trained at `trained` positions, for `factor` times as many.

    Args:
      method: a name of the table above, with "+log_n" behind it or not.
      head_dim: H, from which longrope has its factors where none are given.
      scaled_after: whether the scaling of the RoPE was put on after training, as YaRN may be; then it is taken off. Any other
        is part of what the model was trained with, and stays.
      options: sizes in place of those of the table, by the names that the encoding or the scaling has for them; `factors` of
        longrope, one per pair; `keep` of p_rope.

    Raises:
      ValueError: an unknown method or option, with the choices, sizes out of range, and a method that changes frequencies where
        the model was trained with scaled ones.

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
    rope = dataclasses.replace(rope, scaling=None) if scaled_after else rope
    if name in STRETCHING and rope.scaling is not None:
        others = ", ".join(one for one in METHODS if one not in STRETCHING)
        raise ValueError(
            f"extended: {method} changes the frequencies of a RoPE without scaling, and this model was trained with "
            f"{rope.scaling}; the methods that leave them are {others}"
        )
    if name == "longrope":
        options = {**options, "factors": _factors(rope, trained, float(factor), head_dim, options.get("factors"))}
    try:
        found = METHODS[name](rope, trained, float(factor), options)
    except TypeError as error:
        raise ValueError(f"extended: {method} has no such option: {error}") from None
    return compose(LogN(length=trained), found) if method.endswith(LOG_N) else found


def _factors(rope: RoPE, trained: int, factor: float, head_dim: int | None, given: Any) -> tuple[float, ...]:
    """The factors of longrope: those given, or else what yarn divides frequencies by."""
    if given is not None:
        return check_factors(given, None if head_dim is None else rope.pairs(head_dim)[0])
    if head_dim is None:
        raise ValueError("extended: longrope needs factors=(...), one per pair, or the head dimension, head_dim")
    return by_parts(rope, head_dim, factor, trained)


def extended_config(
    config: TransformerConfig, method: str, *, trained: int, factor: float, scaled_after: bool = False, **options: Any
) -> TransformerConfig:
    """The config with the encoding of a method in place of every RoPE, and the window that the method reads through.

    Raises:
      ValueError: what `extended_encoding` refuses; a config without RoPE, with another rotation, or with a method on it; and a
        composition in which the method would not do to RoPE what its authors do.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32, encoding=RoPE())
      >>> found = extended_config(config, "streaming_llm", trained=64, factor=4.0)
      >>> found.window, found.window_first
      ((59, 0), 4)
    """
    parts = [part for one in dict.fromkeys(config.encodings) for part in parts_of(one)]
    for part in parts:
        for kind, reason in OTHERS:
            if isinstance(part, kind):
                raise ValueError(f"extended: methods are for RoPE, and the model has {part}: {reason}")
    if not any(type(part) is RoPE for part in parts):
        raise ValueError(f"extended: the model has no RoPE whose positions could be changed, but {config.encodings[0]}")
    head_dim = config.sizes.head_dim
    change = lambda rope: extended_encoding(
        method, rope, trained, factor, head_dim=head_dim, scaled_after=scaled_after, **options
    )
    return _seeing(config, tuple(_exchanged(one, method, change) for one in config.encodings))


def _exchanged(encoding: PositionEncoding, method: str, change: Callable[[RoPE], PositionEncoding]) -> PositionEncoding:
    """The encoding with what `change` makes of its RoPE in place of it, or first where that replaces logits."""
    parts = parts_of(encoding)
    ropes = [(i, part) for i, part in enumerate(parts) if isinstance(part, RoPE)]
    if not ropes:
        return encoding
    if len(ropes) > 1:
        raise ValueError(
            f"extended: a method takes the place of one RoPE, and {encoding} has {len(ropes)} in one composition"
        )
    at, rope = ropes[0]
    made, before, after = parts_of(change(rope)), parts[:at], parts[at + 1 :]
    for part in (*before, *after):
        if isinstance(part, BY_LOGARITHM) and any(isinstance(one, LogN) for one in made):
            raise ValueError(f"extended: {method} multiplies logits by log n, which {part} does already")
        if Trait.CONTEXT in part.traits and any(Trait.LENGTH in one.traits for one in made):
            raise ValueError(
                f"extended: the frequencies of {method} depend on the length, which the positions that {part} computes from "
                "the tokens beside them do not tell"
            )
    if not any(isinstance(one, Remapped) for one in made):
        return joined((*before, *made, *after))
    for part in (*before, *after):
        if not _reads_no_vectors(part):
            raise ValueError(
                f"extended: {method} turns queries and keys in the score, and {part}, which reads them, was trained with those "
                "that are turned before"
            )
    return joined((*made, *before, *after))


def _reads_no_vectors(part: PositionEncoding) -> bool:
    """Whether an encoding does to turned queries and keys what it does to others: it multiplies queries, or adds to logits."""
    return isinstance(part, (*BY_LOGARITHM, *OF_LOGITS)) or not part.traits & (Trait.MAPS | Trait.SCORE)


def _seeing(config: TransformerConfig, encodings: tuple[PositionEncoding, ...]) -> TransformerConfig:
    """The config with these encodings and the mask that they are made for: no layer sees further than it did.

    Where the own window of a layer is smaller than that of LM-Infinite or StreamingLLM, both become the own one.
    """
    made_for = [part for one in encodings for part in first_keys_of(one)]
    if not made_for:
        return dataclasses.replace(config, encoding=_per_layer(config, encodings))
    widest, first = made_for[0].window, made_for[0].first
    windows = tuple(one if _within(one, widest) else (widest, 0) for one in config.layer_windows)
    narrowed = tuple(_narrowed(one, window) for one, window in zip(encodings, windows, strict=True))
    same = len(set(windows)) == 1
    fields: dict[str, Any] = {"window": windows[0], "windows": None} if same else {"window": None, "windows": windows}
    return dataclasses.replace(config, encoding=_per_layer(config, narrowed), window_first=first, **fields)


def _per_layer(config: TransformerConfig, encodings: tuple[PositionEncoding, ...]) -> Any:
    return encodings if isinstance(config.encoding, tuple) or len(set(encodings)) > 1 else encodings[0]


def _within(window: Window | None, widest: int) -> bool:
    """Whether the window of a layer shows no more keys than the widest one."""
    left = left_of(window)
    return left is not None and left <= widest


def _narrowed(encoding: PositionEncoding, window: Window | None) -> PositionEncoding:
    """The encoding with this window where it is made for one."""
    width: Any = left_of(window)
    change = lambda one: dataclasses.replace(one, window=width) if first_keys_of(one) else one
    return joined(tuple(map(change, parts_of(encoding))))


def extended(
    model: Decoder, method: str, *, trained: int, factor: float, scaled_after: bool = False, **options: Any
) -> Decoder:
    """A decoder with the parameters of `model`, whose RoPE a method extends; see `extended_config`. The model stays as it is.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32, encoding=RoPE())
      >>> model = extended(Decoder(config, rngs=nnx.Rngs(0)), "rerope+log_n", trained=64, factor=8.0)
      >>> [type(part).__name__ for part in model.config.encoding.parts]
      ['LogN', 'ReRoPE']
    """
    known = {"trained": trained, "factor": factor, "scaled_after": scaled_after}
    return with_config(model, extended_config(model.config, method, **known, **options))


def with_config(model: Decoder, config: TransformerConfig) -> Decoder:
    """A decoder of another config with the parameters of `model`, which must be the same in the same order.

    The parameters of a part of a composition have the place of the part in their path, which changes where a part moves or one
    without parameters joins it; their order does not.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32, encoding=RoPE())
      >>> other = with_config(Decoder(config, rngs=nnx.Rngs(0)), dataclasses.replace(config, encoding=NoPE()))
      >>> other.config.encoding
      NoPE()
    """
    make = lambda: Decoder(config, rngs=nnx.Rngs(0))
    given, wanted = (nnx.to_pure_dict(nnx.split(one, graph=False)[1]) for one in (model, nnx.eval_shape(make)))
    shapes = [[leaf.shape for leaf in jax.tree.leaves(one)] for one in (given, wanted)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{config} has other parameters than {model.config}")
    return with_parameters(make, jax.tree.unflatten(jax.tree.structure(wanted), jax.tree.leaves(given)))
