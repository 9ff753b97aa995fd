"""Methods of reading past the trained length without training: which encoding each puts in place of RoPE.

With L the trained length and s the factor by which it is exceeded, each method has the sizes that its authors use or, where
they depend on s, the smallest that keep all distances below L:

    pi ntk dynamic_ntk yarn    the scalings by s                           `positions/scaling.py`
    longrope                   a factor for each pair past L, given or those of yarn; searched by `factors.py`
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

`NAME+log_n` scales the logits of a method by log n as well, as the author of ReRoPE does. Under dynamic_ntk and longrope the
frequencies depend on the length: that of the tokens of a call, or of the cache. So a model that generates says the same as one
that is run again on as many tokens as the cache has room for.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

from attnjax import positions as enc
from attnjax.config.kinds import coerce
from attnjax.config.names import EXTENSION_NAMES, nearest
from attnjax.positions import LogN, PositionEncoding, RoPE, YaRN, compose
from attnjax.positions.angles import geometric
from attnjax.positions.checks import validate_integer
from attnjax.positions.scaling import Factor, NTKAware, PositionInterpolation

LOG_N = "+log_n"
KEEP = 0.75
"""p of p-RoPE."""
STRETCHING = ("pi", "ntk", "dynamic_ntk", "yarn", "longrope", "resonance")
"""Methods that change the frequencies of a RoPE without scaling."""
Factors = tuple[float, ...]
Options = dict[str, Any]
Method = Callable[[RoPE, int, float, Options], PositionEncoding]


def _scaling(make: Callable[[int, float], Any]) -> Method:
    """Returns a method that puts a scaling made of L and s on a RoPE."""
    return lambda rope, L, s, given: dataclasses.replace(rope, scaling=dataclasses.replace(make(L, s), **given))


def _longrope(rope: RoPE, L: int, s: float, given: Options) -> RoPE:
    """Returns a RoPE with factors for sequences past L; the attention factor acts at every length."""
    made = lambda factors, attention_factor=None: enc.LongRoPE(
        (1.0,) * len(factors), tuple(factors), L, attention_factor, s
    )
    return dataclasses.replace(rope, scaling=made(**given))


def _remapped(kind: type[enc.Remapped], sizes: Callable[[int, float, Options], Options]) -> Method:
    """Returns a method that remaps the positions of a RoPE, with sizes made of L, s and those that are given."""

    def method(rope: RoPE, L: int, s: float, given: Options) -> enc.Remapped:
        """Returns the remapped encoding that has the frequencies of this RoPE."""
        whole = {name: size for name, size in given.items() if name in ("window", "group", "first")}
        validate_integer(kind.__name__, **whole)
        return kind.of(rope, **{**sizes(L, s, whole), **given})

    return method


def _slower(window: int, L: int, s: float) -> int:
    """Returns how many times as slowly distances grow past a window, so that s L tokens have none of L or more."""
    return max(1, math.ceil((s * L - window) / (L - window)))


def _check_window(L: int, window: int) -> int:
    """Returns the window. Raises ValueError where distances within it reach the trained length."""
    if window >= L:
        raise ValueError(f"extended: window must be below the trained length, {L}, got {window}")
    return window


def _self_extend(L: int, s: float, given: Options) -> Options:
    """Returns the smallest groups, or for given groups the widest window up to L / 4, that keep distances below L."""
    farthest = lambda window, group: (math.ceil(s * L) - 1) // group + window - window // group
    if "group" in given and "window" not in given:
        widths = (width for width in range(L // 4, 0, -1) if farthest(width, given["group"]) < L)
        return {"window": next(widths, L // 4)}
    window = _check_window(L, given.get("window", L // 4))
    groups = itertools.count(_slower(window, L, s))
    return {"window": window, "group": next(group for group in groups if farthest(window, group) < L)}


def _leaky_rerope(L: int, s: float, given: Options) -> Options:
    window = _check_window(L, given.get("window", L // 8))
    return {"window": window, "factor": _slower(window, L, s)}


def _streaming_llm(L: int, s: float, given: Options) -> Options:
    """Returns the first keys and the window, whose sum is below L."""
    first = given.get("first", min(4, L - 1 - _check_window(L - 1, given.get("window", L - 5))))
    return {"first": first, "window": L - 1 - _check_window(L - 1, first)}


METHODS: dict[str, Method] = {
    "pi": _scaling(lambda L, s: enc.PositionInterpolation(s)),
    "ntk": _scaling(lambda L, s: enc.NTKAware(s)),
    "dynamic_ntk": _scaling(lambda L, s: enc.DynamicNTK(1.0, L)),
    "yarn": _scaling(lambda L, s: YaRN(s, L)),
    "longrope": _longrope,
    "resonance": _scaling(lambda L, s: enc.Resonance(YaRN(s, L))),
    "p_rope": lambda rope, L, s, given: (lambda keep=KEEP: dataclasses.replace(rope, keep=keep))(**given),
    "drope": lambda rope, L, s, given: enc.NoPE(**given),
    "log_n": lambda rope, L, s, given: compose(LogN(**{"length": L, **given}), rope),
    "self_extend": _remapped(enc.SelfExtend, _self_extend),
    "rerope": _remapped(enc.ReRoPE, lambda L, s, given: {"window": L // 8}),
    "leaky_rerope": _remapped(enc.LeakyReRoPE, _leaky_rerope),
    "dual_chunk": _remapped(enc.DualChunk, lambda L, s, given: {"chunk": 3 * L // 4, "local": L // 8}),
    "lm_infinite": _remapped(enc.LMInfinite, lambda L, s, given: {"first": 10, "window": L - 1}),
    "streaming_llm": _remapped(enc.StreamingLLM, _streaming_llm),
}
"""From the RoPE of a model, L, s and the sizes that are given to the encoding of a method."""


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
      >>> extended_encoding("self_extend", RoPE(), trained=128, factor=8.0).group
      11
    """
    validate_integer("extended", minimum=8, trained=trained)
    factor = coerce(Factor, factor, "extended: factor")
    name = method.removesuffix(LOG_N)
    if name not in METHODS or (name == "log_n" and method != name):
        choices = f"{nearest(name, EXTENSION_NAMES)}; choose from {', '.join(EXTENSION_NAMES)}"
        raise ValueError(f"extended: unknown method {method!r}{choices}")
    rope = dataclasses.replace(rope, scaling=None) if scaled_after else rope
    if name in STRETCHING and rope.scaling is not None:
        others = ", ".join(one for one in METHODS if one not in STRETCHING)
        raise ValueError(
            f"extended: {method} changes the frequencies of a RoPE without scaling, and this model was trained with "
            f"{rope.scaling}; the methods that leave them are {others}"
        )
    if name == "longrope" and "factors" not in options:
        if head_dim is None:
            raise ValueError("extended: longrope needs factors=(...), one per pair, or the head dimension, head_dim")
        options = {**options, "factors": factors_of(rope, head_dim, factor, trained)[-1]}
    try:
        made = METHODS[name](rope, trained, factor, options)
    except TypeError as error:
        raise ValueError(f"extended: {method} has no such option: {error}") from None
    return compose(LogN(length=trained), made) if method.endswith(LOG_N) else made


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
