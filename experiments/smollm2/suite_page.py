"""What the page says of the suite "long" and of the factor search, from suite.jsonl alone."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnjax import registry
from attnjax.evaluation.suite import CANDIDATES
from attnjax.report.formatting import markdown, markdown_table
from experiments import recorded

LISTS = {"pi": "PI", "ntk": "NTK", "by_parts": "NTK-by-parts", "found": "found by the search", "ones": "all 1"}
"""Lists of factors, as the table calls them: where the search begins, where it ends, and frequencies as trained."""

SECTION = """## The suite `long`, by generation and by ranking

Tasks of RULER as texts, sized in tokens of the checkpoint's own tokenizer so that prompt and answer fit {lengths} tokens,
all of them far within the trained length: what the checkpoint finds where no method is needed. {samples} samples for each
cell, so that one sample is {share:g} points: enough to see that the suite runs on a published checkpoint, and too few to rank
anything. Generation is greedy, and right where the text contains the answer; ranking is right where the answer is likelier,
per byte, than {wrong} wrong ones, and guessing scores {chance:g} %. The model, which was fine-tuned to follow instructions, is
asked in plain text without its chat template.

{table}

*Percent of {samples} samples.*
{search}
Made on {date} on two cores of an {processor}, beside other work, jax {jax}; {minutes:.1f} minutes of the
processor with compilation:

```sh
python -m experiments.smollm2.suite FILE.gguf --text docs.txt
```

Records: [suite.jsonl](suite.jsonl). For more samples, tasks and lengths: `attnjax evaluate runs/smollm2 --suite long`.
"""

SEARCH = """
### The factor search of LongRoPE on this checkpoint

The search of `--extend longrope --search` was told that this checkpoint was trained at {pretended} tokens and had to read a
window of {window}. It was trained at 8192 and needs no method there: this shows that the search runs on published weights
and lowers the loss that it is given, and is no result about LongRoPE. As trained, the window costs {plain:.4f},
{compared} with every list below. {rounds} over the pairs, {evaluations} evaluations at most:
{judged}

{table}

*Mean loss of the window in nats per token. The search saw this window, so its loss is no estimate for other texts. The
attention factor of LongRoPE acts in all lists, so that factors of 1 differ from the model as trained.*

At {past} tokens, where factors are of use, the fastest method above took {seconds:.0f} seconds for one window, so that
{evaluations} evaluations would take {hours:.0f} hours on this machine: not measured.
"""


class Suite(NamedTuple):
    """The protocol with where it was followed, the scores, the search, and the loss of its window as trained.

    Without the last two there is no part about the search.
    """

    about: Mapping[str, Any]
    scores: Sequence[Mapping[str, Any]]
    search: Mapping[str, Any] | None
    plain: float | None

    @property
    def minutes(self) -> float:
        """Of the processor, for all records."""
        records = [*self.scores, *([self.search] if self.search else [])]
        return sum(one["processor_seconds"] for one in records) / 60


def results(tables: list[dict[str, Any]]) -> Suite:
    """The records by kind. Raises ValueError without a score, and KeyError where one lacks a field."""
    scores = [one for one in tables if one.get("kind") == "score"]
    if not scores:
        raise ValueError("there is no score in these records; the command that began them goes on")
    search = next((one for one in tables if one.get("kind") == "search"), None)
    plain = next((one["loss"] for one in tables if one.get("kind") == "plain"), None)
    return Suite(recorded.about(tables), scores, search if plain is not None else None, plain)


def section(found: Suite, past: int, seconds: float) -> str:
    """The section of README.md.

    Args:
      found: the records.
      past: tokens of the window past the trained length that the losses above were measured in.
      seconds: what the fastest method took for it.
    """
    lengths = sorted({one["length"] for one in found.scores})
    about = {name: markdown(str(found.about[name])) for name in ("date", "processor", "jax")}
    return SECTION.format(
        lengths=" or ".join(map(str, lengths)),
        samples=found.about["samples"],
        share=100 / found.about["samples"],
        wrong=CANDIDATES - 1,
        chance=100 / CANDIDATES,
        table=table(found, lengths),
        search=searched(found, past, seconds) if found.search else "",
        minutes=found.minutes,
        **about,
    )


def table(found: Suite, lengths: Sequence[int]) -> str:
    """A row per task, and for each length what is found by generation and by ranking."""
    cells = {(one["task"], one["length"]): f"{one['generation']:g} / {one['ranking']:g}" for one in found.scores}
    tasks = dict.fromkeys(one["task"] for one in found.scores)
    rows = [
        [registry.SUITES["long"][task].label, *(cells.get((task, n), "not measured") for n in lengths)]
        for task in tasks
    ]
    return markdown_table(["task", *(f"{n} tokens: generation / ranking" for n in lengths)], rows).rstrip()


def searched(found: Suite, past: int, seconds: float) -> str:
    """The part about the search."""
    assert found.search is not None
    assert found.plain is not None
    losses, factors = found.search["losses"], found.search["factors"]
    evaluations = 3 + 2 * len(factors) * found.about["rounds"]
    rows = [[label, f"{losses[name]:.4f}"] for name, label in LISTS.items()]
    rows.append(["none: the model as trained", f"{found.plain:.4f}"])
    return SEARCH.format(
        pretended=found.about["pretended"],
        window=found.about["window"],
        rounds={1: "One round", 2: "Two rounds"}[found.about["rounds"]],
        evaluations=evaluations,
        judged=judged(losses, factors),
        table=markdown_table(["factors", "loss"], rows).rstrip(),
        plain=found.plain,
        compared="less than" if found.plain < min(losses.values()) else "not less than",
        past=past,
        seconds=seconds,
        hours=evaluations * seconds / 3600,
    )


def judged(losses: Mapping[str, float], factors: Sequence[float]) -> str:
    """By how much the search lowered the loss, and which factors it ended with, in a sentence."""
    best, above = min(losses[name] for name in ("pi", "ntk", "by_parts")), sum(one > 1 for one in factors)
    return (
        f"the loss fell from {best:.4f} under the best start to {losses['found']:.4f}. Of {len(factors)} factors {above} are "
        f"above 1,\nand the largest is {max(factors):g}."
    )
