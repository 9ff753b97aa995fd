"""Targets of patterns: by hand on words, and against loops on random tokens."""

import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.analysis.patterns import PATTERNS, token_targets

LOOPS = {
    "previous_token": lambda t, i, j: j == i - 1,
    "next_token": lambda t, i, j: j == i + 1,
    "first_token": lambda t, i, j: j == 0 and i > 0,
    "same_token": lambda t, i, j: j < i and t[j] == t[i],
    "separator": lambda t, i, j: j < i and t[j] in (2, 5),
    "induction": lambda t, i, j: 0 < j <= i and t[j - 1] == t[i],
}


def pairs(name: str, text: str) -> set[tuple[int, int]]:
    """(query, key) of every target."""
    found = token_targets(np.frombuffer(text.encode(), np.uint8).astype(np.int32)[None])
    return {(int(i), int(j)) for i, j in np.argwhere(np.asarray(found[name][0]))}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("previous_token", "abc", {(1, 0), (2, 1)}),
        ("next_token", "abc", {(0, 1), (1, 2)}),
        ("first_token", "abc", {(1, 0), (2, 0)}),
        ("same_token", "abaa", {(2, 0), (3, 0), (3, 2)}),
        ("separator", "a b\nc", {(2, 1), (3, 1), (4, 1), (4, 3)}),
        ("induction", "abcab", {(3, 1), (4, 2)}),
        ("induction", "aab", {(1, 1)}),
        ("induction", "aaa", {(1, 1), (2, 1), (2, 2)}),
        ("induction", "abc", set()),
    ],
)
def test_targets_by_hand(name, text, expected):
    assert pairs(name, text) == expected


def test_targets_against_loops():
    tokens = np.random.default_rng(0).integers(0, 7, (3, 20))
    found = token_targets(jnp.asarray(tokens), separators=(2, 5))
    assert list(found) == [name for name, _ in PATTERNS] == list(LOOPS)
    for name, rule in LOOPS.items():
        expected = [[[rule(row, i, j) for j in range(20)] for i in range(20)] for row in tokens.tolist()]
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros(3, int), r"token_targets: tokens must be integers \[B, T\], got int64\[3\]"),
        (np.zeros((2, 3)), r"token_targets: tokens must be integers \[B, T\], got float64\[2, 3\]"),
    ],
)
def test_mistakes_are_named(tokens, message):
    with pytest.raises(ValueError, match=message):
        token_targets(tokens)
