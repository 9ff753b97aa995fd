"""N-gram models by hand, and against an independent one that counts with dictionaries."""

from collections import Counter

import numpy as np
import pytest

from attnjax.tasks import ngrams
from attnjax.tasks.ngrams import NAMES, NGrams


def brute(text: bytes, context: bytes, byte: int, order: int) -> float:
    """Witten-Bell, written down again: recursion over the length of the context, counts from a list of slices."""
    if order == 0:
        return 1 / 256
    history = context[len(context) - order + 1 :]
    pieces = [text[i : i + order] for i in range(len(text) - order + 1)]
    followers = Counter(piece[-1] for piece in pieces if piece[:-1] == history)
    lower = brute(text, context, byte, order - 1)
    total, kinds = sum(followers.values()), len(followers)
    return (followers[byte] + kinds * lower) / (total + kinds) if total else lower


@pytest.mark.parametrize("symbols", [2, 5, 200])
def test_probabilities_equal_those_of_dictionaries(symbols: int):
    generator = np.random.default_rng(symbols)
    text = generator.integers(0, symbols, 300).astype(np.uint8)
    windows = generator.integers(0, symbols + 2, (4, 9))
    found = NGrams.of(text).nats(windows[:, :-1], windows[:, 1:])
    for w, row in enumerate(windows):
        for t in range(8):
            seen = bytes(row[: t + 1].tolist())
            for order, name in enumerate(NAMES, 1):
                usable = min(order, len(seen) + 1)
                expected = brute(text.tobytes(), seen, int(row[t + 1]), usable)
                assert np.exp(-found[name][w, t]) == pytest.approx(expected, rel=1e-12)


def test_a_text_is_counted_in_parts(monkeypatch: pytest.MonkeyPatch):
    text = np.random.default_rng(0).integers(0, 7, 1_000).astype(np.uint8)
    whole = NGrams.of(text)
    monkeypatch.setattr(ngrams, "CHUNK", 64)
    for one, other in zip(whole.counts, NGrams.of(text).counts, strict=True):
        np.testing.assert_array_equal(one.codes, other.codes)
        np.testing.assert_array_equal(one.times, other.times)
    assert [counts.times.sum() for counts in whole.counts] == [1_000, 999, 998]
