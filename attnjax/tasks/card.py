"""Data cards: the definition, the tokens, the size and the chance of a task, in Markdown, from the code."""

import inspect
import math
from collections.abc import Sequence

from attnjax.tasks.base import Task

MOST = 16
"""Names of tokens that are listed."""


def card(task: Task, lengths: Sequence[int] = (1, 40, 100)) -> str:
    """Return the data card of a task in Markdown, with rows for those of the lengths that the task has.

    Example:
      >>> from attnjax.tasks import task
      >>> print(card(task("parity_check"), [4]).partition("## Lengths")[2].strip())
      | length | answers | chance per token | chance of the whole answer |
      | --- | --- | --- | --- |
      | 4 | 2 | 0.5 | 0.5 |
    """
    longest = task.maximum_length or math.inf
    within = sorted({int(min(max(length, task.minimum_length), longest)) for length in lengths})
    alphabet = zip(("input", "output"), task.alphabet(), strict=True)
    parts = [
        f"# {type(task).__name__}",
        inspect.cleandoc(type(task).__doc__ or "").partition("\n\nExample:")[0],
        f"`{task}`",
        "## Vocabulary",
        "| side | tokens | names, from token 0 |\n| --- | --- | --- |\n"
        + "\n".join(f"| {side} | {len(names)} | {_listed(names)} |" for side, names in alphabet),
        "## Lengths",
        "| length | answers | chance per token | chance of the whole answer |\n"
        "| --- | --- | --- | --- |\n" + "\n".join(_length_row(task, length) for length in within),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in names]
    return " ".join(shown if len(shown) <= MOST else [*shown[: MOST - 2], "...", shown[-1]])


def _length_row(task: Task, length: int) -> str:
    # A large number as the nearest power of ten, which no float need hold.
    answers, chance = task.answers(length), task.chance(length)
    told = str(answers) if answers < 10**6 else f"about 1e{round(math.log10(answers))}"
    return f"| {length} | {told} | {chance.token:.3g} | {chance.exact:.3g} |"
