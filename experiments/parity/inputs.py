"""The inputs of both sides of a comparison: two random sequences, the second padded, and their labels."""

from typing import NamedTuple

import numpy as np

from attnjax.models.base import Spec
from attnjax.models.loading import Loaded
from attnjax.modules import Decoder, EncoderDecoder
from attnjax.positions import DynamicNTK, LongRoPE, RoPE

NONE = -100
"""The label of a token without loss."""


class Inputs(NamedTuple):
    """Token ids [B, T], booleans that are False where they are padding, and the labels of the output.

    `source` and `source_valid` are for an encoder-decoder, `types` for models with token types.
    """

    tokens: np.ndarray
    valid: np.ndarray
    labels: np.ndarray
    source: np.ndarray | None = None
    source_valid: np.ndarray | None = None
    types: np.ndarray | None = None

    @property
    def positions(self) -> np.ndarray:
        """The positions of tokens [B, T], of which padding takes none."""
        return np.maximum(np.cumsum(self.valid, 1) - 1, 0).astype(np.int32)


def draw(loaded: Loaded, length: int, seed: int) -> Inputs:
    """Returns two random sequences. A quarter of the second is padding: on the left for a decoder, else on the right.

    Nothing is padded where the frequencies depend on the length, since transformers takes the longest length of a
    batch. The padding token, 0 unless config.json names another, is not drawn, since PyTorch gives its embedding no
    gradient.
    """
    generator, padding = np.random.default_rng(seed), loaded.json.get("pad_token_id")
    vocab = loaded.spec.config.vocab
    allowed = np.array([token for token in range(vocab) if token not in (0, padding)] or range(vocab), np.int32)
    one = lambda: generator.choice(allowed, (2, length))
    tokens, targets = one(), one()
    padded = 0 if by_length(loaded.spec) else length // 4
    if isinstance(loaded.model, Decoder):
        valid = _valid(length, padded, left=True)
        follows = np.zeros_like(valid)
        follows[:, :-1] = valid[:, :-1] & valid[:, 1:]
        return Inputs(tokens, valid, np.where(follows, np.roll(tokens, -1, 1), NONE))
    valid = _valid(length, padded, left=False)
    labels = np.where(valid, targets, NONE)
    if isinstance(loaded.model, EncoderDecoder):
        return Inputs(tokens, valid, labels, one(), _valid(length, length // 3, left=False))
    count = loaded.spec.config.token_types
    types = generator.integers(0, count, (2, length), dtype=np.int32) if count else None
    return Inputs(tokens, valid, labels, types=types)


def by_length(spec: Spec) -> bool:
    """Returns whether the frequencies of a model depend on the length of the sequence."""
    scalings = (one.scaling for one in spec.config.encodings if isinstance(one, RoPE))
    return any(isinstance(scaling, DynamicNTK | LongRoPE) for scaling in scalings)


def _valid(length: int, padded: int, *, left: bool) -> np.ndarray:
    """Returns booleans [2, length] that are False where the second sequence is padded."""
    valid = np.ones((2, length), bool)
    valid[1, :padded] = False
    return valid if left else valid[:, ::-1].copy()
