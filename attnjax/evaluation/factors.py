"""Factors of LongRoPE for a model, by the loss of a text: what `attnjax evaluate --extend longrope --search TEXT` does.

    factors <- argmin loss over the factors themselves and those with one of them times or over `STEP`, pair by pair

as often as `rounds` says, or until nothing changes. The loss is the mean over the first windows of the text. This is coordinate
descent, and not the evolutionary search of the authors, which takes the perplexity of long documents and mutates and crosses a
population of lists: it may find other factors than theirs, and was not compared with it. Like theirs it begins with what other
rules amount to (PI, NTK-aware, NTK-by-parts), keeps factors from falling with the wavelength, and within 1 and `most`, to which
the starts are clipped. It stays in the first valley that it comes to. Frequencies are data, so one program serves all lists.

Reference: Ding et al. 2024 (arXiv:2402.13753), section 3.3.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from attnjax.evaluation import loaded_model
from attnjax.evaluation.extension import extended_config, with_config
from attnjax.evaluation.methods import Factors, factors_of
from attnjax.modules import Decoder, TransformerConfig, replace_constants
from attnjax.positions import PositionEncoding, RoPE
from attnjax.positions.compose import parts_of
from attnjax.typing import Array, Float, Int, PyTree

STEP = 1.5
"""A factor is tried times and over this."""
WINDOWS = 4
"""Windows of the text that a list of factors is judged by."""
ROUNDS = 2
"""Over all pairs."""
DIGITS = 6
"""Significant digits of a factor, so that one that is printed can be given again."""


def search_factors(
    loss: Callable[[Factors], float],
    starts: Sequence[Factors],
    *,
    rounds: int = ROUNDS,
    most: float,
    step: float = STEP,
) -> Factors:
    """Returns the factors with the lowest loss that a descent from the best of `starts` finds.

    Args:
      loss: of factors, one per pair, as a number; it is asked once for each.
      starts: where to begin, such as `factors_of`; factors below 1 or above `most` begin there.
      rounds: over all pairs; 0 is the best start.
      most: the largest factor.
      step: a factor is tried times and over this.

    Raises ValueError without a start, or for starts of different lengths.

    Example:
        >>> loss = lambda found: abs(found[0] - 1) + abs(found[1] - 3)
        >>> search_factors(loss, [(1.0, 2.0)], rounds=3, most=8.0)
        (1.0, 3.0)
    """
    if not starts or len({len(start) for start in starts}) > 1:
        raise ValueError(f"search_factors needs starts with one factor per pair each, got {list(starts)}")
    losses: dict[Factors, float] = {}

    def known(factors: Factors) -> float:
        if factors not in losses:
            losses[factors] = loss(factors)
        return losses[factors]

    best = min((tuple(min(max(one, 1.0), most) for one in start) for start in starts), key=known)
    for _ in range(rounds):
        before = best
        for pair in range(len(best)):
            tried = [min(max(value, 1.0), most) for value in (best[pair] * step, best[pair] / step)]
            best = min([best, *(_with(best, pair, value) for value in tried)], key=known)
        if best == before:
            break
    return best


def _with(factors: Factors, pair: int, value: float) -> Factors:
    """Returns the factors with one of them changed, and those before and after it moved so that they do not fall."""
    return (*(min(f, value) for f in factors[:pair]), value, *(max(f, value) for f in factors[pair + 1 :]))


def searched(
    model: Decoder,
    method: str,
    tokens: Sequence[int],
    length: int,
    *,
    trained: int,
    factor: float,
    rounds: int = ROUNDS,
    **options: Any,
) -> Factors:
    """Returns factors of LongRoPE with a low mean loss on the first windows of a text.

    Args:
      model: as it was trained.
      method: "longrope", with "+log_n" behind it or not; `trained`, `factor` and `options` are those of `extended_config`.
      tokens: of the text, at least one window.
      length: tokens of a window.
      rounds: over all pairs.

    Raises:
      ValueError: a text that is too short, and mistakes that `extended_config` refuses.
    """
    if len(tokens) < length:
        raise ValueError(
            f"--search needs a text of {length} tokens or more, the longest of --lengths, got {len(tokens)}"
        )
    count = min(WINDOWS, len(tokens) // length)
    windows = np.asarray(tokens[: count * length], np.int32).reshape(count, length)
    loss = Loss(model, windows, method, trained=trained, factor=factor, **options)
    starts = factors_of(loss.rope, model.config.sizes.head_dim, factor, trained)
    found = search_factors(loss, starts, rounds=rounds, most=STEP * factor)
    return tuple(float(f"{one:.{DIGITS}g}") for one in found)


class Loss:
    """The mean loss of windows under a list of factors; all but the windows are arguments of `extended_config`."""

    def __init__(self, model: Decoder, windows: Int[np.ndarray, "B T"], method: str, **options: Any):
        self.config_of = functools.partial(extended_config, model.config, method, **options)
        self.sizes, self.windows, base = model.config.sizes, windows, self.config_of()
        self.rope = next(part for one in base.encodings for part in parts_of(one) if isinstance(part, RoPE))
        self.graph, self.params = nnx.split(with_config(model, base), graph=False)
        self.encodings = _in_attention(base)

    def __call__(self, factors: Factors) -> float:
        """Returns the mean loss of all tokens but the first of each window."""
        encodings, T = _in_attention(self.config_of(factors=factors)), self.windows.shape[1]
        numbers = [_narrow(one.constants(self.sizes, T)) for one in encodings]
        losses = [_loss(self.graph, self.encodings, self.params, numbers, row[None]) for row in self.windows]
        return float(np.mean(jax.device_get(losses)))


def _in_attention(config: TransformerConfig) -> tuple[PositionEncoding, ...]:
    """Returns the encodings of the layers as their attention has them, each once."""
    return tuple(dict.fromkeys(config.attention_encodings))


def _narrow(constants: PyTree) -> PyTree:
    """Returns constants with float32 in place of float64, as a program has them."""
    return jax.tree.map(lambda x: np.asarray(x, np.float32) if np.asarray(x).dtype == np.float64 else x, constants)


@functools.partial(jax.jit, static_argnames=("graph", "encodings"))
def _loss(
    graph: Any,
    encodings: tuple[PositionEncoding, ...],
    params: PyTree,
    numbers: Sequence[PyTree],
    tokens: Int[Array, "B T"],
) -> Float[Array, ""]:
    model = nnx.merge(graph, params)
    replace_constants(model, dict(zip(encodings, numbers, strict=True)))
    return loaded_model.next_token_losses(model(tokens), tokens).mean()
