"""The verbs that train: `run` (of which `sweep` is another name) and `work`."""

import argparse
import contextlib
import pathlib
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from attnjax.cli.compilation_cache import keep_programs
from attnjax.cli.hosts import Joint, jointly
from attnjax.cli.planning import Plan, planned
from attnjax.cli.progress import say, watched
from attnjax.cli.tuning import keep_untuned, tuned
from attnjax.config import run_id
from attnjax.config.files import SWEEP_FILE
from attnjax.config.outside import class_paths, import_modules
from attnjax.sweep import (
    ExecutionConfig,
    Stop,
    Store,
    Summary,
    find_folder,
    groups,
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
from attnjax.sweep.outcome import DONE, FAILED, exit_status, is_open, states, summarise
from attnjax.sweep.plan import words
from attnjax.sweep.worker import check, import_train, on_cpu, worker_words


def run(arguments: argparse.Namespace) -> int:
    """`attnjax run CONFIG`: all runs that a config declares."""
    _check_options(arguments)
    keep_programs()
    plan = planned(arguments.config, arguments.overrides, arguments.over, arguments.seeds, tune=arguments.tune)
    root = arguments.out or pathlib.Path("runs") / plan.config.name
    return jointly(arguments, plan.imports, lambda joint: _run(arguments, plan, root, joint))


def work(arguments: argparse.Namespace) -> int:
    """`attnjax work NAME`: the open runs of a planned sweep, for a scheduler that starts and stops workers."""
    keep_programs()
    store = load(find_folder(arguments.folder))
    import_modules(arguments.imports)

    def lead(joint: Joint) -> int:
        """Train the open runs, and return the exit status."""
        _check_worker(arguments, store)
        return _train(arguments, store, _execution(arguments, arguments.imports), joint)[0]

    return jointly(arguments, arguments.imports, lead)


def _check_options(arguments: argparse.Namespace) -> None:
    """Raises ValueError for options that do not fit together, and for libraries that would be missing after long work."""
    apart = arguments.workers is not None or arguments.executor != "local"
    if arguments.cluster and arguments.executor == "local":
        raise ValueError("--cluster needs --executor slurm or ray: it says what a cluster wants to know of a worker")
    if arguments.coordinator and apart:
        raise ValueError("--coordinator trains in this process and its likes: leave out --workers and --executor")
    if arguments.mesh.devices > 1 and arguments.workers is not None and arguments.executor == "local":
        raise ValueError("--mesh spreads runs over the devices of one process: leave out --workers")
    if arguments.report and arguments.executor == "slurm":
        raise ValueError("--report needs --executor local or ray: slurm trains after this command has ended")
    if arguments.report:
        from attnjax.report.drawing import check_library

        check_library()
    if arguments.executor == "ray":
        ray.library()
    if arguments.log:
        live.library(arguments.log)


def _run(arguments: argparse.Namespace, plan: Plan, root: pathlib.Path, joint: Joint) -> int:
    stage = lambda plan, root: _stage(arguments, plan, root, joint)
    code, chosen = tuned(arguments, plan, root, stage)
    if chosen is None:
        return code
    code, summary = stage(chosen, root)
    if arguments.report and summary is not None and code in (DONE, FAILED):
        _report(root, summary)
    return code


def _report(root: pathlib.Path, summary: Summary) -> None:
    """Writes the report, and prints its answer and where its page is."""
    if summary.others or summary.unwritten:
        why = "other processes still work on runs" if summary.others else "some runs could not be read or written"
        say(f"report: not written, because {why}; later: attnjax report {root}")
        return
    from attnjax import report

    made = report.build(root)
    say(f"\n{report.answer(root).rstrip()}\n")
    say(f"report: {next(path for path in made if path.suffix == '.html')}")


def _stage(arguments: argparse.Namespace, plan: Plan, root: pathlib.Path, joint: Joint) -> tuple[int, Summary | None]:
    """Does with the runs of a plan what the options say; returns the exit status, and the states of runs that were trained."""
    store = _prepared(arguments, plan, root)
    execution = _execution(arguments, plan.imports)
    if arguments.dry_run:
        _foresee(plan, store)
    elif arguments.plan:
        command = shlex.join(["attnjax", *worker_words(store.root, arguments.trainer, execution)])
        say(f"{len(plan.runs)} runs planned in {root}: {command}")
    elif arguments.executor == "slurm":
        _submit(arguments, store, execution)
    else:
        return _train(arguments, store, execution, joint)
    return DONE, None


def _prepared(arguments: argparse.Namespace, plan: Plan, root: pathlib.Path) -> Store:
    """The folder of the runs, after they were checked. Raises ValueError where they or the folder cannot be used."""
    configs, here = [one.config for one in plan.runs], arguments.workers is None and arguments.executor == "local"
    with contextlib.nullcontext() if here else on_cpu(arguments.mesh.devices):
        import_modules(plan.imports)
        if arguments.mesh.devices > 1 or not _is_known(root, plan):
            check(arguments.trainer, configs, arguments.mesh)
    file, text = str(plan.file.path), plan.file.text
    options = {"extend": arguments.extend, "dry": arguments.dry_run}
    store = prepare(root, plan.config.name, plan.runs, config_file=file, protocol=text, **options)
    if store.protocol != text:
        say(f"note: the text of {file} is not that in {root / SWEEP_FILE}, which counts and stays")
    if not arguments.dry_run:
        keep_untuned(root, plan)
    return store


def _is_known(root: pathlib.Path, plan: Plan) -> bool:
    """Whether the folder holds these runs, which were checked when they were put there."""
    try:
        return {run_id(one.config) for one in plan.runs} <= {entry.run for entry in load(root).runs}
    except ValueError:
        return False


def _foresee(plan: Plan, store: Store) -> None:
    """Lists the runs and says how many are done."""
    for one in plan.runs:
        say(words(one.changes))
    made = states(store.only([entry.run for entry in store.runs if store.directory(entry.run).exists()]))
    counts = Counter(made.get(entry.run, "pending") for entry in store.runs)
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "done")
    say(f"{len(plan.runs)} runs: {counts['done']} done{told and f', {told}'}, in {store.root}")


