"""What is read: held-out windows, text to tune on, and contexts with a needle, of bytes or of the tokens of a tokenizer."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from attnjax.tasks import Text
from attnjax.tasks.text import read
from attnjax.typing import Int
from experiments.context_extension import planting

Tokens = Int[np.ndarray, "..."]

KEY = 2306_15595
"""Of every draw: the same windows and needles for each model and each method."""
ASK = "The secret number of {name} is"
NAMES = ("Amara", "Bjorn", "Chiara", "Dmitri", "Esther", "Farid", "Greta", "Hiroshi", "Ines", "Jonas", "Kamala", "Luca")
WHOLE = 10
"""A text of a user must have as many windows of the longest length."""


class Encoder(Protocol):
    """Text to token ids, as `attnjax.models.tokens.Tokenizer`."""

    def encode(self, text: str, *, specials: bool = True) -> list[int]:
        """Token ids, with those that stand around every text or without."""
        ...


class Needle(NamedTuple):
    """A statement, a question whose answer it holds, and the answer, as tokens; `counted` are the ones that answer."""

    statement: list[int]
    question: list[int]
    answer: list[int]
    counted: list[bool]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text and how needles look in it.

    Attributes:
      unit: what a token is.
      tuning: the tokens to tune on at a length.
      search: held-out tokens on which factors are searched.
      test: held-out tokens on which all numbers are measured.
      needle: draws one.
      begin: tokens at the start of every sequence.
      breaks: tokens after which a statement may stand; empty is anywhere.
      whole: whether an answer is found as a whole, or each of its tokens by itself.
      chance: of what is found by guessing, all values or digits equally likely.
      about: for the records.
    """

    unit: str
    tuning: Callable[[int], Tokens]
    search: Tokens
    test: Tokens
    needle: Callable[[np.random.Generator], Needle]
    begin: tuple[int, ...]
    breaks: tuple[int, ...]
    whole: bool
    chance: float
    about: dict[str, str]


def standard_library(cap: int = planting.CAP) -> Corpus:
    """Python's own source: tuned on with planted facts, measured without on files that no model was trained on."""
    plain = read(None, "train", "*", cap)
    tuning = functools.cache(lambda length: as_tokens(planting.plant(plain, length, seed=1)))
    parts = {split: Text(split=split) for split in ("validation", "test")}

    def needle(generator: np.random.Generator) -> Needle:
        stated, (asked, *_) = planting.fact(generator)
        known = [place % 2 == 0 for place in range(len(asked) - 1)]
        return Needle(list(stated + b"\n"), list(b"\n" + asked[:1]), list(asked[1:]), known)

    search, test = (np.asarray(part.data) for part in parts.values())
    about = {"text": "the standard library of Python", "sha256": parts["test"].sha256}
    return Corpus("byte", tuning, search, test, needle, (), (ord("\n"),), False, 1 / planting.VALUES, about)


def user_text(path: pathlib.Path, tokenizer: Encoder, longest: int, sha256: str = "") -> Corpus:
    """A file for a published model: its first half to tune on, a quarter to search on, and the last to measure on.

    Raises ValueError where the file cannot be read or is too short for windows of `longest` tokens.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text: {error}") from None
    tokens = np.asarray(tokenizer.encode(text, specials=False), np.int32)
    if len(tokens) < WHOLE * longest:
        raise ValueError(f"{path.name} has {len(tokens)} tokens; {WHOLE} windows of {longest} are needed")
    half, rest = len(tokens) // 2, 3 * len(tokens) // 4
    bare, whole = (tokenizer.encode("a", specials=flag) for flag in (False, True))
    begin = tuple(whole[: next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)])
    tuning, search, test = tokens[:half], tokens[half:rest], tokens[rest:]
    about = {"text": path.name, "sha256": sha256}
    draw = lambda generator: sentence(generator, tokenizer)
    return Corpus("token", lambda length: tuning, search, test, draw, begin, (), True, 10.0**-5, about)


def sentence(generator: np.random.Generator, tokenizer: Encoder) -> Needle:
    """A needle of words. The question ends where it and question with answer are cut into the same tokens."""
    question = ASK.format(name=NAMES[int(generator.integers(len(NAMES)))])
    whole = f"{question} {int(generator.integers(10_000, 100_000))}"
    encode = lambda text: tokenizer.encode(text, specials=False)
    asked, full = encode(question), encode(whole)
    same = next((i for i, (a, b) in enumerate(zip(asked, full, strict=False)) if a != b), min(len(asked), len(full)))
    return Needle(encode(f" {whole}. "), full[:same], full[same:], [True] * len(full[same:]))


def windows(tokens: Tokens, length: int, count: int) -> Int[np.ndarray, "B T+1"]:
    """Rows of `length` + 1 tokens, equally far apart in the text."""
    starts = np.linspace(0, len(tokens) - length - 1, count).astype(int)
    return tokens[starts[:, None] + np.arange(length + 1)].astype(np.int32)


def batches(tokens: Tokens, length: int, rows: int, count: int) -> Int[np.ndarray, "N B T+1"]:
    """Random rows to tune on, the same for each method."""
    starts = np.random.default_rng([KEY, length]).integers(0, len(tokens) - length, (count, rows))
    return tokens[starts[..., None] + np.arange(length + 1)].astype(np.int32)


def opened(rows: Int[np.ndarray, "*B _"], begin: tuple[int, ...]) -> Int[np.ndarray, "*B _"]:
    """The rows with their first tokens replaced by those at the start of every sequence."""
    made = rows.copy()
    made[..., : len(begin)] = begin
    return made


class Haystack(NamedTuple):
    """Contexts with a needle: rows of `length` + 1 tokens that end with the answer; `counted` marks its tokens."""

    tokens: Int[np.ndarray, "B T+1"]
    counted: Int[np.ndarray, "B T"]


def haystack(corpus: Corpus, length: int, depth: float, count: int, longest: int) -> Haystack:
    """`count` contexts with the statement at `depth` of the text before the question: 0 is its start, 1 its end.

    Needles are the same at every length up to `longest` and at every depth, and so is the text right before the question.
    Raises ValueError for a length that cannot hold a needle.
    """
    generator = np.random.default_rng(KEY)
    rows, marks = [], []
    for _ in range(count):
        needle, place = corpus.needle(generator), generator.random()
        around = len(corpus.begin) + sum(map(len, needle[:3]))
        room = length + 1 - around
        if room < 2:
            raise ValueError(f"a context of {length} tokens cannot hold a needle of {around}")
        end = longest + int(place * (len(corpus.test) - longest))
        filler = corpus.test[end - room : end].tolist()
        at = nearest_break(filler, round(depth * room), corpus.breaks)
        rows.append([*corpus.begin, *filler[:at], *needle.statement, *filler[at:], *needle.question, *needle.answer])
        marks.append([0] * (length - len(needle.answer)) + list(map(int, needle.counted)))
    return Haystack(np.array(rows, np.int32), np.array(marks, np.int32))


def as_tokens(text: bytes) -> Tokens:
    """Bytes as tokens."""
    return np.frombuffer(text, np.uint8)


def nearest_break(filler: list[int], place: int, breaks: tuple[int, ...]) -> int:
    """The nearest place to stand a statement at: behind one of the breaks, or at the start, or exactly here."""
    if not breaks:
        return place
    places = [0, *(i + 1 for i, token in enumerate(filler) if token in breaks)]
    return min(places, key=lambda one: abs(one - place))
