"""The commands that train: run, sweep, work."""

import argparse
import contextlib
import dataclasses
import pathlib
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from attnjax.cli.commands import provided
from attnjax.cli.compilation_cache import keep_programs
from attnjax.cli.hosts import hosts, together
from attnjax.cli.planning import Plan, planned
from attnjax.cli.progress import Display, ended, printing
from attnjax.cli.tuning import keep_untuned, tuned
from attnjax.config import run_id
from attnjax.config.files import SWEEP_FILE
from attnjax.config.outside import class_paths, import_modules
from attnjax.sweep import (
    ExecutionConfig,
    Stop,
    Store,
    Summary,
    Train,
    live,
    load,
    manifest,
    prepare,
    ray,
    retry,
    run_here,
    run_workers,
    slurm,
)
from attnjax.sweep.check import check, check_apart
from attnjax.sweep.claim import Owner
from attnjax.sweep.outcome import DONE, FAILED, exit_status, is_open, others, states
from attnjax.sweep.plan import groups
from attnjax.sweep.worker import import_train, worker_command, worker_options

Joint = Callable[[Train], Train]
"""Makes a training function that other processes compute with this one."""
MOST = 10
"""Largest number of lines about runs that other processes work on."""


def run(arguments: argparse.Namespace) -> int:
    """`attnjax run CONFIG`: one run, in a folder that may hold others."""
    plan = planned(arguments.config, arguments.overrides, alone=True)
    arguments.workers, arguments.threads, arguments.fail_fast = None, None, True

    def lead(joint: Joint) -> int:
        code, summary = _execute(arguments, plan, extend=True, joint=joint)
        for name in summary.skipped:
            if summary.states[name] == "done":
                print(f"done     {name}  {ended(load(_root(arguments, plan)), name)}")
        return code

    return _jointly(arguments, plan.imports, lead)


def alone(train: Train) -> Train:
    """The training function as it is, for one process."""
    return train


def _jointly(arguments: argparse.Namespace, imports: Sequence[str], lead: Callable[[Joint], int]) -> int:
    """The exit status of `lead`, in this process or with those that --coordinator and the options beside it name."""
    where = hosts(arguments)
    if where is None:
        return lead(alone)
    keep_programs()
    return together(where, arguments, imports, lead)


def sweep(arguments: argparse.Namespace) -> int:
    """`attnjax sweep CONFIG`: all runs of a sweep."""
    plan = planned(arguments.config, arguments.overrides, arguments.over, arguments.seeds, tune=arguments.tune)
    if arguments.threads is not None and arguments.executor != "local":
        raise ValueError("--threads needs --executor local: elsewhere --cluster says how many CPUs a worker has")
    if arguments.threads is not None and arguments.workers is None:
        raise ValueError("--threads needs --workers: it sets the threads of worker processes")
    if arguments.cluster and arguments.executor == "local":
        raise ValueError("--cluster needs --executor slurm or ray: it says what a cluster wants to know of a worker")
    if arguments.report and arguments.executor == "slurm":
        raise ValueError("--report needs --executor local or ray: slurm trains after this command has ended")
    if arguments.report:  # before all training
        provided("attnjax.report.drawing", "check_library")()
    for note in plan.notes:
        print(f"note: {note}", flush=True)
    code, chosen = tuned(arguments, plan, _root(arguments, plan), _stage)
    if chosen is None:
        return code
    code, summary = _stage(arguments, chosen)
    if arguments.report and summary is not None and code in (DONE, FAILED):
        _report(_root(arguments, chosen), summary)
    return code


def _stage(arguments: argparse.Namespace, plan: Plan) -> tuple[int, Summary | None]:
    """Does with the runs of a plan what the options say; returns the exit status, and the states of runs that were trained."""
    if arguments.dry_run:
        return _foresee(arguments, plan), None
    if arguments.plan:
        store = _prepared(arguments, plan, extend=arguments.extend)
        print(f"{len(plan.runs)} runs planned in {store.root}: {_worker(arguments, plan, store)}")
        return 0, None
    if arguments.executor == "slurm":
        return _submit(arguments, plan), None
    return _execute(arguments, plan, extend=arguments.extend)


def _worker(arguments: argparse.Namespace, plan: Plan, store: Store) -> str:
    """The command of a worker, with the options that are not as where they are left out."""
    from attnjax.cli.parser import TRAINER

    options = worker_options(arguments.trainer, _execution(arguments, plan.imports))
    usual = worker_options(TRAINER, ExecutionConfig())
    return shlex.join(["attnjax", "work", str(store.root), *chain(*(one for one in options if one not in usual))])


