"""Perplexity of a whole text in windows, per token and per byte: nothing is cut off, and each token counts once.

    window k      tokens k s .. k s + L - 1, up to the one that reaches the end of the text, which may be shorter
    it counts     the tokens that no earlier window has, but never the first token of the text

So each of the T - 1 other tokens is predicted once, given L - s tokens before it or more, or all there are. With a small
stride s the context is nearly L for every token, at a cost of L / s passes over the text. These are the windows of
transformers' page "Perplexity of fixed-length models"; its script weighs the mean of a window by one token too few from the
second window on, so that its numbers differ a little.

    nats per token = sum of losses / tokens      perplexity = exp(nats per token)
    bits per byte  = sum of losses / ln 2 / bytes      tokens per byte = tokens / bytes

where `tokens` are those counted, and `bytes` are those of the text without those of its first token. Perplexities compare for
one tokenizer only; bits per byte compare for all.

Reference: huggingface.co/docs/transformers/perplexity.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from attnjax.long.scoring import Losses
from attnjax.long.subjects import Subject
from attnjax.positions.checks import validate_integer


@dataclasses.dataclass(frozen=True)
class Perplexity:
    """What a text costs: the sum of losses in nats, over how many tokens, which have how many bytes.

    Example:
      >>> found = Perplexity(length=8, stride=4, nats=8 * math.log(2), tokens=4, bytes=16)
      >>> round(found.perplexity, 9), found.bits_per_byte, found.tokens_per_byte
      (4.0, 0.5, 0.25)
    """

    length: int
    stride: int
    nats: float
    tokens: int
    bytes: int

    @property
    def nats_per_token(self) -> float:
        """The mean loss."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp of the mean loss; infinite where that is too large for a float."""
        return math.exp(self.nats_per_token) if self.nats_per_token < 709 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """The cost of a byte in bits; NaN where the tokens have no bytes."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def tokens_per_byte(self) -> float:
        """Tokens for each byte; NaN where they have none."""
        return self.tokens / self.bytes if self.bytes else math.nan


def windows(total: int, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yields (begin, end, first) of each window of a text of `total` tokens: it counts the tokens first .. end - 1.

    Example:
      >>> list(windows(9, 4, 3))
      [(0, 4, 1), (3, 7, 4), (6, 9, 7)]
    """
    first = 1
    for begin in range(0, total, stride):
        end = min(begin + length, total)
        yield begin, end, first
        first = end
        if end == total:
            return


def perplexity(losses: Losses, tokens: Sequence[int], size: int, length: int, stride: int | None = None) -> Perplexity:
    """Returns the perplexity of a text in windows.

    Args:
      losses: a model; its programs have two shapes, a whole window and the last one.
      tokens: all tokens of the text.
      size: bytes of the text without those of the first token.
      length: tokens of a window, which the model sees at once.
      stride: tokens from one window to the next, below `length`; half of it unless given.

    Raises:
      ValueError: fewer than two tokens, or a stride that leaves no overlap; and losses that are not finite.

    Example, of a model to which all four tokens are alike:
      >>> model = lambda tokens: np.full((1, tokens.shape[1] - 1), np.log(4.0))
      >>> found = perplexity(model, [0, 1, 2, 3, 2, 1], 5, length=3)
      >>> found.stride, found.tokens, round(found.perplexity, 9), round(found.bits_per_byte, 9)
      (1, 5, 4.0, 2.0)
    """
    validate_integer("perplexity", minimum=2, length=length)
    stride = length // 2 if stride is None else stride
    validate_integer("perplexity", stride=stride)
    if stride >= length:
        raise ValueError(
            f"perplexity: stride must be below the length of a window, {length}, so that the first token of a window is "
            f"predicted in the one before; got {stride}"
        )
    if len(tokens) < 2:
        raise ValueError(
            f"perplexity: a text must have at least 2 tokens, of which the first is given; got {len(tokens)}"
        )
    ids, total = np.asarray(tokens, np.int32), 0.0
    for begin, end, first in windows(len(ids), length, stride):
        found = np.asarray(losses(ids[None, begin:end]), np.float64)[0, first - begin - 1 :]
        if not np.isfinite(found).all():
            at = first + int(np.flatnonzero(~np.isfinite(found))[0])
            raise ValueError(
                f"perplexity: the loss of token {at} is not finite; a wider dtype, such as float32, may help"
            )
        total += float(found.sum())
    return Perplexity(length, stride, total, len(ids) - 1, size)


def tokens_of(subject: Subject, data: bytes) -> tuple[list[int], int]:
    """Returns the tokens of a text, and its number of bytes without those of the first token.

    Raises:
      ValueError: bytes that are no UTF-8, where the model reads characters.
    """
    if subject.bytewise:
        return list(data), max(len(data) - 1, 0)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the text must be UTF-8 for a model with a tokenizer: byte {error.start} is no part of a character"
        ) from None
    starts = subject.starts(text)
    return subject.encode(text), len(data) - (starts[1] if len(starts) > 1 else 0)
