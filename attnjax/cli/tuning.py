"""The part of `attnjax run` that tunes: trains the candidates in SWEEP/tuning, chooses, and says what the runs then are."""

import argparse
import dataclasses
import pathlib
from collections.abc import Callable

from attnjax.cli.planning import Plan
from attnjax.cli.progress import say
from attnjax.config.files import SWEEP_FILE
from attnjax.config.overrides import outside
from attnjax.records.status import FINAL
from attnjax.records.values import jsonable
from attnjax.sweep import Summary, prepare
from attnjax.sweep.choices import FILE, FOLDER, Choices, choose, keep, read
from attnjax.sweep.outcome import INTERRUPTED, states
from attnjax.sweep.plan import words
from attnjax.sweep.tuning import Tuning

Stage = Callable[[Plan, pathlib.Path], tuple[int, Summary | None]]
"""Trains the runs of a plan in a folder, or does with them whatever else the options say; see `training._stage`."""


def tuned(arguments: argparse.Namespace, plan: Plan, root: pathlib.Path, stage: Stage) -> tuple[int, Plan | None]:
    """Return the plan under the candidates that its families chose; the plan itself where nothing is to be tuned.

    Tuning runs that have ended are not trained again. Where one has not, the exit status and None: the same command goes on.

    Raises ValueError where the folder has runs that were not tuned like that, or all tuning runs of a family failed.
    """
    tuning = plan.tuning
    if tuning is None:
        return 0, plan
    candidates, there = tuple(jsonable(dict(one)) for one in tuning.candidates), read(root)
    known = there and (there.candidates, there.seeds)
    if (there or (root / SWEEP_FILE).exists()) and known != (candidates, tuning.seeds):
        raise ValueError(
            f"the runs in {root} were tuned over other candidates or seeds, or not at all (see {FILE} there): choose another "
            "folder (--out)"
        )
    sizes = f"{len(tuning.families)} families x {len(candidates)} candidates x {len(tuning.seeds)} seeds"
    say(f"tuning: {sizes}, on validation scores within the trained lengths")
    # A failed candidate has the worst score there is, and is no failure of the sweep.
    code, _ = stage(dataclasses.replace(plan, runs=tuple(tuning.runs), tuning=None), root / FOLDER)
    store = prepare(root / FOLDER, plan.config.name, tuning.runs, extend=True, dry=True)
    left = [run for run, state in states(store).items() if state not in FINAL]
    if left and arguments.dry_run:
        _foresee(tuning)
    elif left:
        say(f"tuning: {len(left)} of {len(store.runs)} runs have not ended; then the same command chooses and goes on")
    if left or code == INTERRUPTED:
        return code, None
    chosen = choose(tuning, store)
    bests = [one.best for one in chosen]
    runs = tuple(tuning.tuned(bests))
    prepare(root, plan.config.name, runs, extend=arguments.extend, dry=True)  # refused before anything is written
    cells = zip(chosen, tuning.cells(bests), strict=True)
    families = tuple(dataclasses.replace(one, cells=own) for one, own in cells)
    found = Choices(plan.file.text, candidates, tuning.seeds, families)
    if not arguments.dry_run:
        keep(root, found)
    _tell(found)
    return 0, dataclasses.replace(plan, runs=runs, tuning=None)


def keep_untuned(root: pathlib.Path, plan: Plan) -> None:
    """Say in the folder of a sweep that its config has candidates, among which nobody chose; reports tell it."""
    if plan.untuned and plan.file.tune is not None and read(root) is None:
        keep(root, Choices(plan.file.text, tuple(jsonable(dict(one)) for one in plan.file.tune()), ()))


def _foresee(tuning: Tuning) -> None:
    """Say which runs are trained after tuning. Runs that differ in a tuned field alone are one run, whatever is chosen."""
    keys, later = tuning.candidates[0], tuning.tuned([0] * len(tuning.families))
    say(f"then, with what each family chooses of {', '.join(keys)}:")
    for one in later:
        say(words(outside(one.changes, keys)))
    say(f"{len(later)} runs after tuning")


def _tell(choices: Choices) -> None:
    for one in choices.families:
        values, score = choices.candidates[one.best], f"{one.metric} {one.means[one.best]:.4g}"
        say(f"chosen   {words(one.changes)}: {words(values)} ({score}, candidate {one.best + 1} of {len(one.means)})")
        for note in one.notes(choices.candidates):
            say(f"         {note}")
