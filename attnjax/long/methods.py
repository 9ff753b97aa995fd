"""A trained model, read past its trained length without training: other encodings and masks, the same parameters.

A decoder with RoPE, `extended`. With L the trained length and s the factor by which it is exceeded, each method puts another
encoding in place of every RoPE, with the sizes that its authors use or, where they depend on s, the smallest that keep all
distances below L:

    pi ntk dynamic_ntk yarn    the scalings by s                           `positions/scaling.py`
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

Under dynamic_ntk and longrope the frequencies depend on the length: that of the tokens of a call, or of the cache. So a model
that generates says the same as one that is run again on as many tokens as the cache has room for.

A RoPE in a composition is exchanged too, and the other parts stay: scales of queries, such as SSMax, and biases. A part that
reads queries or keys was trained with those that RoPE has turned, and RoPE at remapped positions turns them later, in the
score: beside such a part these methods are refused. They replace logits, so they come first.

A model with learned positions, `stretched`. With L rows of the table E and T >= L positions, row i of the longer table lies
between two old rows:

    E'_i = (1 - w) E_(floor(x)) + w E_(floor(x) + 1),    x = i (L - 1) / (T - 1),    w = x - floor(x)

So the first and the last row stay, and all others are moved together, as Position Interpolation does with the positions of
RoPE. Positions in groups of g, floor(i / g), need no other table: `model(tokens, pos=np.arange(T) // g)`.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax import positions as enc
from attnjax.config.architecture import Window
from attnjax.config.kinds import coerce
from attnjax.config.names import EXTENSION_NAMES, nearest
from attnjax.long.factor_search import by_parts, check_factors
from attnjax.modules import Decoder, TransformerConfig
from attnjax.modules.config import left_of, windowed
from attnjax.modules.models import TokenModel
from attnjax.modules.parameters import with_parameters
from attnjax.positions import LogN, PositionEncoding, RoPE, YaRN, compose
from attnjax.positions.checks import validate_integer
from attnjax.positions.compose import joined, parts_of
from attnjax.positions.scaling import Factor
from attnjax.typing import Array, Float

LOG_N = "+log_n"
KEEP = 0.75
"""p of p-RoPE."""
Options = dict[str, Any]
Model = TypeVar("Model", bound=TokenModel)

BY_LOGARITHM = (enc.SSMax, enc.Llama4Temperature, LogN)
"""Encodings that scale queries by a logarithm of their position."""
OF_LOGITS = (enc.FIRE, enc.StickBreaking)
"""Scores that read positions and logits, and neither queries nor keys."""
OTHERS: dict[tuple[type[PositionEncoding], ...], str] = {
    (enc.XPos,): "its scores also fade with the distance as in training, which another rotation would leave as it is",
    (enc.PoPE,): "it turns magnitudes of single channels, with learned phases, and has no pairs of channels",
    (enc.AxialRoPE, enc.MixedRoPE, enc.MRoPE): "its positions have several coordinates, each with lengths of its own",
    (
        enc.RePo,
        enc.SelectiveRoPE,
    ): "it turns by numbers that are computed from the tokens, so that no length bounds them",
    (enc.PaTH,): "its rotations are reflections of the tokens between, with no frequency",
    (enc.Remapped,): "it is such a method already",
}
"""Encodings that turn queries and keys and are no RoPE, and why no method takes them for one."""


def _scaling(make: Callable[[int, float], Any]) -> Callable[[RoPE, int, float, Options], RoPE]:
    """A method that replaces the scaling of a RoPE by one made of L and s."""
    scaled = lambda L, s, options: dataclasses.replace(make(L, s), **options)
    return lambda rope, L, s, options: dataclasses.replace(rope, scaling=scaled(L, s, options))


def _longrope(rope: RoPE, L: int, s: float, options: Options) -> RoPE:
    """LongRoPE with factors for sequences past L; the frequencies stay up to L. The attention factor acts at every length."""

    def made(factors: Any, attention_factor: float | None = None) -> enc.LongRoPE:
        return enc.LongRoPE((1.0,) * len(factors), factors, L, attention_factor, s)

    return dataclasses.replace(rope, scaling=made(**options))


def _p_rope(rope: RoPE, L: int, s: float, options: Options) -> RoPE:
    """The RoPE of which a share of the pairs turns."""
    del L, s
    made = lambda keep=KEEP: dataclasses.replace(rope, keep=keep)
    return made(**options)


def _remapped(kind: type[enc.Remapped], sizes: Callable[[int, float, Options], Options]) -> Callable[..., enc.Remapped]:
    """A method that remaps the positions of a RoPE, with sizes made of L, s and those that are given."""

    def method(rope: RoPE, L: int, s: float, options: Options) -> enc.Remapped:
        whole = {name: size for name, size in options.items() if name in ("window", "group", "first")}
        validate_integer(kind.__name__, **whole)
        return kind.of(rope, **{**sizes(L, s, whole), **options})

    return method


def _slower(window: int, L: int, s: float) -> int:
    """How many times as slowly distances grow past a window, so that s L tokens have none of L or more."""
    return max(1, math.ceil((s * L - window) / (L - window)))


def _size(given: Options, name: str, limit: int, usual: int) -> int:
    """The size that is given, or the usual one where none is, or where no other size can make up for it."""
    size = given.get(name, usual)
    return size if size < limit else usual


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
    rest = lambda name, usual: L - 1 - _size(given, name, L - 1, usual)
    return {"first": min(4, rest("window", L - 5)), "window": rest("first", 4)}


METHODS: dict[str, Callable[[RoPE, int, float, Options], PositionEncoding]] = {
    "pi": _scaling(lambda L, s: enc.PositionInterpolation(s)),
    "ntk": _scaling(lambda L, s: enc.NTKAware(s)),
    "dynamic_ntk": _scaling(lambda L, s: enc.DynamicNTK(1.0, L)),
    "yarn": _scaling(lambda L, s: YaRN(s, L)),
    "longrope": _longrope,
    "resonance": _scaling(lambda L, s: enc.Resonance(YaRN(s, L))),
    "p_rope": _p_rope,
    "drope": lambda rope, L, s, options: enc.NoPE(**options),
    "log_n": lambda rope, L, s, options: compose(LogN(**{"length": L, **options}), rope),
    "self_extend": _remapped(enc.SelfExtend, _self_extend),
    "rerope": _remapped(enc.ReRoPE, lambda L, s, given: {"window": L // 8}),
    "leaky_rerope": _remapped(enc.LeakyReRoPE, _leaky_rerope),
    "dual_chunk": _remapped(enc.DualChunk, lambda L, s, given: {"chunk": 3 * L // 4, "local": L // 8}),
    "lm_infinite": _remapped(enc.LMInfinite, lambda L, s, given: {"first": 10, "window": L - 1}),
    "streaming_llm": _remapped(enc.StreamingLLM, _streaming_llm),
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
    if name == "longrope":
        given = options.get("factors")
        if given is not None:
            found = check_factors(given, None if head_dim is None else rope.pairs(head_dim)[0])
        elif head_dim is not None:
            found = by_parts(rope, head_dim, factor, trained)
        else:
            raise ValueError("extended: longrope needs factors=(...), one per pair, or the head dimension, head_dim")
        options = {**options, "factors": found}
    try:
        made = METHODS[name](rope, trained, factor, options)
    except TypeError as error:
        raise ValueError(f"extended: {method} has no such option: {error}") from None
    return compose(LogN(length=trained), made) if method.endswith(LOG_N) else made


def extended_config(
    config: TransformerConfig, method: str, *, trained: int, factor: float, scaled_after: bool = False, **options: Any
) -> TransformerConfig:
    """Returns the config with the encoding of a method in place of every RoPE, and the window that the method reads through.

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
    for kinds, reason in OTHERS.items():
        for part in parts:
            if isinstance(part, kinds):
                raise ValueError(f"extended: methods are for RoPE, and the model has {part}: {reason}")
    if not any(isinstance(part, RoPE) for part in parts):
        raise ValueError(f"extended: the model has no RoPE whose positions could be changed, but {config.encodings[0]}")
    known = {"head_dim": config.sizes.head_dim, "scaled_after": scaled_after}
    change = lambda rope: extended_encoding(method, rope, trained, factor, **known, **options)
    return _with_encodings(config, tuple(_exchanged(one, method, change) for one in config.encodings))


