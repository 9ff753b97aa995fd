"""MiniLM as a reader: tokens between [CLS] and [SEP], features of attnjax, their mean, at length 1 (sentence-transformers)."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.attention import Mask
from attnjax.evaluation.extension import stretched
from attnjax.models import load, load_tokenizer
from attnjax.models.tokens import Tokenizer
from attnjax.modules import Encoder
from attnjax.typing import Float
from experiments.minilm.texts import WINDOW

BATCH = 2048
"""Tokens that are read at once, or one text."""


class MiniLM:
    """An encoder of `attnjax.models` with its tokenizer, whose special tokens stand around every text."""

    def __init__(self, model: Encoder, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer
        self.first, self.last = tokenizer.encode("")
        self._program = functools.cache(self._compiled)

    @classmethod
    def of_folder(cls, folder: pathlib.Path) -> Self:
        """The model of a folder of config.json, weights and tokenizer.json."""
        return cls(load(folder).model, load_tokenizer(folder))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""
        return self.tokenizer.encode(text, specials=False)

    def embed(self, texts: Sequence[Sequence[int]], *, group: int = 1, rows: int = WINDOW) -> Float[np.ndarray, "B D"]:
        """The embeddings of texts of any lengths; see `reading.Reader`."""
        program, params = self._program(rows)
        width = max(map(len, texts)) + 2
        tokens = np.zeros((len(texts), width), np.int32)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text) + 2] = self.first, *text, self.last
        valid = np.arange(width) < np.array([len(text) + 2 for text in texts])[:, None]
        pos, step = np.arange(width) // group, max(1, BATCH // width)
        parts = [
            np.asarray(program(params, tokens[i : i + step], valid[i : i + step], pos))
            for i in range(0, len(texts), step)
        ]
        return np.concatenate(parts)

    def _compiled(self, rows: int) -> tuple[Callable[..., Any], Any]:
        """The compiled encoder with a table of so many rows, and its parameters."""
        model = stretched(self.model, rows) if rows > WINDOW else self.model
        graph, params = nnx.split(model, graph=False)

        def run(params: Any, tokens: Any, valid: Any, pos: Any) -> Any:
            features = nnx.merge(graph, params).features(tokens, pos=pos, mask=Mask(k_valid=valid))
            mean = jnp.where(valid[..., None], features, 0).sum(1) / valid.sum(1, keepdims=True, dtype=features.dtype)
            return mean / jnp.linalg.norm(mean, axis=1, keepdims=True)

        return jax.jit(run), params
