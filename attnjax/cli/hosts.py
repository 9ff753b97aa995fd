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
from typing import Any, NoReturn

from attnjax.config import RunConfig, parse, to_dict
from attnjax.config.outside import import_modules
from attnjax.sweep import RunContext, Stop, Train
from attnjax.sweep.outcome import FAILED, INTERRUPTED, USAGE, on_signals
from attnjax.sweep.worker import import_train

Joint = Callable[[Train], Train]
"""Makes a training function that other processes compute with this one."""


def jointly(arguments: argparse.Namespace, imports: Sequence[str], lead: Callable[[Joint], int]) -> int:
    """Return the exit status of `lead`, which runs in this process, or in the first of those that the options name.

    Raises ValueError for options that do not fit together.
    """
    if not _is_one_of_several(arguments):
        return lead(lambda train: train)
    from attnjax.train import processes  # imports JAX

    processes.join(arguments.coordinator, arguments.processes, arguments.process_id, heartbeat=arguments.patience)
    parted: list[Exception] = []
    try:
        status = lead(lambda train: _joint(train, parted)) if processes.leads() else _follow(arguments, imports)
    except BaseException as error:
        if parted or not processes.leads() or not isinstance(error, ValueError | OSError):
            _end(error)
        processes.broadcast({"end": USAGE})
        processes.leave()
        raise
    if parted:
        _end(parted[0])
    if processes.leads():
        processes.broadcast({"end": status})
    processes.leave()
    return status


def _is_one_of_several(arguments: argparse.Namespace) -> bool:
    processes, number = arguments.processes, arguments.process_id
    if arguments.coordinator is None and (processes, number) != (None, None):
        raise ValueError("--processes and --process-id need --coordinator HOST:PORT: where process 0 listens")
    if (processes is None) != (number is None):
        raise ValueError("--processes and --process-id go together; tasks of SLURM may leave out both")
    if processes is not None and not (processes >= 2 and 0 <= number < processes):
        raise ValueError(f"--processes must be 2 or more and --process-id below it, got {processes} and {number}")
    return arguments.coordinator is not None


def _joint(train: Train, parted: list[Exception]) -> Train:
    """Return a training function of process 0 that the others call too; an error after which they part goes to `parted`."""
    from attnjax.train import processes

    def call(configs: list[RunConfig], directories: list[pathlib.Path], context: RunContext) -> None:
        """Train these runs with the other processes."""
        told = {"configs": list(map(to_dict, configs)), "directories": [str(one.resolve()) for one in directories]}
        try:
            processes.broadcast(told)
            train(configs, directories, context)
        except Exception as error:
            parted.append(error)
            context.stop("an error, after which the processes part")
            if not processes.is_lost(error):  # where one is lost the runs have not failed: they go on
                raise

    return call


def _follow(arguments: argparse.Namespace, imports: Sequence[str]) -> int:
    """Train what process 0 says, until it says with which status to end."""
    from attnjax.train import loop, processes

    stop = Stop()
    with on_signals(stop):
        import_modules(imports)
        train: Any = import_train(arguments.trainer)
        while "end" not in (told := processes.broadcast()):
            context = loop.Follower(arguments.mesh, lambda: stop.reason)
            train(list(map(parse, told["configs"])), list(map(pathlib.Path, told["directories"])), context)
    return told["end"]


def _end(error: BaseException) -> NoReturn:
    """End this process at once: at a regular end it would wait for the others, which end because it is gone."""
    interrupted = isinstance(error, KeyboardInterrupt)
    if not interrupted:
        traceback.print_exception(error)
        print("attnjax: start all processes again: the runs go on from their last checkpoint", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(INTERRUPTED if interrupted else FAILED)
