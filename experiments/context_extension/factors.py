"""Factors of LongRoPE for a model, by the loss of a text.

    factors <- argmin loss over the factors themselves and those with one of them times or over `STEP`, pair by pair

as often as `ROUNDS` says, or until nothing changes. The loss is the mean over the first windows of the text. This is coordinate
descent, and not the evolutionary search of the authors, which takes the perplexity of long documents and mutates and crosses a
population of lists: it may find other factors than theirs, and was not compared with it. Like theirs it begins with what other
rules amount to (PI, NTK-aware, NTK-by-parts), keeps factors from falling with the wavelength, and within 1 and STEP s, to which
the starts are clipped. It stays in the first valley that it comes to. Frequencies are data, so one program serves all lists.

Reference: Ding et al. 2024 (arXiv:2402.13753), section 3.3.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from attnjax.evaluation.extension import extended_config, with_config
from attnjax.evaluation.loaded_model import next_token_losses
from attnjax.evaluation.methods import Factors, factors_of
from attnjax.modules import Decoder, replace_constants
from attnjax.positions import PositionEncoding, RoPE
from attnjax.typing import Array, Float, Int, PyTree

STEP = 1.5
"""A factor is tried times and over this."""
WINDOWS = 4
"""Windows of the text that a list of factors is judged by."""
ROUNDS = 2
"""Over all pairs."""
DIGITS = 6
"""Significant digits of a factor, so that one that is printed can be given again."""


def searched(model: Decoder, tokens: Sequence[int], length: int, *, trained: int, factor: float) -> Factors:
    """Returns factors of LongRoPE with a low mean loss on the first windows of a text.

    Args:
      model: as it was trained; `trained` and `factor` are those of `extended_config`.
      tokens: of the text, at least one window.
      length: tokens of a window.

    Raises:
      ValueError: a text that is too short, and mistakes that `extended_config` refuses.
    """
    count = min(WINDOWS, len(tokens) // length)
    if not count:
        raise ValueError(f"searched: the text must have {length} tokens or more, got {len(tokens)}")
    windows = np.asarray(tokens[: count * length], np.int32).reshape(count, length)
    measured, losses = loss_of(model, windows, trained=trained, factor=factor), dict[Factors, float]()

    def loss(factors: Factors) -> float:
        """Returns the loss of a list, which is measured once."""
        if factors not in losses:
            losses[factors] = measured(factors)
        return losses[factors]

    rope = next(one for one in model.config.encodings if isinstance(one, RoPE))
    within = lambda value: min(max(value, 1.0), STEP * factor)
    starts = factors_of(rope, model.config.sizes.head_dim, factor, trained)
    best = min((tuple(map(within, start)) for start in starts), key=loss)
    for _ in range(ROUNDS):
        before = best
        for pair in range(len(best)):
            tried = [within(best[pair] * STEP), within(best[pair] / STEP)]
            best = min([best, *(_with(best, pair, value) for value in tried)], key=loss)
        if best == before:
            break
    return tuple(float(f"{one:.{DIGITS}g}") for one in best)


def _with(factors: Factors, pair: int, value: float) -> Factors:
    """Returns the factors with one of them changed, and those before and after it moved so that they do not fall."""
    return (*(min(f, value) for f in factors[:pair]), value, *(max(f, value) for f in factors[pair + 1 :]))


def loss_of(
    model: Decoder, windows: Int[np.ndarray, "B T"], *, trained: int, factor: float
) -> Callable[[Factors], float]:
    """Returns the mean loss of all tokens but the first of each window, as a function of the factors of LongRoPE."""
    config_of = functools.partial(extended_config, model.config, "longrope", trained=trained, factor=factor)
    base = config_of()
    graph, params = nnx.split(with_config(model, base), graph=False)
    encodings = tuple(dict.fromkeys(base.attention_encodings))

    def loss(factors: Factors) -> float:
        """Returns the mean loss under these factors, which are data of one compiled program."""
        made = dict.fromkeys(config_of(factors=factors).attention_encodings)
        constants = [one.constants(base.sizes, windows.shape[1]) for one in made]
        losses = [_loss(graph, encodings, params, jax.tree.map(_narrow, constants), row[None]) for row in windows]
        return float(np.mean(jax.device_get(losses)))

    return loss


def _narrow(x: Any) -> Any:
    """Returns a constant with float32 in place of float64, as a program has it."""
    return np.asarray(x, np.float32) if np.asarray(x).dtype == np.float64 else x


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
    return next_token_losses(model(tokens), tokens).mean()
