"""What a subject with an encoding is worth: loss against position, against length, and needles found.

    position   mean loss in bins of positions of one long window, s times the trained length L
    windows    mean loss of the same tokens cut into windows of T = L .. s L that do not overlap
    sliding    mean loss of the last L/4 tokens of windows of T that end at the same tokens (Press et al. 2022,
               arXiv:2108.12409, appendix B): all of them have at least 3/4 T before them
    found      the share of answers of which every token is the likeliest, given the ones before it (of bytes, which answer a
               question each: the share of these)
    needle     the loss of these tokens

A document is a held-out window of s L + 1 tokens, the same for every model and method, and for n-gram models of the bytes that
the models were trained on.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import UInt8

from attnjax.tasks.ngrams import NAMES, NGrams
from attnjax.typing import Float, Int, PyTree
from experiments.context_extension import texts
from experiments.context_extension.methods import Extension
from experiments.context_extension.subjects import Subject
from experiments.context_extension.texts import Corpus

DIGITS = 5
"""Significant digits of a number in the records."""


@dataclasses.dataclass(frozen=True)
class Protocol:
    """What is measured, the same for all subjects of one file of records.

    Attributes:
      trained, factor: L and s; s is a power of 2.
      documents, needles: windows, and needles of each depth and length.
      depths: of the needles, as shares of the text before the question.
      batch: most tokens in one call.
    """

    trained: int
    factor: int = 8
    documents: int = 24
    needles: int = 16
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    batch: int = 8192

    def __post_init__(self) -> None:
        if self.factor < 2 or self.factor & (self.factor - 1):
            raise ValueError(f"the factor must be a power of 2 and at least 2, got {self.factor}")
        if self.documents < 2 or self.needles < 2:
            raise ValueError(f"2 or more documents and needles are needed, got {self.documents} and {self.needles}")
        if self.trained < 8 or self.trained % 2:
            raise ValueError(f"the trained length must be even and 8 or more, got {self.trained}")

    @property
    def lengths(self) -> tuple[int, ...]:
        """L, 2 L, 4 L ... s L."""
        return tuple(self.trained << i for i in range(self.factor.bit_length()))

    @property
    def longest(self) -> int:
        """s L."""
        return self.lengths[-1]

    @property
    def stride(self) -> int:
        """How many tokens at the end of a sliding window count."""
        return self.trained // 4

    @property
    def edges(self) -> tuple[int, ...]:
        """Where bins of positions begin and end: each is half of the trained length."""
        return tuple(range(0, self.longest + 1, self.trained // 2))


class Rows(NamedTuple):
    """`Scores` on the host."""

    loss: Float[np.ndarray, "B T"]
    right: Float[np.ndarray, "B T"]


def measure(
    subject: Subject, params: PyTree, method: str, extension: Extension, corpus: Corpus, protocol: Protocol
) -> dict[str, Any]:
    """All numbers of one method: lists over documents or needles, by length where there are several."""
    found: dict[str, Any] = {"windows": {}, "sliding": {}, "found": {}, "needle": {}}
    for length in protocol.lengths:
        numbers = subject.numbers(method, extension, length)
        score = lambda rows, numbers=numbers: scored(
            subject, params, numbers, texts.opened(rows, corpus.begin), protocol.batch
        )
        measure_losses(lambda rows, score=score: score(rows).loss, corpus, protocol, length, found)
        found["found"][str(length)], found["needle"][str(length)] = needles(score, corpus, length, protocol)
    return found


def measure_ngrams(training: UInt8[np.ndarray, " n"], corpus: Corpus, protocol: Protocol) -> dict[str, Any]:
    """The losses of unigram, bigram and trigram of the training bytes, each by name and as those of a method."""
    model = NGrams.of(training)
    found: dict[str, Any] = {name: {"windows": {}, "sliding": {}} for name in NAMES}
    for name, length in itertools.product(NAMES, protocol.lengths):
        nats = lambda rows, name=name: model.nats(rows[:, :-1], rows[:, 1:])[name]
        measure_losses(nats, corpus, protocol, length, found[name])
    return found


def measure_losses(
    loss: Callable[[Int[np.ndarray, "B T+1"]], Float[np.ndarray, "B T"]],
    corpus: Corpus,
    protocol: Protocol,
    length: int,
    found: dict[str, Any],
) -> None:
    """Put what a function of rows loses on the documents at a length into `found`, of the longest also by position."""
    documents = texts.windows(corpus.test, protocol.longest, protocol.documents)
    whole = loss(cut(documents, length))
    last = whole if length == protocol.longest else loss(documents[:, -length - 1 :])
    found["windows"][str(length)] = short(whole.reshape(protocol.documents, -1).mean(1))
    found["sliding"][str(length)] = short(last[:, -protocol.stride :].mean(1))
    if length == protocol.longest:
        found["position"] = short(binned(whole, protocol.edges))


def needles(score: Any, corpus: Corpus, length: int, protocol: Protocol) -> tuple[list[Any], list[Any]]:
    """Of every depth and needle: the share of its answers that is found, and the mean loss of their tokens."""
    stacks = [texts.haystack(corpus, length, depth, protocol.needles, protocol.longest) for depth in protocol.depths]
    scores = score(np.concatenate([one.tokens for one in stacks]))
    counted = np.concatenate([one.counted for one in stacks])
    mean = lambda values: (values * counted).sum(1) / counted.sum(1)
    found = np.floor(mean(scores.right)) if corpus.whole else mean(scores.right)
    shape = (len(protocol.depths), protocol.needles)
    return short(found.reshape(shape)), short(mean(scores.loss).reshape(shape))


def scored(subject: Subject, params: PyTree, numbers: Any, rows: Int[np.ndarray, "B T+1"], most: int) -> Rows:
    """Scores of all rows, in batches of one shape."""
    size = max(1, most // (rows.shape[1] - 1))
    parts = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        full = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
        found = jax.device_get(subject.scores(params, numbers, full))
        parts.append(Rows(*(np.asarray(x, np.float64)[: len(part)] for x in found)))
    return Rows(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def cut(documents: Int[np.ndarray, "B _"], length: int) -> Int[np.ndarray, "C T+1"]:
    """Documents cut into windows of `length` tokens, each with the token that follows it, document by document."""
    starts = range(0, documents.shape[1] - 1, length)
    rows = np.stack([documents[:, start : start + length + 1] for start in starts], axis=1)
    return rows.reshape(-1, length + 1)


def binned(loss: Float[np.ndarray, "B T"], edges: tuple[int, ...]) -> Float[np.ndarray, "B X"]:
    """The mean of each row in each bin."""
    return np.stack([loss[:, low:high].mean(1) for low, high in itertools.pairwise(edges)], axis=1)


def short(values: Float[np.ndarray, "..."]) -> list[Any]:
    """Nested lists of numbers with `DIGITS` significant digits."""
    return [short(one) for one in values] if values.ndim > 1 else [float(f"{value:.{DIGITS}g}") for value in values]