def _exchanged(encoding: PositionEncoding, method: str, change: Callable[[RoPE], PositionEncoding]) -> PositionEncoding:
    """The encoding with that of a method in place of its RoPE, or first where the method replaces logits."""
    parts = parts_of(encoding)
    ropes = [(i, part) for i, part in enumerate(parts) if isinstance(part, RoPE)]
    if not ropes:
        return encoding
    if len(ropes) > 1:
        came = f"{encoding} has {len(ropes)} in one composition"
        raise ValueError(f"extended: a method takes the place of one RoPE, and {came}")
    ((at, rope),) = ropes
    before, after, made = parts[:at], parts[at + 1 :], parts_of(change(rope))
    replaces = any(one.replaces_logits for one in made)
    for part in (*before, *after):
        if isinstance(part, BY_LOGARITHM) and any(isinstance(one, LogN) for one in made):
            raise ValueError(f"extended: {method} multiplies logits by log n, which {part} does already")
        if replaces and part.has("angle", "map_q", "map_k", "score") and not isinstance(part, BY_LOGARITHM + OF_LOGITS):
            raise ValueError(
                f"extended: {method} turns queries and keys in the score, and {part}, which reads them, was trained with those "
                "that are turned before"
            )
    return joined((*made, *before, *after) if replaces else (*before, *made, *after))