def _submit(arguments: argparse.Namespace, plan: Plan) -> int:
    """Plans the sweep and hands its workers to SLURM."""
    store = _prepared(arguments, plan, extend=arguments.extend)
    _retried(arguments, store)
    if not is_open(store):
        print(f"{len(store.runs)} runs in {store.root}: there is nothing to train")
        return 0
    command = worker_command(store.root, arguments.trainer, _execution(arguments, plan.imports))
    count = arguments.workers or 1
    submitted = slurm.submit(store, command, count, dict(arguments.cluster))
    print(f"{len(store.runs)} runs in {store.root}; {count} workers submitted to slurm: {submitted}")
    print(
        f"how they stand: attnjax list runs {store.root}; to stop them: scancel {submitted}; the same command goes on"
    )
    return 0


def work(arguments: argparse.Namespace) -> int:
    """`attnjax work DIR`: the open runs of a sweep that was planned before, for a scheduler that starts and stops workers."""
    return _jointly(arguments, arguments.imports, lambda joint: _work(arguments, joint))


def _work(arguments: argparse.Namespace, joint: Joint) -> int:
    keep_programs()
    store, stop = load(arguments.folder), Stop()
    import_modules(arguments.imports)
    _check_worker(arguments, store)
    with printing(store):
        print(f"{len(store.runs)} runs in {store.root}", flush=True)
    with Display(store) as display:
        train = joint(_trainer(arguments.trainer, store))
        execution = _execution(arguments, arguments.imports)
        summary = run_here(store, train, execution, progress=display, stop=stop)
    with printing(store):
        _tell(store, summary, stop)
    return exit_status(summary, stop)


def _check_worker(arguments: argparse.Namespace, store: Store) -> None:
    """Raises ValueError where open runs would fail with these options: for a class that is not imported, or the mesh.

    Of each population one run is asked about, and whether any is open only where that matters.
    """
    asked = []
    for group in groups(store.runs, key=lambda entry: entry.group):
        with contextlib.suppress(ValueError, OSError):  # a damaged run is told of at the end
            config = store.config(group[0].run)
            lacking = [path for path in class_paths([config]) if path.partition(":")[0] not in sys.modules]
            if (lacking or arguments.mesh.devices > 1) and is_open(dataclasses.replace(store, runs=tuple(group))):
                asked.append((config, lacking))
    if lacking := list(dict.fromkeys(path for _, paths in asked for path in paths)):
        told = " ".join(f"--import {path}" for path in lacking)
        raise ValueError(f"runs in {store.root} name {lacking[0]}, whose module is not imported: give {told}")
    if asked:
        check(arguments.trainer, [config for config, _ in asked], arguments.mesh)


def _foresee(arguments: argparse.Namespace, plan: Plan) -> int:
    """Checks the sweep as `sweep` would, lists its runs and how many are done, and changes nothing."""
    store = _prepared(arguments, plan, extend=arguments.extend, dry=True)
    for one in plan.runs:
        print(" ".join(f"{key}={value}" for key, value in one.changes.items()) or "(the config as it is)")
    made = store.only([entry.run for entry in store.runs if store.directory(entry.run).exists()])
    found = states(made)
    counts = Counter(found.get(entry.run, "pending") for entry in store.runs)
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "done")
    print(f"{len(plan.runs)} runs: {counts['done']} done{told and f', {told}'}, in {store.root}")
    return 0


def _prepared(arguments: argparse.Namespace, plan: Plan, *, extend: bool, dry: bool = False) -> Store:
    """The folder of the runs, after they were checked. Raises ValueError where they or the folder cannot be used."""
    root, configs = _root(arguments, plan), [one.config for one in plan.runs]
    here = arguments.workers is None and getattr(arguments, "executor", "local") == "local"
    if here:
        import_modules(plan.imports)
    if arguments.workers is not None and arguments.mesh.devices > 1 and arguments.executor == "local":
        raise ValueError("--mesh spreads runs over the devices of one process: leave out --workers")
    if arguments.mesh.devices > 1 or not _is_known(root, plan):
        if here:
            check(arguments.trainer, configs, arguments.mesh)
        else:
            check_apart(arguments.trainer, configs, plan.imports, arguments.mesh)
    file, text = str(plan.file.path), plan.file.text
    store = prepare(
        root,
        plan.config.name,
        plan.runs,
        config_file=file,
        protocol=text,
        extend=extend,
        dry=dry,
        patience=arguments.patience,
    )
    if store.protocol != text:
        with printing(store):
            print(
                f"note: the text of {file} is not that in {store.root / SWEEP_FILE}, which counts and stays", flush=True
            )
    if plan.untuned and not dry:
        keep_untuned(root, plan)
    return store


