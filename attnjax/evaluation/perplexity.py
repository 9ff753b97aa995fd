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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnjax.evaluation.text_model import TextModel
from attnjax.positions.checks import validate_integer
from attnjax.tasks import Text
from attnjax.typing import Float, Int

MOST = 2**24
"""Bytes that are read of a split."""
Losses = Callable[[Int[np.ndarray, "B T"]], Float[np.ndarray, "B T-1"]]
"""A model: the loss of each token but the first, given all before it, in nats."""


class Tokens(NamedTuple):
    """A text as a model reads it: its tokens, its bytes that are predicted, and what the tokenizer puts before it."""

    ids: Sequence[int]
    bytes: int
    before: Sequence[int] = ()


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
    validate_integer("perplexity", minimum=2 + len(shared), length=length)
    size = length - len(shared)  # tokens of the text in a window
    stride = min(length // 2, size - 1) if stride is None else stride
    # With a longer one the first token of a window would be predicted in none.
    validate_integer("perplexity", most=size - 1, stride=stride)
    total, first = 0.0, given
    for begin in range(0, len(ids), stride):
        window = np.asarray([*shared, *ids[begin : begin + size]], np.int32)
        found = np.asarray(losses(window[None]), np.float64)[0, len(shared) + first - begin - 1 :]
        if not np.isfinite(found).all():
            at = first + int(np.flatnonzero(~np.isfinite(found))[0])
            raise ValueError(
                f"perplexity: the loss of token {at} is not finite; a wider dtype, such as float32, may help"
            )
        total, first = total + float(found.sum()), begin + size
        if first >= len(ids):
            break
    tokens = len(ids) - given
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
        raise ValueError(f"the text must be UTF-8 for a model with a tokenizer: {error}") from None
    before = list(subject.before)
    ids = subject.encode(text)[len(before) :]
    first = "" if before else subject.decode(ids[:1])
    # A token that is a part of a character has one byte; nothing is asked of the tokenizer's offsets, which leave out or add
    # spaces as its normalizer does.
    unpredicted = len(first.encode()) if "\N{REPLACEMENT CHARACTER}" not in first else 1
    return Tokens(ids, max(len(data) - unpredicted, 0), tuple(before))


def read_source(source: str, trained_on: Text | None = None) -> tuple[bytes, str]:
    """Returns the bytes of a text that a model was not trained on, and a sentence on which part of it they are.

    A file is read as a whole. Of a folder, of the standard library ("stdlib") and of the text that the model was trained on,
    by its own options, the test split is read.

    Raises:
      ValueError: no such file, and files of the text that the model was trained on, by another name than that of the text,
        since their split would be another; OSError for a file that cannot be read.
    """
    text = Text(None if source == "stdlib" else source, cap=MOST)
    if trained_on is not None and text.root.resolve() == trained_on.root.resolve():
        text = trained_on
    elif trained_on is not None and trained_on.holds(text.root):
        raise ValueError(
            f"{source} is or has a file of the text that the model was trained on: name that text, "
            f"{trained_on.path or 'stdlib'}, of which the test split is read"
        )
    elif text.root.is_file():
        return text.root.read_bytes(), ""
    data = np.asarray(text.for_split("test").data)
    return data[:MOST].tobytes(), f"its test split, {min(len(data), MOST):,} bytes"


def at_length(
    subject: TextModel, text: Tokens, length: int, stride: int | None = None, *, each_window: bool = False
) -> dict[str, Any]:
    """Returns the perplexity of a text at a length as a row of `suite.table`, or why the model cannot read it there."""
    try:
        return perplexity(subject.losses, text, length, stride, each_window=each_window)
    except ValueError as error:
        return {"length": length, "problem": str(error)}
