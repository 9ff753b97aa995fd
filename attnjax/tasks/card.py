"""Data cards: what a task is, how large its space is and how far train and test overlap, in Markdown, from the code."""

import inspect
import math
from collections.abc import Sequence

import jax
import numpy as np

from attnjax.tasks.base import Example, Task
from attnjax.tasks.checks import check_count
from attnjax.tasks.text import Text

TRAIN, TEST = 0, 1
"""Folded into the key: train and test are independent streams, of a text from bytes of its two splits."""
MOST = 16
"""Names of tokens that are listed."""


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
    key, trained, held_out = jax.random.key(seed), task.for_split("train"), task.for_split("test")
    sets = [(trained, train, TRAIN), *((held_out, lengths, TEST + i) for i, lengths in enumerate((train, *test)))]
    drawn = [_draw(one, jax.random.fold_in(key, stream), lengths, samples) for one, lengths, stream in sets]
    lengths = sorted({end for ends, _ in drawn for end in ends})
    seen = set(_inputs(drawn[0][1]))
    overlap = ["-", *(sum(x in seen for x in _inputs(example)) for _, example in drawn[1:])]
    titles = ["train", "test, same lengths", *("test" for _ in test)]
    splits = [(name, task.for_split(name)) for name in ("train", "test") if isinstance(task, Text)]
    parts = [
        f"# {type(task).__name__}",
        inspect.cleandoc(type(task).__doc__ or "").partition("\n\nExample:")[0],
        f"`{task}`",
        "\n".join(f"* {name}: {one.data.size} bytes, sha256 `{one.sha256}`" for name, one in splits),
        "## Vocabulary",
        "| side | tokens | names, from token 0 |\n| --- | --- | --- |\n"
        + "\n".join(
            f"| {side} | {len(names)} | {_listed(names)} |"
            for side, names in zip(("input", "output"), task.alphabet(), strict=True)
        ),
        "## Lengths",
        "| length | different inputs | answers | chance per token | chance of the whole answer |\n"
        "| --- | --- | --- | --- | --- |\n" + "\n".join(_length_row(trained, length) for length in lengths),
        f"## Samples\n\n{samples} examples of each, seed {seed}, at uniform lengths.",
        "| set | lengths | input tokens | counted targets | distinct | also in train |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        + "\n".join(
            f"| {title} | {ends[0]}-{ends[1]} | {_sample_row(example)} | {also} |"
            for title, (ends, example), also in zip(titles, drawn, overlap, strict=True)
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _draw(task: Task, key: jax.Array, lengths: tuple[int, int], samples: int) -> tuple[tuple[int, int], Example]:
    """Return the lengths of a range that the task has, and examples of them."""
    low, high = max(lengths[0], task.minimum_length), min(lengths[1], task.maximum_length or lengths[1])
    if low > high:
        has = f"{task.minimum_length} .. {task.maximum_length or 'any'}"
        raise ValueError(f"card: {task} has lengths {has}, none in {lengths}")
    for_lengths, for_content = jax.random.split(key)
    chosen = jax.random.randint(for_lengths, (samples,), low, high + 1, np.int32)
    sample = lambda key, chosen, *arrays: task.given(*arrays).sample(key, chosen, high)
    return (low, high), jax.jit(sample)(for_content, chosen, *task.arrays)


def _inputs(example: Example) -> list[bytes]:
    """Return the bytes of each input without its padding, to compare by."""
    tokens, lengths = np.asarray(example.inputs), np.asarray(example.input_length)
    return [row[:n].tobytes() for row, n in zip(tokens, lengths, strict=True)]


def _listed(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in names]
    return " ".join(shown if len(shown) <= MOST else [*shown[: MOST - 2], "...", shown[-1]])


def _length_row(task: Task, length: int) -> str:
    # Large numbers as the nearest power of ten, which no float need hold.
    sizes = [
        str(n) if n < 10**6 else f"about 1e{round(math.log10(n))}" for n in (task.space(length), task.answers(length))
    ]
    chance = task.chance(length)
    return f"| {length} | {sizes[0]} | {sizes[1]} | {chance.token:.3g} | {chance.exact:.3g} |"


def _sample_row(example: Example) -> str:
    tokens, counted = np.asarray(example.input_length), np.asarray(example.weight).sum(-1)
    spread = lambda x: f"{x.min()}-{x.max()}, mean {x.mean():.1f}"
    return f"{spread(tokens)} | {spread(counted)} | {len(set(_inputs(example)))}"
