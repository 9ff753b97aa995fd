"""The suite "long" of `attnjax evaluate`, by ranking: the same models and methods, asked in words and in facts.

A model has found an answer if it is likelier, per byte, than four wrong ones (`suite.best_candidate`), so that guessing
scores 1 / 5. Two kinds of tasks:

    niah_single_1 ... fwe   RULER's tasks in English, as `attnjax.evaluation` makes them, without a worked example
    fact, facts             the same with facts of `planting.py`: a line that states four of them somewhere in held-out text,
                            alone or with two lines of the other eight kinds; one is asked for at the end, and the wrong
                            answers are other values of its kind

No prompt is ever cut: RULER's shortest has more bytes than these models were trained on, and a length that a task cannot be
made for has no score. Samples are the same for every model and method.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from attnjax import registry
from attnjax.evaluation import suite
from attnjax.evaluation.samples import Setting, samples
from attnjax.evaluation.suite import BYTES_PER_TOKEN, CANDIDATES
from attnjax.evaluation.text_model import Endings
from attnjax.typing import Float, Int
from experiments.context_extension import planting, texts
from experiments.context_extension.subjects import Numbers, Subject
from experiments.context_extension.texts import Corpus

LINES = {"fact": 1, "facts": planting.KINDS // planting.ASKED}
"""Lines of facts in the text of each task."""
TASKS = (*LINES, *registry.SUITES["long"])
ROWS = 8
"""Prompts of facts that are read at once."""
Losses = Callable[[Int[np.ndarray, "B T"]], Float[np.ndarray, "B T-1"]]


class Question(NamedTuple):
    """Bytes before an answer, and answers of one byte each, of which the first is right."""

    prompt: list[int]
    answers: list[int]


def questions(corpus: Corpus, lines: int, length: int, longest: int, count: int) -> list[Question]:
    """Prompts that fill `length` bytes with their answers, the same at every length up to `longest` but for the text.

    Raises ValueError for a length that cannot hold the lines.
    """
    generator = np.random.default_rng([texts.KEY, lines])
    made = []
    for _ in range(count):
        kinds = generator.permutation(planting.KINDS)[: lines * planting.ASKED].reshape(lines, -1)
        values = planting.FIRST_VALUE + planting.VALUES * kinds + generator.integers(planting.VALUES, size=kinds.shape)
        depths, place, asked = generator.random(lines), generator.random(), int(generator.integers(planting.ASKED))
        kind, value = int(kinds[0, asked]), int(values[0, asked])
        every = planting.FIRST_VALUE + planting.VALUES * kind + np.arange(planting.VALUES)
        wrong = generator.permutation(every[every != value])[: CANDIDATES - 1]
        room = length - 3 - values.size - lines
        if room < lines:
            raise ValueError(f"a text of {length} bytes cannot hold {lines} lines of facts")
        end = longest + int(place * (len(corpus.test) - longest))
        text = with_lines(corpus, corpus.test[end - room : end].tolist(), values.tolist(), depths.tolist())
        made.append(Question([*text, ord("\n"), planting.QUESTIONS[kind]], [value, *wrong.tolist()]))
    return made


def with_lines(corpus: Corpus, text: list[int], lines: list[list[int]], depths: list[float]) -> list[int]:
    """The text with a line at each depth, at the end of a line of its own; 0 is the start of the text, 1 its end."""
    places = [texts.nearest_break(text, round(depth * len(text)), corpus.breaks) for depth in depths]
    parts, last = [], 0
    for place, line in sorted(zip(places, lines, strict=True)):
        parts += [*text[last:place], *line, ord("\n")]
        last = place
    return parts + text[last:]


def score(
    subject: Subject, numbers: Numbers, corpus: Corpus, task: str, length: int, longest: int, count: int
) -> float | None:
    """Percent of answers that are likelier than four wrong ones; None where no prompt of this length can be made.

    `numbers`: of the encoding that reads sequences of this length.
    """
    measure = _facts if task in LINES else _ruler
    return measure(subject, numbers, corpus, task, length, longest, count)


def _ruler(
    subject: Subject, numbers: Numbers, corpus: Corpus, task: str, length: int, longest: int, count: int
) -> float | None:
    del corpus, longest
    setting = Setting(length, registry.SUITES["long"][task].bytes, len, shots=0, short=4096 * BYTES_PER_TOKEN)
    try:
        made = samples(task, setting, count)
    except ValueError:
        return None
    return suite.ranking(_bytes, endings_of(losses_of(subject, numbers)), made, length)


def _facts(
    subject: Subject, numbers: Numbers, corpus: Corpus, task: str, length: int, longest: int, count: int
) -> float | None:
    try:
        asked = questions(corpus, LINES[task], length, longest, count)
    except ValueError:
        return None
    prompts = np.array([one.prompt for one in asked], np.int32)
    parts = [prompts[start : start + ROWS] for start in range(0, count, ROWS)]
    costs = np.concatenate([subject.next_losses(subject.params, numbers, part) for part in parts])
    right = [found_by(cost, one) for cost, one in zip(costs, asked, strict=True)]
    return round(100 * sum(right) / count, 2)


def found_by(costs: Float[np.ndarray, " V"], asked: Question) -> bool:
    """Whether the suite finds the right byte likeliest, by what each byte would cost behind the prompt."""

    def endings(prompt: Sequence[int], told: Sequence[Sequence[int]], size: int) -> list[Float[np.ndarray, " n"]]:
        del prompt, size
        return [costs[list(answer)] for answer in told]

    told = [[*asked.prompt, byte] for byte in asked.answers]
    return suite.best_candidate(endings, asked.prompt, told, [1] * CANDIDATES, len(told[0])) == 0


def losses_of(subject: Subject, numbers: Numbers) -> Losses:
    """A model with an encoding as the suite asks for it."""

    def losses(tokens: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "B T-1"]:
        rows = np.pad(tokens, ((0, 0), (0, 1)))  # the number of losses is a length, which is cut into equal parts
        return np.asarray(subject.scores(subject.params, numbers, rows).loss, np.float64)[:, :-1]

    return losses


def endings_of(losses: Losses) -> Endings:
    """A model of endings that reads each with its whole prompt, padded on the right with token 0 to the same size."""

    def endings(prompt: Sequence[int], told: Sequence[Sequence[int]], size: int) -> Sequence[Float[np.ndarray, " n"]]:
        rows = [[*prompt, *one] for one in told]
        found = np.asarray(losses(np.array([row + [0] * (size - len(row)) for row in rows], np.int32)), np.float64)
        return [loss[len(prompt) - 1 : len(row) - 1] for loss, row in zip(found, rows, strict=True)]

    return endings


def _bytes(text: str) -> list[int]:
    return list(text.encode())
