"""N-gram models of bytes: what a text gives away to a model that sees one or two bytes of context, or none.

    P_k(c | h) = (C(h c) + T(h) P_{k-1}(c | h')) / (C(h) + T(h)),        P_0(c) = 1 / 256

h are the k - 1 bytes before c, h' is h without its first, C counts in the training bytes, and T(h) is how many different
bytes follow h there; where h never occurs, P_k is P_{k-1}. This is interpolation after Witten and Bell 1991 ("The zero-
frequency problem", IEEE Transactions on Information Theory 37, method C), which has no weights to fit. A unigram is k = 1, a
bigram k = 2, a trigram k = 3. A language model whose loss is that of a trigram has learned nothing from context that two
bytes do not tell.
"""

import dataclasses
from typing import Self

import numpy as np
from jaxtyping import Float, Int, UInt8

NAMES = ("unigram", "bigram", "trigram")
BITS, BYTES = 8, 256
CHUNK = 2**24
"""Bytes that are sorted at once."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """How often each sequence of k bytes that occurs in a text does: `codes` ascending, the first byte in the highest bits."""

    codes: Int[np.ndarray, " N"]
    times: Int[np.ndarray, " N"]

    def of(self, code: Int[np.ndarray, "*S"]) -> Int[np.ndarray, "*S"]:
        """Return how often these sequences occur."""
        place = np.minimum(np.searchsorted(self.codes, code), len(self.codes) - 1)
        return np.where(self.codes[place] == code, self.times[place], 0)

    def contexts(self) -> "tuple[Counts, Counts]":
        """Return the counts of all sequences without their last byte, and how many different bytes follow each."""
        codes, first, kinds = np.unique(self.codes >> BITS, return_index=True, return_counts=True)
        return Counts(codes, np.add.reduceat(self.times, first)), Counts(codes, kinds)


@dataclasses.dataclass(frozen=True)
class NGrams:
    """The counts of all sequences of 1, 2 and 3 bytes of a text.

    Example:
      >>> model = NGrams.of(np.frombuffer(b"abababac", np.uint8))
      >>> nats = model.nats(np.array([[98, 97]]), np.array([[97, 98]]))      # a follows b, then b follows a
      >>> {name: [round(float(np.exp(-x)), 3) for x in row[0]] for name, row in nats.items()}
      {'unigram': [0.365, 0.274], 'bigram': [0.841, 0.591], 'trigram': [0.841, 0.637]}
    """

    counts: tuple[Counts, ...]

    @classmethod
    def of(cls, text: UInt8[np.ndarray, " n"]) -> Self:
        """Count a text of three bytes or more. Raises ValueError for a shorter one."""
        if len(text) < len(NAMES):
            raise ValueError(f"n-grams need {len(NAMES)} bytes or more to be counted in, got {len(text)}")
        return cls(tuple(count(text, order) for order in range(1, len(NAMES) + 1)))

    def nats(
        self, tokens: Int[np.ndarray, "W T"], targets: Int[np.ndarray, "W T"]
    ) -> dict[str, Float[np.ndarray, "W T"]]:
        """Return -log P_k of each target, by name; targets[:, t] follows tokens[:, t].

        The first target of a window has one byte before it in the window, so its trigram is its bigram.
        """
        before = np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], axis=1)
        contexts = (np.zeros_like(tokens), tokens, before << BITS | tokens)
        p, found = np.full(tokens.shape, 1 / BYTES), {}
        for name, counts, context in zip(NAMES, self.counts, contexts, strict=True):
            seen, kinds = (known.of(context) for known in counts.contexts())
            longer = (counts.of(context << BITS | targets) + kinds * p) / np.maximum(seen + kinds, 1)
            unknown = seen == 0
            unknown[:, 0] |= name == NAMES[-1]
            p = np.where(unknown, p, longer)
            found[name] = -np.log(p)
        return found


def count(text: UInt8[np.ndarray, " n"], order: int) -> Counts:
    """Return the counts of all sequences of `order` bytes."""
    codes, times = np.zeros(0, np.int32), np.zeros(0, np.int64)
    for start in range(0, len(text) - order + 1, CHUNK):
        part = text[start : start + CHUNK + order - 1].astype(np.int32)
        code = np.zeros(len(part) - order + 1, np.int32)
        for k in range(order):
            code = code << BITS | part[k : k + len(code)]
        more, often = np.unique(code, return_counts=True)
        codes, place = np.unique(np.concatenate([codes, more]), return_inverse=True)
        times = np.bincount(place, np.concatenate([times, often])).astype(np.int64)
    return Counts(codes, times)
