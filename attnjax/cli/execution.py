"""The commands that train: run, sweep."""

import argparse
import importlib
import pathlib

from attnjax.cli.commands import provided
from attnjax.cli.planning import Plan, planned
from attnjax.cli.programs import keep_programs
from attnjax.cli.progress import Display
from attnjax.config import run_id
from attnjax.sweep import Rules, Store, Summary, groups, load, prepare, retry, run_here, run_workers
from attnjax.sweep.execute import states
from attnjax.sweep.stop import Stop
from attnjax.sweep.worker import import_train

SIGNALS = (("SIGINT", 130), ("KeyboardInterrupt", 130), ("SIGTERM", 143))


def run(arguments: argparse.Namespace) -> int:
    """`attnjax run CONFIG`: one run, in a folder that may hold others."""
    plan = planned(arguments.config, arguments.overrides, alone=True)
    arguments.workers, arguments.threads, arguments.fail_fast, arguments.strict = None, None, True, True
    return _execute(arguments, plan, extend=True)


def sweep(arguments: argparse.Namespace) -> int:
    """`attnjax sweep CONFIG`: all runs of a sweep."""
    plan = planned(arguments.config, arguments.overrides, arguments.over, arguments.seeds)
    if arguments.threads is not None and arguments.workers is None:
        raise ValueError("--threads needs --workers: the threads of this process are those it was started with")
    if not arguments.dry_run:
        code = _execute(arguments, plan, extend=arguments.extend)
        if arguments.report and code in (0, 1):
            _report(_root(arguments, plan))
        return code
    for one in plan.runs:
        print(" ".join(f"{key}={value}" for key, value in one.changes.items()) or "(the config as it is)")
    print(f"{len(plan.runs)} runs")
    return 0


def _execute(arguments: argparse.Namespace, plan: Plan, *, extend: bool) -> int:
    keep_programs()
    root = _root(arguments, plan)
    file, text = str(plan.file.path), plan.file.text
    if not _is_known(root, plan):
        _check(arguments.trainer, plan)
    store = prepare(root, plan.config.name, plan.runs, config_file=file, protocol=text, extend=extend)
    again = retry(store) if arguments.retry_failed else []
    rules, stop = Rules(fail_fast=arguments.fail_fast, population=arguments.population), Stop()
    print(f"{len(store.runs)} runs in {root}" + (f", {len(again)} of them tried again" if again else ""), flush=True)
    with Display(store) as display:
        if arguments.workers is None:
            # The training function is looked up only where there is work: it needs JAX, and the answer may be "nothing".
            train = import_train(arguments.trainer) if _is_open(store) else _nothing
            summary = run_here(store, train, rules, progress=display, stop=stop)
        else:
            workers, threads = arguments.workers, arguments.threads
            summary = run_workers(
                store, arguments.trainer, workers, rules, threads=threads, progress=display, stop=stop
            )
    _tell(store, summary, stop)
    return _status(summary, stop, strict=arguments.strict or arguments.fail_fast)


def _report(root: pathlib.Path) -> None:
    """Figures, tables and the page, from the records that are there now."""
    made = provided("attnjax.report", "build")(root)
    print(f"report: {next(path for path in made if path.suffix == '.html')} and {len(made) - 1} more files beside it")


def _root(arguments: argparse.Namespace, plan: Plan) -> pathlib.Path:
    return arguments.out or pathlib.Path("runs") / plan.config.name


def _is_known(root: pathlib.Path, plan: Plan) -> bool:
    """Whether these runs were prepared, and so checked, before."""
    try:
        return {run_id(one.config) for one in plan.runs} <= {entry.run for entry in load(root).runs}
    except ValueError:
        return False


def _check(trainer: str, plan: Plan) -> None:
    """Ask the trainer's module, if it has a function `check`, whether it takes the runs. Raises ValueError if not.

    Runs that train together are alike in all that can be wrong: one of them is asked about.
    """
    import_train(trainer)
    check = getattr(importlib.import_module(trainer.partition(":")[0]), "check", None)
    if check is not None:
        for alike in groups(one.config for one in plan.runs):
            check(alike[0])


def _is_open(store: Store) -> bool:
    return any(state not in ("done", "failed", "damaged") for state in states(store).values())


def _nothing(configs: object, directories: object, control: object) -> None:
    raise AssertionError("there was nothing to train")


def _tell(store: Store, summary: Summary, stop: Stop) -> None:
    """The closing lines: what failed and where, and the counts."""
    reasons: dict[str, list[str]] = {}
    for run in summary.of("failed"):
        reasons.setdefault(store.status(run).reason, []).append(run)
    for reason, alike in reasons.items():
        others = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        print(f"failed   {alike[0]}{others}: {reason} ({store.directory(alike[0])})")
    for run in summary.of("damaged"):
        print(
            f"damaged  {run}: its config, status or records cannot be trusted (see attnjax list runs {store.root}); "
            "remove its folder to run it again"
        )
    if summary.of("failed"):
        print("failed runs are not tried again, unless with --retry-failed")
    if stop.reason:
        print(f"stopped: {stop.reason}; the same command goes on")
    print(summary)


def _status(summary: Summary, stop: Stop, *, strict: bool) -> int:
    if stop.reason in dict(SIGNALS):
        return dict(SIGNALS)[stop.reason]
    failed, done = summary.of("failed"), summary.of("done")
    return int(bool(summary.of("damaged") or (failed and (strict or not done))))
