"""The part of `attnjax run` that tunes: trains the candidates in SWEEP/tuning, chooses, and says what the runs then are."""

import argparse
import dataclasses
import pathlib
from collections.abc import Callable, Iterable

from attnjax.cli.planning import Plan
from attnjax.config import run_id
from attnjax.config.files import SWEEP_FILE
from attnjax.config.overrides import outside
from attnjax.records.status import FINAL
from attnjax.records.values import jsonable
from attnjax.sweep import Summary, load, prepare
from attnjax.sweep.choices import FOLDER, AllFailed, Choice, Choices, choose, keep, known, read, words
from attnjax.sweep.outcome import INTERRUPTED, states
from attnjax.sweep.tuning import Tuning

Stage = Callable[[Plan, pathlib.Path], tuple[int, Summary | None]]
"""Trains the runs of a plan in a folder, or does with them whatever else the options say; see `training._stage`."""


def tuned(arguments: argparse.Namespace, plan: Plan, root: pathlib.Path, stage: Stage) -> tuple[int, Plan | None]:
    """Return the plan under the candidates that its families chose; the plan itself where nothing is to be tuned.

    What was chosen before, in `root/tuning.json`, is not trained again. Where a tuning run has not ended, the exit status and
    None: the same command goes on.
    """
    if plan.tuning is None:
        return 0, plan
    code, there = 0, read(root)
    before = known(plan.tuning, there)
    if arguments.retry_failed:
        _tell_failed(before)
    new, chosen = plan.tuning.without([one.family for one in before]), ()
    if new.families:
        _accept(arguments, plan, plan.tuning, before, root)
        code, chosen = _tune(arguments, plan, new, root / FOLDER, stage)
    if chosen is None:
        return code, None
    choices = {one.family: one for one in (*chosen, *before)}
    ordered = [choices[one.id] for one in plan.tuning.families]
    bests = [one.best for one in ordered]
    cells = zip(ordered, plan.tuning.cells(bests), strict=True)
    families = tuple(dataclasses.replace(one, cells=own) for one, own in cells)
    candidates = tuple(jsonable(dict(one)) for one in plan.tuning.candidates)
    found = Choices(there.protocol if there else plan.file.text, candidates, plan.tuning.seeds, families)
    runs = tuple(plan.tuning.tuned(bests))
    prepare(root, plan.config.name, runs, extend=arguments.extend, dry=True)  # refused before anything is written
    if not arguments.dry_run:
        keep(root, found)
    _tell(found)
    return 0, dataclasses.replace(plan, runs=runs, tuning=None)


def keep_untuned(root: pathlib.Path, plan: Plan) -> None:
    """Say in the folder of a sweep that its config has candidates, among which nobody chose; reports tell it."""
    if plan.untuned and plan.file.tune is not None and read(root) is None:
        keep(root, Choices(plan.file.text, tuple(jsonable(dict(one)) for one in plan.file.tune()), ()))


def _accept(
    arguments: argparse.Namespace, plan: Plan, tuning: Tuning, before: Iterable[Choice], root: pathlib.Path
) -> None:
    """Raise ValueError, before any tuning, for a folder of other runs than those of the sweep under any candidates."""
    if not (root / SWEEP_FILE).exists():
        return
    there, chosen = {entry.run for entry in load(root).runs}, {one.family: one.best for one in before}
    for family in (family for family in tuning.families if family.id not in chosen):
        own = tuning.without([other.id for other in tuning.families if other is not family])
        found = [sum(run_id(run.config) in there for run in own.tuned([n])) for n in range(len(tuning.candidates))]
        chosen[family.id] = found.index(max(found))
    runs = tuning.tuned([chosen[family.id] for family in tuning.families])
    prepare(root, plan.config.name, runs, extend=arguments.extend, dry=True)


def _tune(
    arguments: argparse.Namespace, plan: Plan, tuning: Tuning, root: pathlib.Path, stage: Stage
) -> tuple[int, tuple[Choice, ...] | None]:
    """Trains the tuning runs in the folder `root`; returns what is chosen, None where they have not all ended."""
    sizes = f"{len(tuning.families)} families x {len(tuning.candidates)} candidates x {len(tuning.seeds)} seeds"
    print(f"tuning: {sizes}, on validation scores within the trained lengths", flush=True)
    # A failed candidate has the worst score there is, and is no failure of the sweep.
    code, _ = stage(dataclasses.replace(plan, runs=tuple(tuning.runs), tuning=None), root)
    if arguments.dry_run:
        _foresee(plan, tuple(tuning.candidates[0]))
        return code, None
    mine, store = {run_id(one.config) for one in tuning.runs}, load(root)
    left = [run for run, state in states(store).items() if run in mine and state not in FINAL]
    if left or code == INTERRUPTED:
        print(
            f"tuning: {len(left)} of {len(mine)} runs have not ended; when they have, the same command chooses and goes on"
        )
        return code, None
    try:
        return 0, choose(tuning, store)
    except AllFailed as error:
        print(f"tuning: {error}")
        return 1, None


def _foresee(plan: Plan, keys: tuple[str, ...]) -> None:
    """Say which runs are trained after tuning. Runs that differ in a tuned field alone are one run, whatever is chosen."""
    assert plan.tuning is not None
    later = plan.tuning.tuned([0] * len(plan.tuning.families))
    print(f"then, with what each family chooses of {', '.join(keys)}:")
    for one in later:
        print(words(outside(one.changes, keys)))
    print(f"{len(later)} runs after tuning")


def _tell_failed(known: Iterable[Choice]) -> None:
    """What was chosen is not chosen again, since runs may have been trained with it: say where a tuning run had failed."""
    for one in known:
        if failed := sum(trial.state == "failed" for trials in one.trials for trial in trials):
            print(
                f"tuning: {words(one.changes)} chose with {failed} failed tuning runs, and that stands; --out tunes anew"
            )


def _tell(choices: Choices) -> None:
    for one in choices.families:
        values, score = choices.candidates[one.best], f"{one.metric} {one.means[one.best]:.4g}"
        print(f"chosen   {words(one.changes)}: {words(values)} ({score}, candidate {one.best + 1} of {len(one.means)})")
        for note in one.notes(choices.candidates):
            print(f"         {note}")
