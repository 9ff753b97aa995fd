"""What `attnjax evaluate` measures by tasks: the suite "long" on models that read text, and a run's own task at other lengths.

The suite has RULER's tasks at every length, by generation and by ranking:

    generation    string_match_all, the mean share of a sample's answers that the prediction contains (RULER)
    ranking       the share of samples whose right answer is likelier, per byte, than four wrong ones

Reference: Hsieh et al. 2024, arXiv:2404.06654, and its code, NVIDIA/RULER.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax import registry
from attnjax.evaluation.loaded_model import restore
from attnjax.evaluation.ruler import Sample
from attnjax.evaluation.samples import TASKS, Setting, samples
from attnjax.evaluation.text_model import Endings, TextModel
from attnjax.records.runs import read_config
from attnjax.sweep import find_run
from attnjax.tasks.checks import check_choice
from attnjax.train.check import check_lengths
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task

THRESHOLD = 85.6
"""Percent from which on RULER calls a length effective: that of Llama-2-7B at 4,096 tokens."""
CANDIDATES = 5
"""The right answer and four wrong ones: guessing scores 20 %."""
BYTES_PER_TOKEN = 4
BATCH = 4


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
    subject: TextModel,
    lengths: Sequence[int],
    tasks: Sequence[str] = tuple(TASKS),
    *,
    number: int = 20,
    seed: int = 0,
) -> list[Score]:
    """Returns the scores of a model, task by task and length by length.

    A length that a task cannot be made for, or the model cannot read, is a `Score` with the reason in place of numbers; no
    prompt is ever cut.

    Raises:
      ValueError: for an unknown task.
    """
    for task in tasks:
        check_choice("evaluate", "task", task, tuple(TASKS))
    found = []
    for task in tasks:
        row = registry.SUITES["long"][task]
        reserve, scale = (row.bytes, BYTES_PER_TOKEN) if subject.bytewise else (row.tokens, 1)
        for length in lengths:
            try:
                setting = Setting(length, reserve, subject.count, short=4096 * scale)
                made = samples(task, setting, number, seed)
                told = generation(subject, made, setting)
                ranked = ranking(subject.encode, subject.endings, made, length)
            except ValueError as error:
                found.append(Score(task, length, 0, problem=str(error)))
            else:
                found.append(Score(task, length, number, told, ranked))
    return found


def generation(subject: TextModel, made: Sequence[Sample], setting: Setting) -> float:
    """Returns the `string_match_all` of greedy answers of at most setting.reserve tokens."""
    prompts = [subject.encode(one.prompt + one.prefix) for one in made]
    told: list[str] = []
    for start in range(0, len(prompts), BATCH):
        part = prompts[start : start + BATCH]
        part += part[-1:] * (BATCH - len(part))  # one shape, one program
        tokens = subject.complete(part, setting.length - setting.reserve, setting.reserve)
        told += [subject.decode(row) for row in tokens.tolist()]
    return string_match_all(told[: len(made)], [one.answers for one in made])


def string_match_all(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """Returns the mean share of answers that a prediction contains, upper and lower case alike, in percent.

    Example:
      >>> string_match_all(["It is 12, and B.", ""], [["12", "b", "c"], ["x"]])
      33.33
    """
    shares = [
        sum(answer.lower() in text.lower() for answer in mine) / len(mine)
        for text, mine in zip(predictions, answers, strict=True)
    ]
    return round(100 * sum(shares) / len(shares), 2)


def ranking(encode: Callable[[str], list[int]], endings: Endings, made: Sequence[Sample], length: int) -> float:
    """Returns the percentage of samples whose last answer is likelier, per byte, than four wrong ones.

    The last answer of `vt` is the end of the chain. `encode` and `endings` are those of a `TextModel`.
    """
    right = 0
    for one in made:
        text, space = one.prompt + one.prefix, "" if one.prefix.endswith(" ") else " "
        told = [space + answer for answer in (one.answers[-1], *one.wrong[: CANDIDATES - 1])]
        tokens = [encode(text + answer) for answer in told]
        sizes = [len(answer.encode()) for answer in told]
        right += best_candidate(endings, encode(text), tokens, sizes, length) == 0
    return round(100 * right / len(made), 2)


def best_candidate(
    endings: Endings, prompt: Sequence[int], candidates: Sequence[Sequence[int]], bytes_of: Sequence[int], size: int
) -> int:
    """Returns which candidate has the smallest loss per byte, -1 where several have, or where losses are not finite.

    Args:
      endings: the model.
      prompt: the tokens before an answer.
      candidates: the tokens of prompt and answer together, for each answer. Where a tokenizer merges the end of the prompt
        with an answer, all tokens that differ from the prompt are the answer's.
      bytes_of: the number of bytes of each answer.
      size: the most tokens of prompt and answer together.

    Raises:
      ValueError: for a candidate with more tokens than `size`.
    """
    longest = max(map(len, candidates))
    if longest > size:
        raise ValueError(f"an answer and its prompt have {longest} tokens, and at most {size} are allowed")
    same = [max(_shared(prompt, candidate), 1) for candidate in candidates]
    begin = min(same)  # the answers of all candidates come after it
    found = endings(prompt[:begin], [candidate[begin:] for candidate in candidates], size)
    costs = [
        float(np.asarray(loss, np.float64)[first - begin :].sum()) / count
        for loss, first, count in zip(found, same, bytes_of, strict=True)
    ]
    best = int(np.argmin(costs))
    return best if np.isfinite(costs).all() and costs.count(costs[best]) == 1 else -1


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns how many tokens at the start of two lists are the same."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def effective_length(scores: Mapping[int, float], threshold: float = THRESHOLD) -> int | None:
    """Returns the largest length whose score, in percent, is at least `threshold`; None where no score is.

    Example:
      >>> effective_length({1024: 99.0, 2048: 85.6, 4096: 40.0})
      2048
    """
    return max((length for length, score in scores.items() if score >= threshold), default=None)


def averages(scores: Sequence[Score], kind: str) -> dict[int, float]:
    """Returns the mean over tasks at each length at which every task has a score; `kind` is "generation" or "ranking"."""
    tasks = {one.task for one in scores}
    out = {}
    for length in sorted({one.length for one in scores}):
        values = [getattr(one, kind) for one in scores if one.length == length]
        if len(values) == len(tasks) and None not in values:
            out[length] = round(sum(values) / len(values), 2)
    return out


def own_task(path: str | pathlib.Path, lengths: Sequence[int], number: int) -> list[dict[str, Any]]:
    """Returns the metrics of a trained run on its own task, a row {"task", "length", "samples", metric: value} per length.

    The examples are those of the run's own evaluation, `number` of each length.

    Raises:
      ValueError: for a length that the task does not have, or the encoding cannot read, and for a run without a checkpoint.
    """
    config = read_config(find_run(path))
    changed = {"lengths": tuple(sorted(set(lengths))), "validation_lengths": (), "count": number}
    evaluate = dataclasses.replace(config.evaluate, **changed, batch=min(config.evaluate.batch, number))
    train = dataclasses.replace(config.train, until=0.0)
    run = dataclasses.replace(config, evaluate=evaluate, train=train)
    task = make_task(run)
    check_lengths(run, task)
    trainer, found = restore(path)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], found.state.params)
    rows = {n: {"task": run.task.name, "length": n, "samples": number} for n in run.evaluate.lengths}
    for (measured,) in Evaluator(run, task, trainer.model).measure(params, ("test",)):
        for one in measured.records:
            rows[one["length"]][one["metric"]] = one["value"]
    return list(rows.values())