def _execute(arguments: argparse.Namespace, plan: Plan, *, extend: bool, joint: Joint = alone) -> tuple[int, Summary]:
    """Trains the runs that are not done; returns the exit status and the states of all runs."""
    keep_programs()
    executor = getattr(arguments, "executor", "local")
    if executor == "ray":
        ray.library()  # whether it is installed is told before anything is made
    if arguments.log:
        live.library(arguments.log)
    root, store = _root(arguments, plan), _prepared(arguments, plan, extend=extend)
    retried = _retried(arguments, store)
    told = f", {len(retried)} of them failed before and are trained again" if retried else ""
    with printing(store):
        print(f"{len(store.runs)} runs in {root}{told}", flush=True)
        _tell_others(store, others(store, states(store)))
    stop = Stop()
    execution = _execution(arguments, plan.imports)
    with Display(store) as display:
        if executor == "ray":
            options, workers = dict(arguments.cluster), arguments.workers or 1
            summary = ray.run_tasks(store, arguments.trainer, workers, execution, options, progress=display, stop=stop)
        elif arguments.workers is None:
            train = joint(_trainer(arguments.trainer, store))
            summary = run_here(store, train, execution, progress=display, stop=stop)
        else:
            workers, threads = arguments.workers, arguments.threads
            summary = run_workers(
                store, arguments.trainer, workers, execution, threads=threads, progress=display, stop=stop
            )
    with printing(store):
        _tell(store, summary, stop)
    return exit_status(summary, stop), summary


def _retried(arguments: argparse.Namespace, store: Store) -> list[str]:
    """The failed runs that are open again, where that is asked for."""
    return retry(store, arguments.patience) if arguments.retry_failed else []


def _execution(arguments: argparse.Namespace, imports: Sequence[str]) -> ExecutionConfig:
    """How runs are executed, as the options say."""
    return ExecutionConfig(
        fail_fast=arguments.fail_fast,
        population=arguments.population,
        patience=arguments.patience,
        attempts=arguments.attempts,
        wait=arguments.wait,
        stall=arguments.stall,
        imports=tuple(imports),
        mesh=str(arguments.mesh),
        log=arguments.log,
    )


def _trainer(name: str, store: Store) -> Train:
    """The training function. It is imported only if a run is left to train, because it needs JAX."""
    if not is_open(store):
        return _nothing
    train = import_train(name)
    manifest.of_jax()  # a missing backend must end the command, and none of the runs
    return train


def _report(root: pathlib.Path, summary: Summary) -> None:
    """Figures, tables and the page, from the records that are there now."""
    if summary.others or summary.unwritten:
        why = "other processes still work on runs" if summary.others else "the ends of some runs could not be written"
        print(f"report: not written, because {why}; later: attnjax report {root}")
        return
    made = provided("attnjax.report", "build")(root)
    print(f"report: {next(path for path in made if path.suffix == '.html')} and {len(made) - 1} more files beside it")


def _root(arguments: argparse.Namespace, plan: Plan) -> pathlib.Path:
    return arguments.out or pathlib.Path("runs") / plan.config.name


def _is_known(root: pathlib.Path, plan: Plan) -> bool:
    """Whether the folder holds these runs, which were checked when they were put there."""
    try:
        return {run_id(one.config) for one in plan.runs} <= {entry.run for entry in load(root).runs}
    except ValueError:
        return False


def _nothing(configs: object, directories: object, context: object) -> None:
    raise AssertionError("there was nothing to train")


def _tell(store: Store, summary: Summary, stop: Stop) -> None:
    """Prints which runs failed and where, which other processes work on, and the counts."""
    _tell_alike(store, "failed", {run: store.status(run).reason for run in summary.of("failed")})
    for run in summary.of("damaged"):
        print(
            f"damaged  {run}: its config, status or records cannot be trusted (see attnjax list runs {store.root}); "
            "remove its folder to run it again"
        )
    if summary.of("failed"):
        print("failed runs are trained again only with --retry-failed")
    _tell_alike(store, "unwritten", summary.unwritten)
    if summary.unwritten:
        print("a run whose end could not be written has not ended: the same command continues it")
    _tell_others(store, summary.others)
    if stop.reason:
        print(f"stopped: {stop.reason}; the same command continues")
    elif summary.others:
        print("with --wait the same command waits for these runs, and takes over those whose process dies")
    elif left := summary.left():
        print(f"left: {len(left)} runs have not ended, and no process works on them; the same command continues them")
    print(summary)


def _tell_alike(store: Store, state: str, reasons: Mapping[str, str]) -> None:
    """One line for all runs that ended for the same reason."""
    alike: dict[str, list[str]] = {}
    for run, reason in reasons.items():
        alike.setdefault(reason, []).append(run)
    for reason, (first, *rest) in alike.items():
        more = f" and {len(rest)} more" if rest else ""
        print(f"{state:<8} {first}{more}: {reason} ({store.directory(first)})")


def _tell_others(store: Store, owners: Mapping[str, Owner]) -> None:
    """Which runs other processes work on, and how far those are."""
    for run, owner in list(owners.items())[:MOST]:
        print(f"held     {run}: {owner} works on it, at step {store.status(run).step}", flush=True)
    if len(owners) > MOST:
        print(f"held     {len(owners) - MOST} more runs by other processes", flush=True)
