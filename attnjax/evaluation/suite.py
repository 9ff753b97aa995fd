"""What `attnjax evaluate` measures by tasks: those of RULER on models that read text, and a run's own task at other lengths.

RULER's tasks are measured at every length, by generation and by ranking:

    generation    string_match_all, the mean share of a sample's answers that the prediction contains (RULER)
    ranking       the share of samples whose right answer is likelier, per byte, than four wrong ones

A result is rows: dicts with "length", "task" or nothing for the perplexity of a text, "samples", and a number per metric, or
a "problem" that says why there are none. `table` writes them in Markdown.

Reference: Hsieh et al. 2024, arXiv:2404.06654, and its code, NVIDIA/RULER.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax import registry
from attnjax.evaluation.loaded_model import restore
from attnjax.evaluation.ruler import Sample
from attnjax.evaluation.samples import TASKS, Setting, samples
from attnjax.evaluation.text_model import TextModel
from attnjax.records.runs import read_config
from attnjax.report.formatting import markdown_table
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
ABOUT = ("task", "length", "samples", "problem")
"""Keys of a row that are no metric."""
KINDS = ("generation", "ranking")
METRICS = MappingProxyType(
    {
        "generation": ("generation, %", ".1f"),
        "ranking": ("ranking, %", ".1f"),
        "stride": ("stride", ","),
        "ppl": ("perplexity", ".4g"),
        "nats_per_token": ("nats per token", ".4f"),
        "bits_per_byte": ("bits per byte", ".4f"),
        "tokens": ("tokens counted", ","),
        "bytes": ("bytes counted", ","),
    }
)
"""Name and format of each metric; those of a run's own task have their own name, and four digits."""
Row = dict[str, Any]


def evaluate(
    subject: TextModel,
    lengths: Sequence[int],
    tasks: Sequence[str] = tuple(TASKS),
    *,
    number: int = 20,
    seed: int = 0,
) -> list[Row]:
    """Returns the scores of a model in percent, task by task and length by length.

    A length that a task cannot be made for, or the model cannot read, has the reason in place of numbers; no prompt is ever
    cut.

    Raises:
      ValueError: for an unknown task.
    """
    for task in tasks:
        check_choice("evaluate", "task", task, tuple(TASKS))
    found: list[Row] = []
    for task, length in itertools.product(tasks, lengths):
        known = registry.SUITES["long"][task]
        reserve, scale = (known.bytes, BYTES_PER_TOKEN) if subject.bytewise else (known.tokens, 1)
        setting = Setting(length, reserve, subject.count, short=4096 * scale)
        try:
            made = samples(task, setting, number, seed)
            scores = {"generation": generation(subject, made, setting), "ranking": ranking(subject, made, length)}
        except ValueError as error:
            scores = {"problem": str(error)}
        found.append({"task": task, "length": length, "samples": number, **scores})
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


def ranking(subject: TextModel, made: Sequence[Sample], length: int) -> float:
    """Returns the percentage of samples whose last answer is likelier, per byte, than four wrong ones.

    The last answer of `vt` is the end of the chain.
    """
    right = 0
    for one in made:
        text, space = one.prompt + one.prefix, "" if one.prefix.endswith(" ") else " "
        told = [space + answer for answer in (one.answers[-1], *one.wrong[: CANDIDATES - 1])]
        tokens = [subject.encode(text + answer) for answer in told]
        sizes = [len(answer.encode()) for answer in told]
        right += best_candidate(subject, subject.encode(text), tokens, sizes, length) == 0
    return round(100 * right / len(made), 2)


