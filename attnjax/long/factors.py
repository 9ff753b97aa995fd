"""Factors of LongRoPE for a model, by the loss of a text: what `attnjax evaluate --extend longrope --search TEXT` does.

    factors <- argmin mean loss of the first windows of the text, each of the longest length

by the coordinate descent of `attnjax.long.factor_search`, from the factors of PI, NTK-aware scaling and NTK-by-parts, each
at least 1 and at most `STEP` times the factor of the extension. The loss is that of all tokens, where the authors' search takes
the perplexity of long documents and a population of lists. Frequencies are data, so that one program serves all lists.

Reference: Ding et al. 2024 (arXiv:2402.13753), section 3.3.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from attnjax.analysis import loaded_model
from attnjax.long.extending import Extension, Trained
from attnjax.long.factor_search import STEP, Factors, factors_of, search_factors
from attnjax.long.methods import with_config
from attnjax.modules import Decoder, TransformerConfig, replace_constants
from attnjax.positions import PositionEncoding, RoPE
from attnjax.positions.compose import joined, parts_of
from attnjax.typing import Array, Float, Int, PyTree

WINDOWS = 4
"""Windows of the text that a list of factors is judged by."""
ROUNDS = 2
"""Over all pairs."""
DIGITS = 6
"""Significant digits of a factor, so that one that is printed can be given again."""


def searched(
    model: Decoder, extension: Extension, trained: Trained, tokens: Sequence[int], rounds: int = ROUNDS
) -> Factors:
    """Returns factors of LongRoPE with a low mean loss on the first windows of a text.

    Args:
      model: as it was trained.
      extension: whose longest sequence is the length of a window.
      trained: the trained length.
      tokens: of the text, at least one window.
      rounds: over all pairs.

    Raises:
      ValueError: a text that is too short, and mistakes that `extended_config` refuses.
    """
    length = extension.longest
    if len(tokens) < length:
        raise ValueError(
            f"--search needs a text of {length} tokens or more, the longest of --lengths, got {len(tokens)}"
        )
    count = min(WINDOWS, len(tokens) // length)
    windows = np.asarray(tokens[: count * length], np.int32).reshape(count, length)
    factor, head_dim = extension.factor(trained), model.config.sizes.head_dim
    loss = Loss(model, extension, trained, windows)
    starts = factors_of(loss.rope, head_dim, factor, trained.length)
    found = search_factors(loss, starts, rounds=rounds, most=STEP * factor)
    return tuple(float(f"{one:.{DIGITS}g}") for one in found)


class Loss:
    """The mean loss of windows under a list of factors."""

    def __init__(self, model: Decoder, extension: Extension, trained: Trained, windows: Int[np.ndarray, "B T"]):
        self.config, self.extension, self.trained, self.windows = model.config, extension, trained, windows
        plain = tuple(map(_unscaled, self._config(None).encodings))
        self.rope = next(part for one in plain for part in parts_of(one) if isinstance(part, RoPE))
        self.graph, self.params = nnx.split(
            with_config(model, dataclasses.replace(model.config, encoding=plain)), graph=False
        )
        self.encodings = _in_attention(dataclasses.replace(model.config, encoding=plain))

    def __call__(self, factors: Factors) -> float:
        """Returns the mean loss of all tokens but the first of each window."""
        encodings, T = _in_attention(self._config(factors)), self.windows.shape[1]
        numbers = [_narrow(one.constants(self.config.sizes, T)) for one in encodings]
        losses = [_loss(self.graph, self.encodings, self.params, numbers, row[None]) for row in self.windows]
        return float(np.mean(jax.device_get(losses)))

    def _config(self, factors: Factors | None) -> TransformerConfig:
        options = self.extension.options if factors is None else {**self.extension.options, "factors": factors}
        return dataclasses.replace(self.extension, options=options).config(self.config, self.trained)


def _in_attention(config: TransformerConfig) -> tuple[PositionEncoding, ...]:
    """Returns the encodings of the layers as their attention has them, each once."""
    return tuple(dict.fromkeys(config.attention_encodings))


def _unscaled(encoding: PositionEncoding) -> PositionEncoding:
    """Returns the encoding with the RoPE that factors are put on."""
    bare = lambda one: dataclasses.replace(one, scaling=None) if isinstance(one, RoPE) else one
    return joined(tuple(map(bare, parts_of(encoding))))


def _narrow(constants: PyTree) -> PyTree:
    """Returns constants with float32 in place of float64, as a program has them."""
    return jax.tree.map(lambda x: np.asarray(x, np.float32) if np.asarray(x).dtype == np.float64 else x, constants)


@functools.partial(jax.jit, static_argnames=("graph", "encodings"))
def _loss(
    graph: Any, encodings: tuple[PositionEncoding, ...], params: PyTree, numbers: list[Any], tokens: Int[Array, "B T"]
) -> Float[Array, ""]:
    model = nnx.merge(graph, params)
    replace_constants(model, dict(zip(encodings, numbers, strict=True)))
    return loaded_model.next_token_losses(model(tokens), tokens).mean()
