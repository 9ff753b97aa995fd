"""Passages of one length, each with one needle: text of the standard library's docstrings around an invented fact.

A passage of T tokens is T - 2 ceil(T / 512) tokens of text, so that it fills windows of 512 tokens with [CLS] and [SEP] in
each. Passage i has a haystack of its own, the same words for every length, and its needle at a depth of its own, one of
(i + 1/2) / n in a shuffled order: the length of the passage is all that changes from one cell to the next.
"""

import ast
import functools
import hashlib
import itertools
import math
import pathlib
import random
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from attnjax.tasks.text import NOT_EVERYWHERE, names

WINDOW = 512
SHORTEST = 120
"""Characters of the shortest docstring that is taken."""
SEED = 1810_04805

Encode = Callable[[str], Sequence[int]]
"""From a text without white space, or a whole text, to its tokens without special ones."""


class Passage(NamedTuple):
    """Tokens without special ones, and where the needle begins and ends among them."""

    tokens: tuple[int, ...]
    begin: int
    end: int


def room(length: int) -> int:
    """The tokens of text in a passage of `length` tokens.

    Example:
      >>> [room(T) for T in (256, 512, 1024)]
      [254, 510, 1020]
    """
    return length - 2 * math.ceil(length / WINDOW)


def docstrings() -> Iterator[str]:
    """The docstrings of the standard library that are long enough, each once; files in an order that their names decide."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    digest = lambda name: hashlib.sha256(name.encode()).hexdigest()
    seen: set[str] = set()
    for name in sorted(names(root, "*.py", NOT_EVERYWHERE), key=digest):
        for node in ast.walk(ast.parse((root / name).read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) >= SHORTEST and text not in seen:
                    seen.add(text)
                    yield text


def haystacks(encode: Encode, count: int, length: int) -> list[tuple[str, ...]]:
    """Words of `count` haystacks of at least `length` tokens; no docstring is in two of them.

    Raises:
      ValueError: the standard library has too few docstrings.
    """
    made, texts, tokens = [], docstrings(), functools.cache(encode)
    while len(made) < count:
        words: list[str] = []
        found = 0
        while found < length:
            text = next(texts, None)
            if text is None:
                raise ValueError(f"the standard library has docstrings for {len(made)} haystacks, not for {count}")
            words += text.split()
            found += sum(len(tokens(word)) for word in text.split())
        made.append(tuple(words))
    return made


def passages(
    encode: Encode, statements: Sequence[str], haystacks: Sequence[Sequence[str]], length: int
) -> list[Passage]:
    """The passages of one length, one per statement."""
    depths = [(i + 0.5) / len(statements) for i in range(len(statements))]
    random.Random(SEED).shuffle(depths)  # noqa: S311
    tokens = functools.cache(encode)
    return [
        _passage([tokens(word) for word in words], encode(statement), room(length), depth)
        for statement, words, depth in zip(statements, haystacks, depths, strict=True)
    ]


def _passage(words: Sequence[Sequence[int]], needle: Sequence[int], size: int, depth: float) -> Passage:
    """A needle before the first word that would end past its depth, and words up to `size` tokens, the last one cut."""
    behind = list(itertools.accumulate((len(word) for word in words), initial=0))
    count = sum(one <= depth * (size - len(needle)) for one in behind) - 1
    before = [token for word in words[:count] for token in word]
    after = [token for word in words[count:] for token in word]
    tokens = (*before, *needle, *after)[:size]
    if len(tokens) < size:
        raise ValueError(f"a haystack has {len(tokens)} tokens with its needle, {size} are needed")
    return Passage(tokens, len(before), len(before) + len(needle))
