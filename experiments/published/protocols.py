"""In what a cell of ours differs from the published one beside it, computed from the config of its runs.

`protocols.toml` says what each paper did. A difference names our value and, in brackets, theirs:

    encoding     hyper-parameters of the encoding itself, and of where its positions come from
    size         layers, width, heads
    architecture norm, activation, biases, dropout; `start`: initial values
    training     optimizer, steps, rates, stop
    data         tokens, lengths, distribution; `tests`: how the metric is measured
    selection    which runs count, and `aggregation`: how they become one number

What the file does not mention is not compared. A setting that a config does not give, and that has no default, is "not given".
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

from attnjax.records.values import as_dict, dotted
from attnjax.report.groups import shown

TOPICS = (
    *("encoding", "size", "architecture", "start", "training", "data", "tests"),
    *("selection", "aggregation"),
)
CONDITIONS = ("encoding", "task", "metric")
"""Fields of a cell that a setting may ask for."""


class Published(Protocol):
    """What is read of a published number: see `cells.Cell`."""

    @property
    def paper(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def options(self) -> str: ...
    @property
    def encoding(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def trained(self) -> int: ...


@dataclass(frozen=True)
class Differs:
    """One difference: its topic, and ours (theirs) in words."""

    topic: str
    words: str


def protocols() -> dict[str, Any]:
    """What each paper did, by the name of the paper in published.csv.

    Example:
      >>> protocols()["Press et al. 2022 (arXiv:2108.12409)"]["counted"]
      'only'
    """
    return tomllib.loads(
        resources.files("experiments.published").joinpath("protocols.toml").read_text(encoding="utf-8")
    )


def differs(cell: Published, config: Mapping[str, Any]) -> tuple[Differs, ...]:
    """All differences between a published cell and runs of this config, in the order of `TOPICS`."""
    paper = protocols()[cell.paper]
    ours = dict(dotted(config))
    found = (
        []
        if (policy := ours.get("positions.policy", "arange")) == cell.policy
        else [Differs("encoding", f"positions {policy} ({cell.policy})")]
    )
    longest = ours.get("task.length_max")
    if longest != cell.trained:
        found.append(Differs("data", f"trained to {told(longest)} ({cell.trained})"))
    for setting in (*paper["settings"], *sizes(paper, cell)):
        if holds(setting, cell):
            value, theirs = ours.get(setting["key"]), setting["theirs"]
            value = setting.get("unless") if value is None else value
            if value != theirs or isinstance(value, bool) != isinstance(theirs, bool):
                name = setting["key"].rpartition(".")[2]
                found.append(Differs(setting["topic"], f"{name} {told(value)} ({shown(theirs)})"))
    asked = lambda one: "if" not in one or bool(ours.get(one["if"]))
    found += [Differs(one["topic"], one["words"]) for one in paper["always"] if holds(one, cell) and asked(one)]
    return tuple(sorted(found, key=lambda one: TOPICS.index(one.topic)))


def counted(cell: Published) -> str:
    """Which runs enter the published number: "all", those that have "fitted", or the "only" one.

    The 12-layer models of a paper that selects enter as they are.
    """
    paper = protocols()[cell.paper]
    layers = next((one["theirs"] for one in sizes(paper, cell) if one["key"] == "model.layers"), 0)
    return "all" if paper["counted"] == "fitted" and layers == 12 else paper["counted"]


def sizes(paper: Mapping[str, Any], cell: Published) -> list[dict[str, Any]]:
    """The settings of a paper that has a model of its own for each task and encoding."""
    row = as_dict(as_dict(paper.get("sizes")).get(cell.encoding)).get(cell.task, ())
    topics = {"model": "size", "train": "training"}
    return [
        {"topic": topics[key.partition(".")[0]], "key": key, "theirs": value}
        for key, value in zip(paper.get("columns", ()), row, strict=False)
    ]


def holds(setting: Mapping[str, Any], cell: Published) -> bool:
    """Whether a setting is about this cell."""
    same = all(setting.get(name, getattr(cell, name)) == getattr(cell, name) for name in CONDITIONS)
    return same and setting.get("options", cell.options) == cell.options


def told(value: Any) -> str:
    """Our value in words."""
    return "not given" if value is None else shown(value)


def topics(found: Iterable[Differs], whole: Sequence[str] = ("encoding",)) -> str:
    """The differences in short: the topics, and what differs only where the topic is one of `whole`.

    Example:
      >>> topics([Differs("encoding", "fraction 1 (0.25)"), Differs("size", "layers 2 (12)"), Differs("size", "heads 4 (12)")])
      'encoding: fraction 1 (0.25); size'
    """
    found = list(found)
    names = dict.fromkeys(one.topic for one in found)
    return "; ".join(f"{name}: {in_words(found, name)}" if name in whole else name for name in names)


def in_words(found: Iterable[Differs], topic: str | None = None) -> str:
    """The differences in full, all or those of one topic."""
    if topic is not None:
        return ", ".join(one.words for one in found if one.topic == topic)
    found = list(found)
    return "; ".join(f"{name}: {in_words(found, name)}" for name in dict.fromkeys(one.topic for one in found))
