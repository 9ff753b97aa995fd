"""Methods of reading past the trained length without training: which encoding each puts in place of RoPE.

With L the trained length and s the factor by which it is exceeded, each method has the sizes that its authors use or, where
they depend on s, the smallest that keep all distances below L:

    pi ntk dynamic_ntk yarn    the scalings by s                           `positions/scaling.py`
    longrope                   a factor for each pair past L, given or those of yarn
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

A size that is given takes the place of that of the table. The group of self_extend and the factor of leaky_rerope follow the
window, and the window of streaming_llm follows the number of first keys.

`NAME+log_n` scales the logits of a method by log n as well, as the author of ReRoPE does. Under dynamic_ntk and longrope the
frequencies depend on the length: that of the tokens of a call, or of the cache. So a model that generates says the same as one
that is run again on as many tokens as the cache has room for.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attnjax import positions as enc
from attnjax.config.kinds import coerce
from attnjax.config.names import EXTENSION_NAMES, check_name
from attnjax.positions import LogN, PositionEncoding, RoPE, YaRN, compose
from attnjax.positions.angles import geometric
from attnjax.positions.checks import validate_integer
from attnjax.positions.scaling import Factor, NTKAware, PositionInterpolation

LOG_N = "+log_n"
Factors = tuple[float, ...]
Options = dict[str, Any]


def _self_extend(L: int, s: float, given: Options) -> Options:
    """Returns the window and the smallest groups that keep the distances of s L tokens below L."""
    window = given.get("window", L // 4)
    farthest = lambda group: (math.ceil(s * L) - 1) // group + window - window // group
    groups = itertools.count(_slower(window, L, s))
    return {"window": window, "group": next(group for group in groups if farthest(group) < L)}


def _leaky_rerope(L: int, s: float, given: Options) -> Options:
    window = given.get("window", L // 8)
    return {"window": window, "factor": _slower(window, L, s)}


def _slower(window: int, L: int, s: float) -> int:
    """Returns how many times as slowly distances grow past a window, so that s L tokens have none of L or more."""
    validate_integer("extended", most=L - 1, window=window)
    return max(1, math.ceil((s * L - window) / (L - window)))


SCALINGS: Mapping[str, Callable[[int, float], Any]] = MappingProxyType(
    {
        "pi": lambda L, s: PositionInterpolation(s),
        "ntk": lambda L, s: NTKAware(s),
        "dynamic_ntk": lambda L, s: enc.DynamicNTK(1.0, L),
        "yarn": lambda L, s: YaRN(s, L),
        "resonance": lambda L, s: enc.Resonance(YaRN(s, L)),
    }
)
"""From L and s to a scaling of the RoPE."""
REMAPPED: Mapping[str, tuple[type[enc.Remapped], Callable[[int, float, Options], Options]]] = MappingProxyType(
    {
        "self_extend": (enc.SelfExtend, _self_extend),
        "rerope": (enc.ReRoPE, lambda L, s, given: {"window": L // 8}),
        "leaky_rerope": (enc.LeakyReRoPE, _leaky_rerope),
        "dual_chunk": (enc.DualChunk, lambda L, s, given: {"chunk": 3 * L // 4, "local": L // 8}),
        "lm_infinite": (enc.LMInfinite, lambda L, s, given: {"first": 10, "window": L - 1}),
        "streaming_llm": (enc.StreamingLLM, lambda L, s, given: {"first": 4, "window": L - 1 - given.get("first", 4)}),
    }
)
"""RoPE at remapped positions, and its sizes from L, s and the sizes that are given."""
STRETCHING = (*SCALINGS, "longrope")
"""Methods that change the frequencies of a RoPE without scaling."""


def extended_encoding(
    method: str,
    rope: RoPE,
    trained: int,
    factor: float,
    *,
    head_dim: int,
    scaled_after: bool = False,
    **options: Any,
) -> PositionEncoding:
    """Returns the encoding of a method in place of a RoPE trained at `trained` positions, for `factor` times as many.

    Args:
      method: a name of the table above, with "+log_n" behind it or not.
      head_dim: H, from which longrope has its factors where none are given.
      scaled_after: whether the scaling of the RoPE was put on after training, as YaRN may be; then it is taken off. Any other
        is part of the trained model, and stays.
      options: sizes in place of those of the table, by the names that the encoding or the scaling has for them; `factors` of
        longrope, one per pair; `keep` of p_rope.

    Raises:
      ValueError: an unknown method or option, with the choices, sizes out of range, and a method that changes frequencies where
        the model was trained with scaled ones.

    Example:
      >>> extended_encoding("self_extend", RoPE(), trained=128, factor=8.0, head_dim=64).group
      11
    """
    validate_integer("extended", minimum=8, trained=trained)
    factor = coerce(Factor, factor, "extended: factor")
    name = method if method == "log_n" else method.removesuffix(LOG_N)
    check_name("extended", name, EXTENSION_NAMES)
    rope = dataclasses.replace(rope, scaling=None) if scaled_after else rope
    if name in STRETCHING and rope.scaling is not None:
        raise ValueError(
            f"extended: {method} changes the frequencies of a RoPE without scaling, and this model was trained with "
            f"{rope.scaling}; choose from {', '.join(one for one in EXTENSION_NAMES if one not in STRETCHING)}"
        )
    if name == "longrope":
        options = {"factors": factors_of(rope, head_dim, factor, trained)[-1], **options}
    try:
        made = _made(name, rope, trained, factor, options)
    except TypeError as error:
        raise ValueError(f"extended: {method} has no such option: {error}") from None
    return compose(LogN(length=trained), made) if method.endswith(LOG_N) else made


def _made(name: str, rope: RoPE, L: int, s: float, options: Options) -> PositionEncoding:
    if name in REMAPPED:
        kind, sizes = REMAPPED[name]
        return kind.of(rope, **{**sizes(L, s, options), **options})
    if name in SCALINGS:
        return dataclasses.replace(rope, scaling=dataclasses.replace(SCALINGS[name](L, s), **options))
    if name == "longrope":
        return dataclasses.replace(rope, scaling=_longrope(L, s, **options))
    if name == "p_rope":
        return _p_rope(rope, **options)
    if name == "drope":
        return enc.NoPE(**options)
    return compose(LogN(**{"length": L, **options}), rope)


def _p_rope(rope: RoPE, keep: float = 0.75) -> RoPE:
    return dataclasses.replace(rope, keep=keep)


def _longrope(L: int, s: float, factors: Factors, attention_factor: float | None = None) -> enc.LongRoPE:
    """Returns factors for sequences past L; the attention factor acts at every length."""
    return enc.LongRoPE((1.0,) * len(factors), tuple(factors), L, attention_factor, s)


def factors_of(rope: RoPE, head_dim: int, factor: float, trained: int) -> list[Factors]:
    """Returns what PI, NTK-aware scaling and NTK-by-parts (YaRN) divide the frequencies of a RoPE by, as factors of LongRoPE.

    Example:
        >>> [found[0] for found in factors_of(RoPE(), 8, 4.0, 64)]
        [4.0, 1.0, 1.0]
    """
    pairs, theta = rope.pairs(head_dim)[0], rope.theta
    plain = geometric(pairs, theta)
    rules = (PositionInterpolation(factor), NTKAware(factor), YaRN(factor, trained))
    return [tuple(map(float, plain / rule.radians(pairs, theta))) for rule in rules]
