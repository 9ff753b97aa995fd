"""Several processes that train one model: each runs the same command with `--coordinator`, and all see the folder of runs.

Process 0 does what the command does alone, and tells the others which runs to train with it, and at the end with which status
to end. The others print errors alone. After an error or the loss of a process all of them end, and the same commands go on from
the last checkpoint.
"""

import argparse
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from attnjax.config import RunConfig, parse, to_dict
from attnjax.config.outside import import_modules
from attnjax.sweep import RunContext, Stop, Train
from attnjax.sweep.outcome import FAILED, INTERRUPTED, USAGE, on_signals
from attnjax.sweep.worker import import_train

Lead = Callable[[Callable[[Train], Train]], int]


class Hosts(NamedTuple):
    """Where process 0 listens, how many processes there are, and which one this is; None: as the cluster says."""

    coordinator: str
    processes: int | None
    number: int | None


def hosts(arguments: argparse.Namespace) -> Hosts | None:
    """The processes that the options name; None for one process. Raises ValueError for options that do not fit together."""
    coordinator, processes, number = arguments.coordinator, arguments.processes, arguments.process_id
    if coordinator is None:
        if (processes, number) != (None, None):
            raise ValueError("--processes and --process-id need --coordinator HOST:PORT: where process 0 listens")
        return None
    if (processes is None) != (number is None):
        raise ValueError("--processes and --process-id go together; tasks of SLURM may leave out both")
    if processes is not None and not (processes >= 2 and 0 <= number < processes):
        raise ValueError(f"--processes must be 2 or more and --process-id below it, got {processes} and {number}")
    return Hosts(coordinator, processes, number)


def together(where: Hosts, arguments: argparse.Namespace, imports: Sequence[str], lead: Lead) -> int:
    """The exit status of `lead`, which process 0 calls with a function that makes a training function joint."""
    # Not before: it imports JAX.
    from attnjax.train import processes

    processes.join(*where, heartbeat=arguments.patience)
    try:
        status = _lead(lead) if processes.leads() else _follow(arguments, imports)
    except KeyboardInterrupt:
        _end(INTERRUPTED)
    processes.leave()
    return status


def _lead(lead: Lead) -> int:
    from attnjax.train import processes

    parted = False

    def joint(train: Train) -> Train:
        def call(configs: list[RunConfig], directories: list[pathlib.Path], context: RunContext) -> None:
            nonlocal parted
            told = {"configs": list(map(to_dict, configs)), "directories": [str(one.resolve()) for one in directories]}
            try:
                processes.broadcast(told)
                train(configs, directories, context)
            except Exception as error:
                if processes.is_lost(error):  # the runs have not failed: they go on from their checkpoints
                    _end(FAILED, error)
                parted = True
                context.stop("an error, after which the processes part")
                raise

        return call

    try:
        status = lead(joint)
    except (ValueError, OSError) as error:
        if parted:
            _end(FAILED, error)
        processes.broadcast({"end": USAGE})
        processes.leave()
        raise
    except Exception as error:
        _end(FAILED, error)
    if parted:
        _end(FAILED)
    processes.broadcast({"end": status})
    return status


def _follow(arguments: argparse.Namespace, imports: Sequence[str]) -> int:
    """Train what process 0 says, until it says with which status to end."""
    from attnjax.train import processes

    stop = Stop()
    try:
        with on_signals(stop):
            import_modules(imports)
            train: Any = import_train(arguments.trainer)
            while "end" not in (told := processes.broadcast()):
                directories = list(map(pathlib.Path, told["directories"]))
                train(
                    list(map(parse, told["configs"])),
                    directories,
                    processes.Follower(arguments.mesh, lambda: stop.reason),
                )
    except Exception as error:
        _end(FAILED, error)
    return told["end"]


def _end(status: int, error: Exception | None = None) -> NoReturn:
    """End this process at once: at a regular end it would wait for the others, which end because it is gone."""
    if error is not None:
        traceback.print_exception(error)
        print("attnjax: start all processes again: the runs go on from their last checkpoint", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