def _with_encodings(config: TransformerConfig, encodings: tuple[PositionEncoding, ...]) -> TransformerConfig:
    """The config with these encodings and the mask that they are made for: no layer sees further than before.

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
    """The encoding with this window where it is made for one."""
    change = lambda part: dataclasses.replace(part, window=left_of(window)) if windowed(part) else part
    return joined(tuple(map(change, parts_of(encoding))))


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


def with_config(model: Decoder, config: TransformerConfig) -> Decoder:
    """Returns a decoder of another config with the parameters of `model`, which must be the same in the same order.

    The parameters of a part of a composition have the place of the part in their path, which changes where a part moves or one
    without parameters joins it; their order does not.

    Example:
      >>> config = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=32, encoding=RoPE())
      >>> other = with_config(Decoder(config, rngs=nnx.Rngs(0)), dataclasses.replace(config, encoding=enc.NoPE()))
      >>> other.config.encoding
      NoPE()
    """
    make = lambda: Decoder(config, rngs=nnx.Rngs(0))
    ours, theirs = (nnx.to_pure_dict(nnx.split(one, graph=False)[1]) for one in (model, nnx.eval_shape(make)))
    if [leaf.shape for leaf in jax.tree.leaves(ours)] != [leaf.shape for leaf in jax.tree.leaves(theirs)]:
        raise ValueError(f"{config} has other parameters than {model.config}")
    return with_parameters(make, jax.tree.unflatten(jax.tree.structure(theirs), jax.tree.leaves(ours)))


def stretched(model: Model, length: int) -> Model:
    """Returns a model with the parameters of `model`, whose table of positions is stretched to `length` rows.

    Args:
      model: an `Encoder` or a `Decoder`, one of `attnjax.models` or not, with one table of positions.
      length: rows of the longer table, at least as many as there are.

    Raises:
      ValueError: a length below that of the table, and a model without a table or with several.

    Example:
      >>> from attnjax.modules import Encoder
      >>> config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=32, encoding=enc.Learned(8))
      >>> model = stretched(Encoder(config, rngs=nnx.Rngs(0)), 20)
      >>> model.config.encoding.length, model(np.arange(20)[None] % 11).shape
      (20, (1, 20, 11))
    """
    tables = [(i, one) for i, one in enumerate(model.stack.encodings) if isinstance(one, enc.Learned)]
    if len(tables) != 1:
        raise ValueError(f"stretched: the model must have one table of positions (Learned), it has {len(tables)}")
    ((index, learned),) = tables
    validate_integer("stretched", minimum=learned.length, length=length)
    longer = lambda part: dataclasses.replace(part, length=length) if isinstance(part, enc.Learned) else part
    config = _with_encodings(
        model.config, tuple(joined([longer(part) for part in parts_of(one)]) for one in model.config.encodings)
    )
    params = nnx.to_pure_dict(nnx.split(model, graph=False)[1])
    own = params["stack"]["inputs"][index]
    own["table"] = stretched_table(own["table"], length)
    return with_parameters(lambda: type(model)(config, rngs=nnx.Rngs(0)), params)


def stretched_table(table: Float[Array, "L D"], length: int) -> Float[Array, "T D"]:
    """Returns the rows of a table, interpolated to `length` of them, in its type.

    Example:
      >>> stretched_table(jnp.array([[0.0], [10.0], [40.0]]), 5)[:, 0].tolist()
      [0.0, 5.0, 10.0, 25.0, 40.0]
    """
    last = table.shape[0] - 1
    at = np.arange(length) * last / max(length - 1, 1)
    below = np.minimum(at.astype(int), max(last - 1, 0))
    weight = jnp.asarray(at - below, table.dtype)[:, None]
    return (1 - weight) * table[below] + weight * table[np.minimum(below + 1, last)]
