"""What both sides of a comparison read: two random sequences, padding in the second, and what to predict."""

from typing import NamedTuple

import numpy as np

from attnjax.models.base import Spec
from attnjax.models.folder import Loaded
from attnjax.modules import Decoder, EncoderDecoder
from attnjax.positions import DynamicNTK, LongRoPE, RoPE

NONE = -100
"""The label of a place without loss."""


class Inputs(NamedTuple):
    """Token ids [B, T], where they are no padding, and labels: what the output at their place should say.

    `source` and `source_valid` are for an encoder-decoder, `types` for models with types of tokens.
    """

    tokens: np.ndarray
    valid: np.ndarray
    labels: np.ndarray
    source: np.ndarray | None = None
    source_valid: np.ndarray | None = None
    types: np.ndarray | None = None

    @property
    def positions(self) -> np.ndarray:
        """Positions that padding takes no part in [B, T]."""
        return np.maximum(np.cumsum(self.valid, 1) - 1, 0).astype(np.int32)


def draw(loaded: Loaded, length: int, seed: int) -> Inputs:
    """Two sequences. A quarter of the second is padding: on the left for a decoder, otherwise on the right.

    There is none where the frequencies depend on the length, which transformers takes from the longest of a batch. The
    token of padding, 0 unless config.json says another, is not drawn: PyTorch gives its embedding no gradient.
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
    """Whether the frequencies of a model depend on the length of the sequence."""
    scalings = (one.scaling for one in spec.config.encodings if isinstance(one, RoPE))
    return any(isinstance(scaling, DynamicNTK | LongRoPE) for scaling in scalings)


def _valid(length: int, padded: int, *, left: bool) -> np.ndarray:
    """Which places of two sequences are no padding."""
    valid = np.ones((2, length), bool)
    valid[1, :padded] = False
    return valid if left else valid[:, ::-1].copy()
