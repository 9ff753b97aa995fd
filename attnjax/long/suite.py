"""The suite "long": every task at every length, by generation and by ranking, and LongPPL of a text."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnjax import registry
from attnjax.long.fitting import Setting, samples
from attnjax.long.ruler import Sample
from attnjax.long.scoring import (
    THRESHOLD,
    best_candidate,
    by_rows,
    effective_length,
    key_tokens,
    long_ppl,
    short_losses,
    string_match_all,
)
from attnjax.long.subjects import Subject
from attnjax.tasks.checks import check_choice

TASKS = tuple(registry.SUITES["long"])
CANDIDATES = 5
"""The right answer and four wrong ones: guessing scores 20 %."""
BYTES_PER_TOKEN = 4
BATCH = 4
WINDOWS = 4
"""Windows of text for LongPPL."""


@dataclasses.dataclass(frozen=True)
class Score:
    """What a model scores on a task at a length, in percent, or why there is no score."""

    task: str
    length: int
    samples: int
    generation: float | None = None
    ranking: float | None = None
    problem: str = ""


def evaluate(
    subject: Subject,
    lengths: Sequence[int],
    tasks: Sequence[str] = TASKS,
    *,
    number: int = 20,
    seed: int = 0,
    shots: int = 1,
    haystack: Sequence[str] = (),
    depth: float | None = None,
) -> list[Score]:
    """Return the scores of a model, task by task and length by length.

    A length that a task cannot be made for, or the model cannot read, is a `Score` with the reason in place of numbers; no
    prompt is ever cut.

    Raises:
      ValueError: for an unknown task.
    """
    for task in tasks:
        check_choice("evaluate", "task", task, TASKS)
    found = []
    for task in tasks:
        row = registry.SUITES["long"][task]
        reserve, scale = (row.bytes, BYTES_PER_TOKEN) if subject.bytewise else (row.tokens, 1)
        for length in lengths:
            try:
                setting = Setting(length, reserve, subject.count, shots, haystack, depth, 4096 * scale)
                made = samples(task, setting, number, seed)
                scores = {"generation": generation(subject, made, setting), "ranking": ranking(subject, made, setting)}
            except ValueError as error:
                found.append(Score(task, length, 0, problem=str(error)))
            else:
                found.append(Score(task, length, number, **scores))
    return found


def generation(subject: Subject, made: Sequence[Sample], setting: Setting) -> float:
    """Return the `string_match_all` of greedy answers of at most setting.reserve tokens."""
    prompts = [subject.encode(one.prompt + one.prefix) for one in made]
    told: list[str] = []
    for start in range(0, len(prompts), BATCH):
        part = prompts[start : start + BATCH]
        part += part[-1:] * (BATCH - len(part))  # one shape, one program
        tokens = subject.complete(part, setting.length - setting.reserve, setting.reserve)
        told += [subject.decode(row) for row in tokens.tolist()]
    return string_match_all(told[: len(made)], [one.answers for one in made])


def ranking(subject: Subject, made: Sequence[Sample], setting: Setting) -> float:
    """Return the percentage of samples whose last answer is likelier, per byte, than four wrong ones.

    The last answer of `vt` is the end of the chain.
    """
    right, endings = 0, subject.endings or by_rows(subject.losses)
    for one in made:
        text, space = one.prompt + one.prefix, "" if one.prefix.endswith(" ") else " "
        told = [space + answer for answer in (one.answers[-1], *one.wrong[: CANDIDATES - 1])]
        tokens = [subject.encode(text + answer) for answer in told]
        sizes = [len(answer.encode()) for answer in told]
        right += best_candidate(endings, subject.encode(text), tokens, sizes, setting.length) == 0
    return round(100 * right / len(made), 2)


def text_long_ppl(subject: Subject, tokens: Sequence[int], length: int) -> dict[str, float | None]:
    """Return LongPPL of the first windows of a text, with the model as its own judge; None where it has no whole window.

    "windows_read" and "windows" say how many windows of how many that are. The short context has an eighth of the length, and a
    quarter of that shares it (4,096 and 1,024 of 32,768 tokens in the paper, whose judge is a large model; numbers are not
    comparable with the paper's).
    """
    context, whole = max(length // 8, 4), len(tokens) // length
    count = min(WINDOWS, whole) if context < length else 0
    windows = np.asarray(tokens[: count * length], np.int32).reshape(count, length)
    read = {"windows_read": count, "windows": whole}
    if not count:
        return {"long_ppl": None, "key_tokens": None, **read}
    losses, keys = [], []
    for window in windows:
        full = np.append(np.nan, np.asarray(subject.losses(window[None]), np.float64)[0])
        keys.append(key_tokens(full, short_losses(subject.losses, window, context, max(context // 4, 1))))
        losses.append(full)
    loss, key = np.concatenate(losses), np.concatenate(keys)
    return {"long_ppl": long_ppl(loss, key), "key_tokens": float(key.mean()), **read}


def averages(scores: Sequence[Score], kind: str) -> dict[int, float]:
    """Return the mean over tasks at each length at which every task has a score; `kind` is "generation" or "ranking"."""
    tasks = {one.task for one in scores}
    out = {}
    for length in sorted({one.length for one in scores}):
        values: list[Any] = [getattr(one, kind) for one in scores if one.length == length]
        if len(values) == len(tasks) and None not in values:
            out[length] = round(sum(values) / len(values), 2)
    return out


def table(name: str, scores: Sequence[Score]) -> str:
    """Return scores in Markdown: a row per task, "generation / ranking" per length, then means and effective lengths."""
    lengths = sorted({one.length for one in scores})
    cell = lambda one: f"{one.generation:.1f} / {one.ranking:.1f}" if one.generation is not None else "-"
    by_place = {(one.task, one.length): one for one in scores}
    rows = [("task", *(f"{length:,}" for length in lengths)), ("---", *("---" for _ in lengths))]
    for task in dict.fromkeys(one.task for one in scores):
        rows.append((registry.SUITES["long"][task].label, *(cell(by_place[task, length]) for length in lengths)))
    means = [averages(scores, kind) for kind in ("generation", "ranking")]
    shown = [f"{means[0][n]:.1f} / {means[1][n]:.1f}" if n in means[0] else "-" for n in lengths]
    rows.append(("mean of all tasks", *shown))
    reach = [f"{found:,}" if (found := effective_length(mean)) else "none" for mean in means]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines += [
        "",
        f"Effective length of {name} (mean at least {THRESHOLD} %): {reach[0]} by generation, {reach[1]} by ranking.",
    ]
    lines += [f"Note: {one.problem}." for one in scores if one.problem]
    return "\n".join(lines)
