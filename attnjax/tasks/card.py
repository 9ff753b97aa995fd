"""Data cards: what a task is, how large its space is and how far train and test overlap, in Markdown, from the code."""

import inspect
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from attnjax.tasks.base import Example, Task
from attnjax.tasks.checks import check_count
from attnjax.tasks.text import Text

TRAIN, TEST = 0, 1
"""Folded into the key: train and test are independent streams, of a text from bytes of its two splits."""


def card(
    task: Task,
    train: tuple[int, int] = (1, 40),
    test: Sequence[tuple[int, int]] = ((41, 100),),
    samples: int = 1_000,
    seed: int = 0,
) -> str:
    """Return the data card of a task in Markdown.

    Args:
      task: the task.
      train: the shortest and the longest length of training.
      test: the same for each test set. Ranges are cut to the lengths that the task has.
      samples: number of examples drawn for each set, at uniform lengths.
      seed: of the keys of the samples.

    Raises:
      ValueError: where the task has no length of a range.

    Example:
      >>> from attnjax.tasks import task
      >>> print(card(task("parity_check"), (1, 4), [(5, 8)], samples=10)[:14])
      # ParityCheck
      <BLANKLINE>
    """
    check_count("card", samples=samples)
    low = max(train[0], task.minimum_length)
    trained, held_out = (task.for_split(split) for split in ("train", "test"))
    splits = [trained, *(held_out for _ in (train, *test))]
    ranges = [_cut(one, lengths) for one, lengths in zip(splits, (train, train, *test), strict=True)]
    key = jax.random.key(seed)
    keys = [jax.random.fold_in(key, TRAIN), *(jax.random.fold_in(key, TEST + i) for i in range(len(ranges) - 1))]
    drawn = [_draw(*one, samples) for one in zip(splits, keys, ranges, strict=True)]
    shown = sorted({low, *(end for lengths in ranges for end in lengths)})
    titles = ["train", "test, same lengths", *("test" for _ in test)]
    parts = [
        f"# {type(task).__name__}",
        inspect.cleandoc(type(task).__doc__ or "").partition("\n\nExample:")[0],
        f"`{task}`",
        *_source(task),
        *_vocabulary(task),
        "## Lengths",
        _table(
            ("length", "different inputs", "answers", "chance per token", "chance of the whole answer"),
            (_length_row(trained, length) for length in shown),
        ),
        f"## Samples\n\n{samples} examples of each, seed {seed}, at uniform lengths.",
        _table(
            ("set", "lengths", "input tokens", "counted targets", "distinct", "also in train"),
            (
                _sample_row(title, lengths, example, drawn[0])
                for title, lengths, example in zip(titles, ranges, drawn, strict=True)
            ),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def inputs(example: Example) -> list[bytes]:
    """Return the bytes of each input without its padding, to compare by."""
    tokens, lengths = np.asarray(example.inputs), np.asarray(example.input_length)
    return [row[:n].tobytes() for row, n in zip(tokens, lengths, strict=True)]


def _cut(task: Task, lengths: tuple[int, int]) -> tuple[int, int]:
    low, high = max(lengths[0], task.minimum_length), min(lengths[1], task.maximum_length or lengths[1])
    if low > high:
        raise ValueError(
            f"card: {task} has lengths {task.minimum_length} .. {task.maximum_length or 'any'}, none in {lengths}"
        )
    return low, high


def _draw(task: Task, key: jax.Array, lengths: tuple[int, int], samples: int) -> Example:
    for_lengths, for_content = jax.random.split(key)
    chosen = jax.random.randint(for_lengths, (samples,), lengths[0], lengths[1] + 1, np.int32)
    sample = lambda key, lengths_drawn, *arrays: task.given(*arrays).sample(key, lengths_drawn, lengths[1])
    return jax.jit(sample)(for_content, chosen, *task.arrays)


def _source(task: Task) -> list[str]:
    """Return which bytes each split of a text has."""
    if not isinstance(task, Text):
        return []
    named = ((split, task.for_split(split)) for split in ("train", "test"))
    return ["\n".join(f"* {split}: {one.data.size} bytes, sha256 `{one.sha256}`" for split, one in named)]


def _vocabulary(task: Task) -> list[str]:
    names = task.alphabet()
    rows = ((title, len(tokens), _shortened(tokens)) for title, tokens in zip(("input", "output"), names, strict=True))
    return ["## Vocabulary", _table(("side", "tokens", "names, from token 0"), rows)]


def _shortened(tokens: tuple[str, ...], most: int = 16) -> str:
    shown = tokens if len(tokens) <= most else (*tokens[: most - 2], "...", tokens[-1])
    return " ".join("..." if name == "..." else f"`{name}`" for name in shown)


def _length_row(task: Task, length: int) -> tuple[str, ...]:
    chance = task.chance(length)
    numbers = (_number(task.space(length)), _number(task.answers(length)))
    return (str(length), *numbers, f"{chance.token:.3g}", f"{chance.exact:.3g}")


def _number(n: int) -> str:
    """Small numbers in full, large ones as the nearest power of ten, which no float need hold."""
    return str(n) if n < 10**6 else f"about 1e{round(math.log10(n))}"


def _sample_row(title: str, lengths: tuple[int, int], example: Example, train: Example) -> tuple[str, ...]:
    seen, mine = set(inputs(train)), inputs(example)
    overlap = "-" if example is train else str(sum(x in seen for x in mine))
    tokens, counted = np.asarray(example.input_length), np.asarray(example.weight).sum(-1)
    spread = lambda x: f"{x.min()}-{x.max()}, mean {x.mean():.1f}"
    return (title, f"{lengths[0]}-{lengths[1]}", spread(tokens), spread(counted), str(len(set(mine))), overlap)


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
