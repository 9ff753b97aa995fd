"""Prompts of noise with a needle at each of five depths, and a question for each, as long as a number of tokens allows.

Sentences are those of RULER (`attnjax.evaluation.ruler`). All questions of a prompt have as many tokens.
"""

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnjax.evaluation import ruler
from attnjax.evaluation.samples import largest
from attnjax.evaluation.words import KEYS

Encode = Callable[[str], list[int]]
"""The tokens of a text."""
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The share of the noise that is before a needle."""
ANSWER = 64
"""Tokens that are left for a question with its answer."""
QUESTION = (
    "What is the special magic number for {key} mentioned in the provided text? The special magic number for {key} "
    "mentioned in the provided text is"
)


class Prompt(NamedTuple):
    """A text, and what follows it for each needle: a question up to the answer, and the answer."""

    text: str
    asked: tuple[tuple[str, str], ...]


def alike(encode: Encode) -> list[str]:
    """The keys whose questions have as many tokens as those of most keys, so that questions need no padding between.

    A window counts padding, so that with it a method would see less.
    """
    sizes = {key: len(encode(QUESTION.format(key=key))) for key in KEYS}
    (size, _), *_ = collections.Counter(sizes.values()).most_common(1)
    return [key for key in KEYS if sizes[key] == size]


def made(keys: Sequence[str], length: int, i: int, lines: int) -> Prompt:
    """A prompt with this many lines of noise; which keys, and the numbers, depend on `length` and `i` alone."""
    rng = ruler.seeded(f"smollm2 retrieval {length} {i}")
    keys = rng.sample(keys, len(DEPTHS))
    values = [str(rng.randint(10**6, 10**7 - 1)) for _ in keys]
    text = [ruler.NOISE] * lines
    for depth, key, value in sorted(zip(DEPTHS, keys, values, strict=True), reverse=True):
        text.insert(round(depth * lines), ruler.NEEDLE.format(kind="number", key=key, value=value))
    told = (
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about "
        "the numbers afterwards.\n" + "\n".join(text) + "\n"
    )
    asked = tuple((QUESTION.format(key=key), f" {value}") for key, value in zip(keys, values, strict=True))
    return Prompt(told, asked)


def filled(encode: Encode, keys: Sequence[str], length: int, i: int) -> Prompt:
    """The longest prompt that leaves `ANSWER` of `length` tokens; `keys` are those of `alike`."""
    fits = lambda lines: len(encode(made(keys, length, i, lines).text)) <= length - ANSWER
    lines = largest(fits, 1)
    if not fits(lines):
        raise ValueError(f"{length} tokens are too few for a prompt with {len(DEPTHS)} needles")
    return made(keys, length, i, lines)
