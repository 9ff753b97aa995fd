"""The texts on the page: those that the user gave, or held-out examples of the run's task; and names of their tokens."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config import RunConfig
from attnjax.config.names import nearest
from attnjax.evaluation.heads import held_out_examples
from attnjax.tasks import Text, specials
from attnjax.tasks.base import Task
from attnjax.tasks.forms import Sequences
from attnjax.train.check import tokens as count_tokens
from attnjax.train.position_sampling import sample_positions
from attnjax.typing import Array

MOST_TOKENS = 128
"""Largest number of tokens of a map. With more, cells are too small to point at; each head of such a map takes 22 KB."""
PREVIEW = 28
BYTES = ((9, "⇥"), (10, "⏎"), (32, "␣"))
SEPARATOR = "<separator>"
EXAMPLES = 3


class Read(NamedTuple):
    """A text as a run reads it: token ids [T], and positions unless they are 0, 1, ..."""

    title: str
    tokens: np.ndarray
    positions: Array | None


def texts(run: RunConfig, task: Task, given: Sequence[bytes] = ()) -> list[Read]:
    """The texts to show. Raises ValueError for a text that is empty, too long, or has a token outside the run's vocabulary."""
    if given:
        return [_given(run, task, text) for text in given]
    lengths = fitting(run, task, MOST_TOKENS)
    if not isinstance(task, Text):
        found = {n: _drawn(run, task, n, 1)[0] for n in some(lengths)}
        return [_placed(run, task, f"held-out example of length {n}", tokens) for n, tokens in found.items()]
    return [
        _window(run, task, tokens, number) for number, tokens in enumerate(_drawn(run, task, lengths[-1], EXAMPLES))
    ]


def fitting(run: RunConfig, task: Task, most: int) -> list[int]:
    """The longest training length and the test lengths whose sequences have at most `most` tokens, ascending.

    If all are longer, the longest length of the task that fits. Raises ValueError if no length of the task fits.
    """
    longest = task.for_split("test").maximum_length
    known = sorted({run.task.length_max, *run.evaluate.lengths})
    known = [n for n in known if n >= task.minimum_length and (longest is None or n <= longest)]
    fit = [n for n in known if count_tokens(run, task, n) <= most]
    shorter = range(min(known, default=task.minimum_length), task.minimum_length - 1, -1)
    fit = fit or [n for n in shorter if count_tokens(run, task, n) <= most][:1]
    if not fit:
        raise ValueError(f"every sequence of task {run.task.name!r} has more than {most} tokens")
    return fit


def some(lengths: Sequence[int]) -> list[int]:
    """The first, the middle and the last length."""
    return sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})


def _given(run: RunConfig, task: Task, text: bytes) -> Read:
    tokens = read_tokens(run, task, text)
    if not 1 <= len(tokens) <= MOST_TOKENS:
        raise ValueError(f"a text must have 1 to {MOST_TOKENS} tokens to be shown as a map, got {len(tokens)}")
    shown = " ".join(text.decode("utf-8", "replace").split())
    title = shown if len(shown) <= PREVIEW else f"{shown[:PREVIEW]}…"
    return _placed(run, task, title, np.asarray(tokens, np.int32))


def _window(run: RunConfig, task: Task, tokens: np.ndarray, number: int) -> Read:
    begins = "".join(token_names(run, task, tokens[:PREVIEW])).replace("␣", " ")
    return _placed(run, task, f"held-out {number + 1}: {begins}…", tokens)


def _drawn(run: RunConfig, task: Task, length: int, count: int) -> list[np.ndarray]:
    """The tokens of held-out examples, the same for every run of a task."""
    made = jax.device_get(held_out_examples(run, task, length, count))
    return [tokens[valid] for tokens, valid in zip(made.tokens, made.valid, strict=True)]


def _placed(run: RunConfig, task: Task, title: str, tokens: np.ndarray) -> Read:
    """The text with the positions of the run's tests; None if these are 0, 1, ..., which an encoding can then check."""
    row = jnp.asarray(tokens, jnp.int32)[None]
    everywhere = jnp.ones(row.shape, bool)
    indices = jnp.arange(row.shape[1], dtype=jnp.int32)[None]
    nothing = jnp.zeros((1,), jnp.int32)
    plain = Sequences(row, row, everywhere, everywhere, indices, nothing, nothing)
    placed: Any = sample_positions(run, task, plain, jax.random.key(0), test=True)
    return Read(title, tokens, None if placed is plain else placed.positions)


def token_names(run: RunConfig, task: Task, tokens: Iterable[int]) -> tuple[str, ...]:
    """The name of each token of a sequence: behind the separator of a decoder's sequence, that of a token of the answer.

    Special tokens of the form have angle brackets: <separator>.
    """
    inputs, answers = vocabularies(run, task)
    found: list[str] = []
    for token in tokens:
        found.append((answers if SEPARATOR in found else inputs)[token])
    return tuple(found)


def vocabularies(run: RunConfig, task: Task) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the tokens of an input, by id, and those of an answer, which have the same ids."""
    if isinstance(task, Text):
        names = tuple(byte_name(i) for i in range(256))
        return names, names
    inputs, outputs = task.alphabet()
    if run.task.form == "encoder" and not task.aligned:
        return (*inputs, "<slot>"), outputs
    special = specials(task)._asdict()
    ends = () if task.aligned else tuple(f"<{name}>" for name in sorted(special, key=special.__getitem__))
    return (*inputs, *outputs[len(inputs) :], *ends), (*outputs, *inputs[len(outputs) :], *ends)


def byte_name(byte: int) -> str:
    """The name of a byte: a printable ASCII character, a visible sign for white space, or x and two hexadecimal digits."""
    return dict(BYTES).get(byte) or (chr(byte) if 32 < byte < 127 else f"x{byte:02x}")


def read_tokens(run: RunConfig, task: Task, text: bytes) -> list[int]:
    """The token ids of a typed text: its bytes for a text task, otherwise names of tokens separated by white space.

    Raises ValueError for a name that the run's task does not have.
    """
    if isinstance(task, Text):
        return list(text)
    inputs, answers = vocabularies(run, task)
    words, found = text.decode("utf-8", "replace").split(), []
    for i, word in enumerate(words):
        names = answers if SEPARATOR in words[:i] else inputs
        if word not in names:
            raise ValueError(
                f"the text has the token {word[:40]!r}, which task {run.task.name!r} does not have"
                f"{nearest(word, names)}; separate the names of tokens by white space: {', '.join(names)}"
            )
        found.append(names.index(word))
    return found
