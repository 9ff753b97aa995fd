"""Records of the suite: a file of its own beside those of losses and needles, and the numbers that are read from it."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from attnjax.evaluation.suite import CANDIDATES
from attnjax.records import jsonl
from attnjax.report.intervals import Estimate, of_mean
from experiments import recorded
from experiments.context_extension import measuring, suite
from experiments.context_extension.measuring import Protocol
from experiments.context_extension.methods import NAMES, Extension
from experiments.context_extension.results import within
from experiments.context_extension.subjects import Subject
from experiments.context_extension.texts import Corpus

RECORDS = "suite.jsonl"
SAMPLES = {task: 32 if task in suite.LINES else 8 for task in suite.TASKS}
"""Of each task and length; more of those that are cheap to answer in few bytes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Suite:
    """What the methods score.

    Attributes:
      about: of the records.
      scores: percent of each run, by method, task and length; None where no prompt can be made.
      sliding: the loss of the models as trained at the end of windows, by run and length.
      seconds: of all measuring.
      runs: what the records say of each run.
    """

    about: Mapping[str, Any]
    scores: Mapping[str, Mapping[str, Mapping[int, Float[np.ndarray, " R"] | None]]]
    sliding: Mapping[str, Mapping[int, float]]
    seconds: float
    runs: list[Mapping[str, Any]]

    @property
    def lengths(self) -> tuple[int, ...]:
        """L, 2 L ... s L."""
        return tuple(self.about["lengths"])

    @property
    def chance(self) -> float:
        """Percent that guessing scores."""
        return 100 / self.about["candidates"]

    @property
    def asked(self) -> list[tuple[str, int]]:
        """Each task with each length at which it can be asked."""
        first = next(iter(self.scores.values()))
        return [(task, n) for task in self.about["samples"] for n in self.lengths if first[task][n] is not None]

    def estimate(self, method: str, task: str, length: int) -> Estimate:
        """The mean over runs and its interval, within 0 and 100."""
        return within(of_mean(self.units(method, task, length)), 100.0)

    def units(self, method: str, task: str, length: int) -> Float[np.ndarray, " R"]:
        """Percent of each run."""
        found = self.scores[method][task][length]
        assert found is not None
        return found


def record(
    subjects: Sequence[Subject],
    corpus: Corpus,
    protocol: Protocol,
    factors: Mapping[str, Sequence[float]],
    path: pathlib.Path,
    methods: Sequence[str] = NAMES,
    samples: Mapping[str, int] = SAMPLES,
    say: Callable[[str], None] = print,
) -> None:
    """Append what the file does not hold yet; `factors` of LongRoPE are those of each run.

    Raises ValueError where the file holds records of another protocol.
    """
    about = {"trained": protocol.trained, "factor": protocol.factor, "lengths": list(protocol.lengths)}
    about |= {"samples": dict(samples), "candidates": CANDIDATES, "methods": list(methods), **corpus.about}
    found = recorded.begin(path, {"kind": "protocol", **about})
    there = {(one["run"], one.get("method")) for one in found if "run" in one}
    for subject in subjects:
        extension = Extension(protocol.trained, float(protocol.factor), tuple(factors[subject.name]))
        if (subject.name, None) not in there:
            plain = measuring.measure(subject, subject.params, "none", extension, corpus, protocol)["sliding"]
            means = {length: float(f"{np.mean(values):.5g}") for length, values in plain.items()}
            jsonl.append(
                path,
                {"kind": "run", "run": subject.name, "seed": subject.seed, "made": recorded.place(), "sliding": means},
            )
        for method in (name for name in methods if (subject.name, name) not in there):
            started = time.monotonic()
            ranking: dict[str, Any] = {task: {} for task in samples}
            for length in protocol.lengths:
                numbers = subject.numbers(method, extension, length)
                for task, count in samples.items():
                    scored = suite.score(subject, numbers, corpus, task, length, protocol.longest, count)
                    ranking[task][str(length)] = scored
            seconds = round(time.monotonic() - started, 1)
            jsonl.append(
                path,
                {"kind": "suite", "run": subject.name, "method": method, "ranking": ranking, "seconds": seconds},
            )
            say(f"{subject.name} {method}, suite: {seconds} s")


def read(path: pathlib.Path) -> Suite | None:
    """The numbers of a file of records, of the runs with all methods; None where there is no such file.

    Raises ValueError for a damaged line, with what is no such record, or without a finished run.
    """
    return recorded.read(path, "the suite", _suite) if path.is_file() else None


def _suite(tables: list[dict[str, Any]]) -> Suite:
    about = recorded.about(tables)
    here = {(one["run"], one["method"]): one for one in tables if one.get("kind") == "suite"}
    found = {one["run"]: one for one in tables if one.get("kind") == "run"}
    runs = {name: one["sliding"] for name, one in found.items()}
    done = [name for name in runs if all((name, method) in here for method in about["methods"])]
    if not done:
        raise ValueError("there is no run with all its methods in these records; the command that began them goes on")

    def percent(method: str, task: str, length: int) -> Float[np.ndarray, " R"] | None:
        found = [here[name, method]["ranking"][task][str(length)] for name in done]
        return None if None in found else np.array(found, np.float64)

    scores = {
        method: {task: {n: percent(method, task, n) for n in about["lengths"]} for task in about["samples"]}
        for method in about["methods"]
    }
    sliding = {name: {int(length): float(loss) for length, loss in runs[name].items()} for name in done}
    return Suite(about, scores, sliding, sum(one["seconds"] for one in here.values()), [found[name] for name in done])
