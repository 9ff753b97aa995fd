"""One case: a copy of a subject, mutated, a command on it, and the checks. All of it is a function of (seed, number)."""

import pathlib
import random
import shutil
from typing import NamedTuple

from tests.fuzz import canary, checks, commands, mutations, places
from tests.fuzz.subjects import Facts
from tests.fuzz.warm import Reply, Worker, obeys_permissions

SUBJECTS = ("sweep",) * 6 + ("frozen",) * 3 + ("text",) * 3 + ("model",) * 2 + ("config",) * 2 + ("python",)
UNTOUCHED = 0.03
"""Share of cases without a mutation, in which the command must succeed."""


class Outcome(NamedTuple):
    """What happened in a case: subject, (class, words) of each mutation, command, reply, findings."""

    subject: str
    mutations: list[tuple[str, str]]
    command: commands.Command
    reply: Reply
    findings: list[str]

    def __str__(self) -> str:
        done = "; ".join(f"{name}: {what}" for name, what in self.mutations) or "nothing"
        return f"  subject   {self.subject}\n  mutation  {done}\n  command   {self.command}\n" + "\n".join(
            f"  FINDING   {finding}" for finding in self.findings
        )


def run(worker: Worker, home: pathlib.Path, facts: dict[str, Facts], seed: int, number: int) -> Outcome:
    """Do case `number`. Its folder `home/case` is made anew."""
    draw, case = random.Random(f"{seed}/{number}"), home / "case"
    subject = draw.choice(SUBJECTS)
    _copy(home, case, subject, facts)
    done = _mutate(draw, case, subject)
    command = commands.choose(draw, subject, case / "thing", facts.get(subject))
    before = checks.look(case, facts.get(subject))
    reply = worker.call(command.program, command.arguments, case / "work", figures=command.figures)
    checksums = subject != "frozen"
    findings = checks.check(case, before, command, reply, facts.get(subject), checksums=checksums)
    if not done and reply.status != 0 and not findings:
        findings = [f"untouched: the command ended with {reply.status}: {reply.output[-300:]}"]
    return Outcome(subject, done, command, reply, findings)


def _copy(home: pathlib.Path, case: pathlib.Path, subject: str, facts: dict[str, Facts]) -> None:
    if case.exists():
        places.unlock(case)
        shutil.rmtree(case)
    for name in ("work", "out"):
        (case / name).mkdir(parents=True)
    for name in ("sweep.json", "text.json", "frozen.json", "text.txt"):
        shutil.copyfile(home / name, case / name)
    shutil.copytree(home / subject, case / "thing")
    canary.plant(case / "canary", home / "sweep" / min(facts["sweep"].ends) if "sweep" in facts else home / subject)


def _mutate(draw: random.Random, case: pathlib.Path, subject: str) -> list[tuple[str, str]]:
    thing = case / "thing"
    if subject == "python":
        return [("python", commands.mistake(draw, thing))]
    if draw.random() < UNTOUCHED:
        return []
    classes = {"model": mutations.MODELS, "config": mutations.CONFIGS, "frozen": mutations.FIRST_FORMAT}.get(
        subject, mutations.RUNS
    )
    if not obeys_permissions():
        classes = tuple(name for name in classes if name != "permissions")
    if subject == "text" and draw.random() < 0.1:
        (case / "text.txt").write_text(f"{canary.MARKER} " * 300)
        return [("text", "the text is another one than at training")]
    count = draw.choice((1, 1, 1, 2, 2, 3))
    return [mutations.mutate(draw, thing, case / "canary", classes) for _ in range(count)]
