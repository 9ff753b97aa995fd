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
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from attnjax.long.scoring import Losses
from attnjax.long.subjects import Subject
from attnjax.positions.checks import validate_integer
from attnjax.tasks.text import Text, read

LARGEST = 2**30
"""Bytes of the largest file that is read."""
MOST = 2**24
"""Bytes that are read of a folder."""


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


def read_source(source: str, trained_on: Text | None = None, split: str = "test") -> tuple[bytes, str]:
    """Returns the bytes of a text, and a sentence on which part of it they are, empty for all of it.

    A file is read as a whole. Of a folder and of the standard library ("stdlib") it is a split of `attnjax.tasks.Text`: the
    test split or another. The text that the model was trained on, which may be a file too, is read in a split of its own
    options, so that training never reads its test split.

    Raises:
      ValueError: no such file, one that is too large or cannot be read, or nothing in it; and, by another name than its own,
        files of the text that the model was trained on, since their split would be another.
    """
    path, own = _path(source), trained_on is not None and same_file(_path(source), trained_on.root)
    try:
        if trained_on is not None and not own and trained_on.holds(path):
            name = "stdlib" if trained_on.path is None else trained_on.path
            raise ValueError(
                f"{source} is or has a file of the text that the model was trained on: name that text, {name}, of which the "
                f"{split} split is read"
            )
        if is_whole(source, trained_on):
            size = path.stat().st_size
            if size > LARGEST:
                raise ValueError(f"{source} has {size} bytes, more than the {LARGEST} of the largest text that is read")
            return path.read_bytes(), ""
    except OSError as error:
        raise ValueError(f"{source} cannot be read: {error.strerror or error}") from error
    if trained_on is not None and own:
        data = np.asarray(trained_on.for_split(split).data)[: MOST + 1].tobytes()
    else:
        data = read(None if source == "stdlib" else source, split, "*", MOST + 1)
    what = f"its {split} split"
    if split == "test" and path.is_file():
        what = "the last 5 % of the file, which the model was not trained on"
    return (data[:MOST], f"{what}, the first {MOST} bytes of it") if len(data) > MOST else (data, what)


def is_whole(source: str, trained_on: Text | None = None) -> bool:
    """Returns whether a text is one file that is read as a whole: not the one that the model was trained on."""
    path = _path(source)
    return path.is_file() and not (trained_on is not None and same_file(path, trained_on.root))


def overlap(fitted: str, measured: str, trained_on: Text | None = None) -> bool:
    """Returns whether the train split of one text may have bytes of the test split of another.

    Two splits of one text have no bytes in common; a file that is read as a whole has one for both.
    """
    if same_file(_path(fitted), _path(measured)):
        return is_whole(fitted, trained_on)
    return Text(None if measured == "stdlib" else measured).holds(_path(fitted))


def _path(source: str) -> pathlib.Path:
    return Text().root if source == "stdlib" else pathlib.Path(source)


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


def same_file(one: str | pathlib.Path, other: str | pathlib.Path) -> bool:
    """Returns whether two paths lead to one file."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
