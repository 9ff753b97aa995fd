"""Perplexity of a whole text in windows, per token and per byte: nothing is cut off, and each token counts once.

    window k      tokens k s .. k s + L - 1, up to the one that reaches the end of the text, which may be shorter
    it counts     the tokens that no earlier window has, but never the first token of all

So each of the T - 1 other tokens is predicted once, given L - s tokens before it or more, or all there are. With a small
stride s the context is nearly L for every token, at a cost of L / s passes over the text. These are the windows of
transformers' page "Perplexity of fixed-length models"; its script weighs the mean of a window by one token too few from the
second window on, so that its numbers differ a little.

    nats per token = sum of losses / tokens      perplexity = exp(nats per token)
    bits per byte  = sum of losses / ln 2 / bytes

where `tokens` are those counted, and `bytes` are those of the text without those of a first token that is not predicted. A
token that the tokenizer puts before every text, as BOS, is such a first token and has no bytes. It stands before the first
window alone, or with `each_window` before every window, whose other tokens are then one fewer. Perplexities compare for one
tokenizer only; bits per byte compare for all.

Reference: huggingface.co/docs/transformers/perplexity.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnjax.evaluation.text_model import Losses, TextModel
from attnjax.positions.checks import validate_integer


class Tokens(NamedTuple):
    """A text as a model reads it: its tokens, its bytes that are predicted, and what the tokenizer puts before it."""

    ids: Sequence[int]
    bytes: int
    before: Sequence[int] = ()


def windows(total: int, length: int, stride: int, given: int = 1) -> Iterator[tuple[int, int, int]]:
    """Yields (begin, end, first) of each window of a text of `total` tokens: it counts the tokens first .. end - 1.

    The first `given` tokens count nowhere.

    Example:
      >>> list(windows(9, 4, 3))
      [(0, 4, 1), (3, 7, 4), (6, 9, 7)]
    """
    first = given
    for begin in range(0, total, stride):
        end = min(begin + length, total)
        yield begin, end, first
        first = end
        if end == total:
            return


def perplexity(
    losses: Losses, text: Tokens, length: int, stride: int | None = None, *, each_window: bool = False
) -> dict[str, float]:
    """Returns the perplexity of a text in windows ("ppl"), with all numbers that it comes from.

    Args:
      losses: a model; its programs have two shapes, a whole window and the last one.
      text: all tokens of the text; see `tokens_of`.
      length: tokens of a window, which the model sees at once.
      stride: tokens from one window to the next, fewer than a window has of the text; half the length unless given.
      each_window: whether every window begins with the tokens that the tokenizer puts before a text, or only the first.

    Raises:
      ValueError: fewer than two tokens, or a stride that leaves no overlap; and losses that are not finite.

    Example, of a model to which all four tokens are alike:
      >>> model = lambda tokens: np.full((1, tokens.shape[1] - 1), np.log(4.0))
      >>> found = perplexity(model, Tokens([0, 1, 2, 3, 2, 1], 5), length=3)
      >>> found["stride"], found["tokens"], round(found["ppl"], 9), round(found["bits_per_byte"], 9)
      (1, 5, 4.0, 2.0)
    """
    shared, ids, given = (), [*text.before, *text.ids], max(len(text.before), 1)
    if len(ids) < 1 + given:
        raise ValueError(f"perplexity: a text must have at least 2 tokens, of which the first is given; got {len(ids)}")
    if each_window and text.before:
        shared, ids, given = text.before, text.ids, 0
    size = length - len(shared)  # tokens of the text in a window
    validate_integer("perplexity", minimum=2 + len(shared), length=length)
    stride = min(length // 2, size - 1) if stride is None else stride
    validate_integer("perplexity", stride=stride)
    if stride >= size:
        raise ValueError(
            f"perplexity: stride must be below {size}, the tokens of the text in a window, so that the first of them is "
            f"predicted in the window before; got {stride}"
        )
    total, tokens = 0.0, len(ids) - given
    for begin, end, first in windows(len(ids), size, stride, given):
        window = np.asarray([*shared, *ids[begin:end]], np.int32)
        found = np.asarray(losses(window[None]), np.float64)[0, len(shared) + first - begin - 1 :]
        if not np.isfinite(found).all():
            at = first + int(np.flatnonzero(~np.isfinite(found))[0])
            raise ValueError(
                f"perplexity: the loss of token {at} is not finite; a wider dtype, such as float32, may help"
            )
        total += float(found.sum())
    return {
        "length": length,
        "stride": stride,
        "ppl": math.exp(total / tokens) if total / tokens < 709 else math.inf,
        "nats_per_token": total / tokens,
        "bits_per_byte": total / math.log(2) / text.bytes if text.bytes else math.nan,
        "tokens": tokens,
        "bytes": text.bytes,
    }


def tokens_of(subject: TextModel, data: bytes) -> Tokens:
    """Returns a text as a model reads it.

    The bytes are those of the text, without those of its first token where no other is put before it.

    Raises:
      ValueError: bytes that are no UTF-8, where the model reads characters.
    """
    if subject.bytewise:
        return Tokens(list(data), max(len(data) - 1, 0))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the text must be UTF-8 for a model with a tokenizer: byte {error.start} is no part of a character"
        ) from None
    before = list(subject.before)
    ids = subject.encode(text)[len(before) :]
    first = "" if before else subject.decode(ids[:1])
    # A token that is a part of a character has one byte; nothing is asked of the tokenizer's offsets, which leave out or add
    # spaces as its normalizer does.
    unpredicted = len(first.encode()) if "\N{REPLACEMENT CHARACTER}" not in first else 1
    return Tokens(ids, max(len(data) - unpredicted, 0), tuple(before))


def at_length(subject: TextModel, text: Tokens, length: int, stride: int | None, each_window: bool) -> dict[str, Any]:
    """Returns the perplexity of a text at a length as a row of `tables`, or why the model cannot read it there."""
    try:
        return perplexity(subject.losses, text, length, stride, each_window=each_window)
    except ValueError as error:
        return {"length": length, "problem": str(error)}


def told_before(text: Tokens, *, each_window: bool) -> list[str]:
    """Returns a line on which windows begin with the tokens that the tokenizer puts before a text; none without such tokens."""
    if not text.before:
        return []
    tokens = " ".join(map(str, text.before))
    which = "every window begins" if each_window else "only the first window begins"
    other = "first" if each_window else "every"
    return [f"Note: the tokenizer puts {tokens} before a text; {which} with it (--bos {other} is the other way)."]