def _submit(arguments: argparse.Namespace, store: Store, execution: ExecutionConfig) -> None:
    """Hands the workers of a sweep to SLURM."""
    _retry(arguments, store)
    if not is_open(store):
        say(f"{len(store.runs)} runs in {store.root}: there is nothing to train")
        return
    worker = worker_words(store.root, arguments.trainer, execution)
    command, count = [sys.executable, "-m", "attnjax", *worker], arguments.workers or 1
    submitted = slurm.submit(store, command, count, dict(arguments.cluster))
    say(f"{len(store.runs)} runs in {store.root}; {count} workers submitted to slurm: {submitted}")
    say(f"how they stand: attnjax list runs {store.root}; to stop them: scancel {submitted}; the same command goes on")


def _train(
    arguments: argparse.Namespace, store: Store, execution: ExecutionConfig, joint: Joint
) -> tuple[int, Summary]:
    """Trains the runs that are not done; returns the exit status and the states of all runs."""
    stop, again = Stop(), _retry(arguments, store)
    say(f"{len(store.runs)} runs in {store.root}{again}")
    summary = summarise(store, {})
    if summary.open():  # otherwise JAX is not imported, which the trainer needs
        with watched(store):
            summary = _trained(arguments, store, execution, joint, stop)
    _tell(store, summary, stop)
    return exit_status(summary, stop), summary


def _trained(
    arguments: argparse.Namespace, store: Store, execution: ExecutionConfig, joint: Joint, stop: Stop
) -> Summary:
    """Trains the runs where the options say."""
    name, workers = arguments.trainer, arguments.workers
    if arguments.executor == "ray":
        return ray.run_tasks(store, name, workers or 1, execution, dict(arguments.cluster), stop=stop)
    if workers is not None:
        return run_workers(store, name, workers, execution, stop=stop)
    train = joint(import_train(name))
    manifest.of_jax()  # a missing backend must end the command, and none of the runs
    return run_here(store, train, execution, stop=stop)


def _retry(arguments: argparse.Namespace, store: Store) -> str:
    """Opens failed runs again, where that is asked for, and says how many."""
    again = retry(store, arguments.patience) if arguments.retry_failed else []
    return f", {len(again)} of them failed before and are trained again" if again else ""


def _execution(arguments: argparse.Namespace, imports: Sequence[str]) -> ExecutionConfig:
    """How runs are executed, as the options say."""
    names = ("population", "patience", "attempts", "wait", "log")
    options = {name: getattr(arguments, name) for name in names}
    return ExecutionConfig(imports=tuple(imports), mesh=str(arguments.mesh), **options)


def _check_worker(arguments: argparse.Namespace, store: Store) -> None:
    """Raises ValueError where open runs would fail with these options: for a class that is not imported, or the mesh."""
    configs = []
    for group in groups(store.runs, key=lambda entry: entry.group):
        with contextlib.suppress(ValueError, OSError):  # a damaged run is told of at the end
            if is_open(store.only([entry.run for entry in group])):
                configs.append(store.config(group[0].run))
    if lacking := [path for path in class_paths(configs) if path.partition(":")[0] not in sys.modules]:
        told = " ".join(f"--import {path}" for path in lacking)
        raise ValueError(f"runs in {store.root} name {lacking[0]}, whose module is not imported: give {told}")
    if arguments.mesh.devices > 1:
        check(arguments.trainer, configs, arguments.mesh)


def _tell(store: Store, summary: Summary, stop: Stop) -> None:
    """Prints which runs failed and where, which other processes work on, and the counts."""
    _tell_alike(store, "failed", {run: store.status(run).reason for run in summary.of("failed")})
    if summary.of("failed"):
        say("failed runs are trained again only with --retry-failed")
    told = f"attnjax list runs {store.root} says why; remove the folder to run it again"
    _tell_alike(store, "damaged", dict.fromkeys(summary.of("damaged"), told))
    _tell_alike(store, "unwritten", summary.unwritten)
    if summary.unwritten:
        say("runs that could not be read or written have not ended: the same command continues them")
    _tell_alike(store, "held", {run: f"{owner} works on it" for run, owner in summary.others.items()})
    if stop.reason:
        say(f"stopped: {stop.reason}; the same command continues")
    elif summary.others:
        say("with --wait the same command waits for these runs, and takes over those whose process dies")
    say(summary)


def _tell_alike(store: Store, state: str, reasons: Mapping[str, str]) -> None:
    """One line for all runs that ended for the same reason."""
    alike: dict[str, list[str]] = {}
    for run, reason in reasons.items():
        alike.setdefault(reason, []).append(run)
    for reason, (first, *rest) in alike.items():
        more = f" and {len(rest)} more" if rest else ""
        say(f"{state:<8} {first}{more}: {reason} ({store.directory(first)})")
