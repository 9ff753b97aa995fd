"""From subjects to records: each method without training and after a short one, each in the file before the next begins."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from attnjax.evaluation.methods import check_factors
from attnjax.records import jsonl
from experiments import recorded
from experiments.context_extension import measuring, texts, tuning
from experiments.context_extension.measuring import Protocol
from experiments.context_extension.methods import FREQUENCIES, METHODS, Extension
from experiments.context_extension.results import STAGES
from experiments.context_extension.subjects import Subject
from experiments.context_extension.texts import Corpus

Record = dict[str, Any]
ZERO, TUNED = STAGES
SEARCHED = 4
"""Windows of the longest length on which factors are searched."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is done with each subject beside measuring.

    Attributes:
      methods: their names.
      steps, rate, tokens: of tuning, with this many tokens in a step; 0 steps is none.
      rounds: of the search for factors of LongRoPE, 0 is NTK-by-parts.
      factors: of LongRoPE, given; nothing is searched then.
      logit_scale: c of DroPE.
    """

    methods: tuple[str, ...] = tuple(name for name, _ in METHODS)
    steps: int = 40
    rate: float = 1e-3
    tokens: int = 4096
    rounds: int = 2
    factors: tuple[float, ...] | None = None
    logit_scale: float = 0.0

    def __post_init__(self) -> None:
        known = [name for name, _ in METHODS]
        if not self.methods or set(self.methods) - set(known):
            raise ValueError(f"methods must be some of {', '.join(known)}, got {', '.join(self.methods) or 'none'}")
        if self.steps < 0 or self.rounds < 0 or self.rate <= 0:
            raise ValueError(
                f"steps, rounds and rate must not be negative, got {self.steps}, {self.rounds} and {self.rate}"
            )

    def stages(self, method: str) -> tuple[str, ...]:
        """Without training, and after it where a method changes frequencies; the others are not trained with."""
        return (ZERO, TUNED) if self.steps and method in FREQUENCIES else (ZERO,)


def record(
    subjects: Sequence[Subject],
    corpus: Corpus,
    protocol: Protocol,
    plan: Plan,
    path: pathlib.Path,
    say: Callable[[str], None] = print,
) -> None:
    """Append what the file does not hold yet. All subjects are of one config.

    Raises ValueError where the file holds records of another protocol.
    """
    there = begin(path, described(corpus, protocol, plan))
    if "ngrams" not in there and (training := subjects[0].training()) is not None:
        jsonl.append(
            path, {"kind": "ngrams", "bytes": len(training), **measuring.measure_ngrams(training, corpus, protocol)}
        )
    tuner = tuning.Tuner(subjects[0], plan.steps, plan.rate) if plan.steps else None
    for subject in subjects:
        extension = extended(subject, corpus, protocol, plan, path, there)
        for method in plan.methods:
            for stage in plan.stages(method):
                if (subject.name, method, stage) in there:
                    continue
                started, params, losses = time.monotonic(), subject.params, []
                if stage == TUNED:
                    params, losses = tuned(tuner, subject, method, extension, corpus, protocol, plan)
                found = measuring.measure(subject, params, method, extension, corpus, protocol)
                common = {"kind": "method", "run": subject.name, "method": method, "stage": stage}
                seconds = round(time.monotonic() - started, 1)
                jsonl.append(path, {**common, "losses": losses, **found, "seconds": seconds})
                say(f"{subject.name} {method}, {stage}: {seconds} s")


def tuned(
    tuner: Any, subject: Subject, method: str, extension: Extension, corpus: Corpus, protocol: Protocol, plan: Plan
) -> Any:
    """Parameters after tuning, and the loss of each step. DroPE is tuned at the trained length, all others at the longest."""
    length = protocol.trained if method == "drope" else protocol.longest
    rows = max(1, plan.tokens // length)
    given = texts.opened(texts.batches(corpus.tuning(length), length, rows, plan.steps), corpus.begin)
    found = tuner(subject.params, subject.numbers(method, extension, length), given)
    return found.params, measuring.short(found.losses)


def extended(
    subject: Subject, corpus: Corpus, protocol: Protocol, plan: Plan, path: pathlib.Path, there: dict[Any, Record]
) -> Extension:
    """By how much, and the factors of LongRoPE: those in the records, those given, or those that are found now."""
    plain = Extension(protocol.trained, float(protocol.factor), logit_scale=plan.logit_scale)
    if subject.name not in there:
        rows = texts.opened(texts.windows(corpus.search, protocol.longest, SEARCHED), corpus.begin)
        started = time.monotonic()
        factors = (
            tuning.search(subject, plain, rows, plan.rounds)
            if plan.factors is None
            else check_factors(plan.factors, subject.base.pairs(subject.head)[0])
        )
        there[subject.name] = about(subject) | {
            "factors": [float(f"{one:.6g}") for one in factors],
            "made": recorded.place(),
            "seconds": round(time.monotonic() - started, 1),
        }
        jsonl.append(path, there[subject.name])
    return dataclasses.replace(plain, factors=tuple(there[subject.name]["factors"]))


def about(subject: Subject) -> Record:
    """What a reader needs to know of a model."""
    c = subject.config
    sizes = {"layers": c.layers, "heads": c.heads, "head": subject.head, "model": c.model, "theta": subject.base.theta}
    train = None if subject.run is None else subject.run.train
    trained = {} if train is None else {"steps": train.steps, "batch": train.batch, "training": subject.seconds}
    return {
        "kind": "run",
        "run": subject.name,
        "seed": subject.seed,
        **sizes,
        "parameters": subject.parameters,
        **trained,
    }


def described(corpus: Corpus, protocol: Protocol, plan: Plan) -> Record:
    """The first record: everything that the numbers depend on beside the models."""
    chosen = (
        "given" if plan.factors is not None else f"search of {plan.rounds} rounds" if plan.rounds else "NTK-by-parts"
    )
    numbers = {name: getattr(protocol, name) for name in ("trained", "factor", "documents", "needles")}
    planned = {name: getattr(plan, name) for name in ("steps", "rate", "tokens", "logit_scale")}
    lists = {"methods": list(plan.methods), "depths": list(protocol.depths)}
    derived = {"lengths": list(protocol.lengths), "edges": list(protocol.edges), "stride": protocol.stride}
    text = {**corpus.about, "unit": corpus.unit, "chance": corpus.chance}
    return {"kind": "protocol", **numbers, **planned, **lists, **derived, **text, "longrope": chosen}


def begin(path: pathlib.Path, protocol: Record) -> dict[Any, Record]:
    """What is in the file: runs by name, methods by (run, method, stage), "ngrams". A new file begins with the protocol."""
    found = recorded.begin(path, protocol)
    runs = {one["run"]: one for one in found if one.get("kind") == "run"}
    ngrams = {one["kind"]: one for one in found if one.get("kind") == "ngrams"}
    return {
        **runs,
        **ngrams,
        **{(one["run"], one["method"], one["stage"]): one for one in found if one.get("kind") == "method"},
    }
