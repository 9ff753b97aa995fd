"""Ways to read a passage that is longer than the table of positions: each makes one embedding of its tokens.

With L = 512 rows and a passage of T tokens in one window, which [CLS] and [SEP] are part of:

    cut         the first 512 tokens are read, the rest is not
    stretched   the table is interpolated to T rows                    `attnjax.evaluation.extension.stretched`
    grouped     token i has position floor(i / g), g = ceil(T / L)
    chunks      the mean of the embeddings of pieces of 512 tokens, each of length 1

Up to 512 tokens all four are the encoder as it was trained.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from attnjax.typing import Float
from experiments.minilm.texts import WINDOW

Tokens = Sequence[int]
Embeddings = Float[np.ndarray, "B D"]


class Reader(Protocol):
    """An encoder of sentences."""

    def embed(self, texts: Sequence[Tokens], *, group: int = 1, rows: int = WINDOW) -> Embeddings:
        """Embeddings of length 1 of texts without special tokens, with positions floor(i / group) in a table of `rows`."""
        ...


def cut(reader: Reader, texts: Sequence[Tokens]) -> Embeddings:
    """The embeddings of what fits into one window."""
    return reader.embed([text[: WINDOW - 2] for text in texts])


def stretched(reader: Reader, texts: Sequence[Tokens]) -> Embeddings:
    """The embeddings of whole texts, which must have one length, under a table with a row for each token."""
    return reader.embed(texts, rows=max(WINDOW, len(texts[0]) + 2))


def grouped(reader: Reader, texts: Sequence[Tokens]) -> Embeddings:
    """The embeddings of whole texts, which must have one length, in the smallest groups with which the table suffices."""
    return reader.embed(texts, group=math.ceil((len(texts[0]) + 2) / WINDOW))


def chunks(reader: Reader, texts: Sequence[Tokens]) -> Embeddings:
    """The mean of the embeddings of windows side by side."""
    starts = range(0, len(texts[0]), WINDOW - 2)
    parts = [reader.embed([text[start : start + WINDOW - 2] for text in texts]) for start in starts]
    return np.mean(parts, axis=0)


TRAINED = "trained"
"""What records call reading up to 512 tokens, where all methods are the same."""
METHODS: dict[str, Callable[[Reader, Sequence[Tokens]], Embeddings]] = {
    "cut": cut,
    "stretched": stretched,
    "grouped": grouped,
    "chunks": chunks,
}


def ranks(questions: Embeddings, found: Embeddings) -> list[int]:
    """The rank of passage i among all, by the cosine with question i: 1 where every other one has a lower cosine.

    Example:
      >>> ranks(np.eye(3), np.array([[1.0, 0, 0], [0.9, 1, 0], [0, 0.5, 0.5]]))
      [1, 1, 1]
      >>> ranks(np.eye(2), np.ones((2, 2)))
      [2, 2]
    """
    unit = lambda x: x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    cosines = unit(questions) @ unit(found).T
    own = np.diag(cosines)[:, None]
    others = ~np.eye(len(cosines), dtype=bool)
    return [int(one) for one in 1 + (others & ~(cosines < own)).sum(1)]
