"""Which commands are run on a mutated subject. Paths are as seen from the folder `work` of a case."""

import pathlib
import random
from typing import NamedTuple

from tests.fuzz.mistakes import MISTAKES
from tests.fuzz.subjects import OVER, Facts, command

MAIN, LOAD = "attnjax.cli:main", "tests.fuzz.programs:load"
THING, OUT = "../thing", "../out"
FIGURES = 0.05
"""Share of reports that draw their figures."""


class Command(NamedTuple):
    """A command by name; `reads`: it may change nothing in the subject, but for the entries in `writes`."""

    name: str
    arguments: list[str]
    program: str = MAIN
    reads: bool = True
    writes: tuple[str, ...] = ()
    figures: bool = False

    def __str__(self) -> str:
        start = "attnjax" if self.program == MAIN else self.program
        return f"{start} {' '.join(map(repr, self.arguments))}"


def choose(draw: random.Random, subject: str, thing: pathlib.Path, facts: Facts | None) -> Command:
    """A command for a subject as it is now."""
    if subject == "model":
        prompt = draw.choice((["0 1", "--ids"], ["a b"]))
        return Command("generate", ["generate", THING, *prompt, "--tokens", "2"])
    if subject in ("config", "python"):
        file = f"{THING}/config.json" if subject == "config" else f"{THING}/{next(thing.glob('*.py')).name}"
        return draw.choice((
            Command("show", ["show", file]),
            Command("show", ["show", file, "--no-model"]),
            Command("sweep", ["sweep", file, "--dry-run", "--out", OUT]),
        ))  # fmt: skip
    assert facts is not None
    makers = (_list, _list, _report, _report, _explore, _explore, _explore, _load, _resume, _resume, _run)
    return draw.choice(makers)(draw, subject, thing, facts)


def mistake(draw: random.Random, thing: pathlib.Path) -> str:
    """Write a Python config into the folder; returns what is wrong with it."""
    name = draw.choice(sorted(MISTAKES))
    (thing / f"{name.replace(' ', '_')}.py").write_text(MISTAKES[name])
    return f"a Python config that {name}"


def _list(draw: random.Random, subject: str, thing: pathlib.Path, facts: Facts) -> Command:
    return Command("list", ["list", "runs", THING])


def _report(draw: random.Random, subject: str, thing: pathlib.Path, facts: Facts) -> Command:
    inside, figures = draw.random() < 0.2, draw.random() < FIGURES
    rest = [] if inside else ["--out", OUT]
    return Command("report", ["report", THING, *rest], writes=("report",) if inside else (), figures=figures)


def _explore(draw: random.Random, subject: str, thing: pathlib.Path, facts: Facts) -> Command:
    runs = [_a_run(draw, thing, facts) for _ in range(draw.choice((1, 1, 1, 2)))]
    return Command("explore", ["explore", *runs, "--out", f"{OUT}/page.html"])


def _load(draw: random.Random, subject: str, thing: pathlib.Path, facts: Facts) -> Command:
    return Command("load", [_a_run(draw, thing, facts)], LOAD)


def _resume(draw: random.Random, subject: str, thing: pathlib.Path, facts: Facts) -> Command:
    return Command("sweep", command(subject, THING), reads=False)


def _run(draw: random.Random, subject: str, thing: pathlib.Path, facts: Facts) -> Command:
    """One run of the sweep; its overrides are those of the last one, which is not done where there are two."""
    last = [f"{key}={value.rpartition(',')[2]}" for key, _, value in (one.partition("=") for one in OVER[subject])]
    return Command("run", ["run", f"../{subject}.json", *last, "--out", THING, "--population", "1"], reads=False)


def _a_run(draw: random.Random, thing: pathlib.Path, facts: Facts) -> str:
    """The folder of a run that is there, forged ones included, or was."""
    there = sorted(path.name for path in thing.iterdir() if len(path.name) == 16)
    return f"{THING}/{draw.choice(there or sorted(facts.ends))}"
