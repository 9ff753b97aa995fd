"""The ways to read past the training length that are compared: each is another encoding for the same weights.

With L the trained length, s the `factor` by which it is exceeded, and f_k the frequencies that the model was trained with:

    none         f_k                                                       as trained
    pi           f_k / s                                                   Chen et al. 2023 (arXiv:2306.15595)
    ntk          f_k of the base theta s^(d/(d-2))                         Peng et al. 2023 (arXiv:2309.00071), section 3.1
    dynamic_ntk  the same with s = T/L for a sequence of T > L             the same, section 3.3
    yarn         f_k / s for slow pairs, f_k for fast ones; hotter logits  the same, sections 3.2 and 3.4
    longrope     f_k / lambda_k with searched lambda_k for T > L           Ding et al. 2024 (arXiv:2402.13753)
    p_rope       f_k of the fastest 3/4 of the pairs, 0 of the others      Barbero et al. 2025 (arXiv:2410.06205)
    drope        0                                                         Gelberg et al. 2025 (arXiv:2512.12167)
    resonance    2 pi / round(2 pi / f_k) of the frequencies of yarn       Wang et al. 2024 (arXiv:2403.00071)

and the positions, which are not trained with:

    self_extend    distances in groups past a window                       Jin et al. 2024 (arXiv:2401.01325)
    rerope         one distance past a window, and log-n scaling           Su 2023 (https://github.com/bojone/rerope)
    leaky_rerope   slower distances past a window, and log-n scaling       the same
    dual_chunk     distances within and between chunks                     An et al. 2024 (arXiv:2402.17463)
    lm_infinite    the first keys at one distance, beside a window         Han et al. 2024 (arXiv:2308.16137)
    streaming_llm  the first keys as near as in a cache, beside a window   Xiao et al. 2023 (arXiv:2309.17453)
    log_n          log-n scaling alone, of RoPE as trained                 Chiang & Cholak 2022 (arXiv:2202.12172)

The factor is fixed, as in a model that is published for one longer context: short sequences are read with it too. The
authors of p-RoPE train with it; here it is put on a model that was trained without. All sizes are those of
`attnjax.evaluation.methods`.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from attnjax.evaluation.methods import extended_encoding
from attnjax.positions import DynamicNTK, PositionEncoding, RoPE, Sizes, YaRN
from attnjax.positions.angles import Frequencies
from attnjax.registry import DASHED, DOTTED, MIXED, SOLID
from attnjax.report.formatting import markdown
from attnjax.report.style import Style

METHODS = (
    ("none", Style("RoPE as trained", "#272727", "#f2f2f2", SOLID, "p")),
    ("pi", Style("PI", "#b07800", "#e8b44a", DASHED, "s")),
    ("ntk", Style("NTK", "#56b4e9", "#8fd0f5", SOLID, "v")),
    ("dynamic_ntk", Style("dynamic NTK", "#074a8d", "#4092f5", DASHED, "D")),
    ("yarn", Style("YaRN", "#049f69", "#26d87a", SOLID, "o")),
    ("longrope", Style("LongRoPE", "#c43e00", "#f66231", SOLID, "^")),
    ("p_rope", Style("p-RoPE", "#d270ad", "#f082c2", DOTTED, "P")),
    ("drope", Style("DroPE", "#6a3fa0", "#bb98f3", MIXED, "<")),
    ("resonance", Style("Resonance YaRN", "#7a7a00", "#c8c832", DOTTED, "X")),
    ("self_extend", Style("Self-Extend", "#049f69", "#26d87a", SOLID, "o")),
    ("rerope", Style("ReRoPE + log n", "#c43e00", "#f66231", SOLID, "^")),
    ("leaky_rerope", Style("Leaky ReRoPE + log n", "#b07800", "#e8b44a", DASHED, "s")),
    ("dual_chunk", Style("Dual chunk", "#6a3fa0", "#bb98f3", MIXED, "<")),
    ("lm_infinite", Style("LM-Infinite", "#56b4e9", "#8fd0f5", SOLID, "v")),
    ("streaming_llm", Style("StreamingLLM", "#074a8d", "#4092f5", DASHED, "D")),
    ("log_n", Style("log n", "#d270ad", "#f082c2", DOTTED, "P")),
)
"""Names in the order of all tables, and how curves are drawn; colours return in the second family, whose panel is its own."""
NAMES = tuple(name for name, _ in METHODS)
POSITIONS = NAMES[NAMES.index("self_extend") :]
"""Methods that remap positions or scale logits by them, without training; the others change frequencies."""
FREQUENCIES = NAMES[: NAMES.index("self_extend")]
WITH_LOG_N = ("rerope", "leaky_rerope")
"""Whose author scales logits by log n."""


def look(method: str) -> Style:
    """Colour, dash, marker and label of a method."""
    return dict(METHODS)[method]


def named(method: str) -> str:
    """The method as pages and tables call it."""
    return markdown(look(method).label)


@dataclasses.dataclass(frozen=True)
class Extension:
    """By how much the trained length L is exceeded, and what some methods need to know beside it.

    Attributes:
      trained: L.
      factor: s.
      factors: lambda_k of LongRoPE for sequences past L, one per pair; up to L they are 1.
      logit_scale: c of DroPE, whose logits are multiplied by 1 + c ln(T/L) for T > L; 0 leaves them as they are.
    """

    trained: int
    factor: float
    factors: tuple[float, ...] = ()
    logit_scale: float = 0.0


def encoding(method: str, base: RoPE, extension: Extension) -> PositionEncoding:
    """The encoding of a method in place of `base`, the RoPE of the trained model.

    A scaling that `base` has is left as it is by `none`. If it is put on after training, as those of YaRN and dynamic NTK are,
    the other methods take its place; any other is what the model was trained with.

    Raises ValueError for a method that is not known, or that the library refuses.
    """
    if method == "none":
        return base
    if method not in NAMES:
        raise ValueError(f"a method must be one of {', '.join(NAMES)}, got {method!r}")
    options: dict[str, Any] = {"factors": extension.factors} if method == "longrope" else {}
    L, s, after = extension.trained, extension.factor, scaled_after(base)
    return extended_encoding(published_name(method), base, L, s, scaled_after=after, **options)


def scaled_after(base: RoPE) -> bool:
    """Whether the scaling of a RoPE is one that is put on after training."""
    return isinstance(base.scaling, YaRN | DynamicNTK)


def published_name(method: str) -> str:
    """The method as `attnjax.evaluation.methods` calls it."""
    return f"{method}+log_n" if method in WITH_LOG_N else method


def numbers(method: str, base: RoPE, head: int, extension: Extension, length: int) -> dict[str, Any]:
    """Frequencies and attention factor of a method for a sequence of `length`, so that all methods are one program.

    No rotation is a rotation by 0. A factor of the logits is that of the queries and of the keys, its root for each.
    """
    chosen = encoding(method, base, extension)
    if isinstance(chosen, RoPE):
        gain = 1.0 if chosen.scaling is None else chosen.scaling.gain
        found = chosen.constants(Sizes(head, 1, 1, head), length)["frequencies"]
    else:
        pairs, _ = base.pairs(head)
        gain = math.sqrt(1 + extension.logit_scale * math.log(max(length / extension.trained, 1.0)))
        found = Frequencies(np.zeros(pairs, np.uint32), np.zeros(pairs, np.uint32), np.zeros(pairs))
    found = Frequencies(found.high, found.low, np.asarray(found.radians, np.float32))
    return {"frequencies": found, "gain": np.float32(gain)}