def best_candidate(
    subject: TextModel, prompt: Sequence[int], candidates: Sequence[Sequence[int]], bytes_of: Sequence[int], size: int
) -> int:
    """Returns which candidate has the smallest loss per byte, -1 where several have, or where losses are not finite.

    Args:
      subject: the model.
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
    found = subject.endings(prompt[:begin], [candidate[begin:] for candidate in candidates], size)
    costs = [
        float(np.asarray(loss, np.float64)[first - begin :].sum()) / count
        for loss, first, count in zip(found, same, bytes_of, strict=True)
    ]
    best = int(np.argmin(costs))
    return best if np.isfinite(costs).all() and costs.count(costs[best]) == 1 else -1


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns how many tokens at the start of two lists are the same."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def own_task(path: str | pathlib.Path, lengths: Sequence[int], number: int) -> list[Row]:
    """Returns the metrics of a trained run on its own task, a row {"task", "length", "samples", metric: value} per length.

    The examples are those of the run's own evaluation, `number` of each length.

    Raises:
      ValueError: for a length that the task does not have, or the encoding cannot read, and for a run without a checkpoint.
    """
    config = read_config(find_run(path))
    changed = {"lengths": tuple(sorted(set(lengths))), "validation_lengths": (), "count": number}
    evaluate = dataclasses.replace(config.evaluate, **changed, batch=min(config.evaluate.batch, number))
    run = dataclasses.replace(config, evaluate=evaluate, train=dataclasses.replace(config.train, until=0.0))
    task = make_task(run)
    check_lengths(run, task)
    trainer, found = restore(path)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], found.state.params)
    rows = {n: {"task": run.task.name, "length": n, "samples": number} for n in run.evaluate.lengths}
    for (measured,) in Evaluator(run, task, trainer.model).measure(params, ("test",)):
        for one in measured.records:
            rows[one["length"]][one["metric"]] = one["value"]
    return list(rows.values())


# Tables -------------------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Returns a line per task and metric with a column per length, and why numbers are missing, each reason once.

    Example:
      >>> print(table([{"task": "vt", "length": 512, "generation": 75.0}, {"task": "vt", "length": 1024, "problem": "no"}]))
      | task | metric | 512 | 1,024 |
      | --- | ---: | ---: | ---: |
      | Variable tracking | generation, % | 75.0 | - |
      Note: no.
    """
    found = {(row.get("task", "text"), row["length"]): row for row in rows}
    tasks, lengths = dict.fromkeys(task for task, _ in found), sorted({length for _, length in found})
    metrics = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in ABOUT]
    labels = {name: one.label for name, one in registry.SUITES["long"].items()}
    lines = []
    for task, metric in itertools.product(tasks, metrics):
        name, form = METRICS.get(metric, (metric, ".4g"))
        cells = [found.get((task, length), {}).get(metric) for length in lengths]
        lines.append([labels.get(task, task), name, *("-" if one is None else format(one, form) for one in cells)])
    notes = [f"Note: {text}." for text in dict.fromkeys(row["problem"] for row in rows if "problem" in row)]
    return "\n".join([markdown_table(["task", "metric", *(f"{n:,}" for n in lengths)], lines).rstrip(), *notes])


def suite_table(name: str, rows: Sequence[Row]) -> str:
    """Returns the table of RULER's tasks with the mean over tasks at each length, and the effective lengths."""
    means = {kind: averages(rows, kind) for kind in KINDS}
    mean = [{"task": "mean of all tasks", "length": n, "generation": x} for n, x in means["generation"].items()]
    for row in mean:
        row["ranking"] = means["ranking"][row["length"]]
    reach = [f"{found:,}" if (found := effective_length(means[kind])) else "none" for kind in KINDS]
    told = f"Effective length of {name} (mean at least {THRESHOLD} %): {reach[0]} by generation, {reach[1]} by ranking."
    return f"{table([*rows, *mean])}\n\n{told}"


def averages(rows: Sequence[Row], kind: str) -> dict[int, float]:
    """Returns the mean over tasks at each length at which every task has a score; `kind` is "generation" or "ranking"."""
    out = {}
    for length in sorted({row["length"] for row in rows}):
        here = [row for row in rows if row["length"] == length]
        values = [row[kind] for row in here if kind in row]
        if len(values) == len(here):
            out[length] = round(sum(values) / len(values), 2)
    return out


def effective_length(scores: Mapping[int, float], threshold: float = THRESHOLD) -> int | None:
    """Returns the largest length whose score, in percent, is at least `threshold`; None where no score is.

    Example:
      >>> effective_length({1024: 99.0, 2048: 85.6, 4096: 40.0})
      2048
    """
    return max((length for length, score in scores.items() if score >= threshold), default=None)
