"""Several hosts that train one model: a process on each runs the same command, and process 0 has the folder of the runs.

Process 0 does what the command does alone, and tells the others which configs to train with it, and at the end with which exit
status to end. They need the package, the config and the data, and print errors alone. Of the folder of runs they open those of
members that they save, where they see the same folder (`attnjax.train.saves`). Where one is lost, each of the others ends at
once with 75, or as JAX ends it: the lease of process 0 then is that of a process that died, and the same commands go on from
the last checkpoint.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attnjax.cli.argument_types import count, index
from attnjax.config import RunConfig, parse, run_id, to_dict
from attnjax.config.outside import import_modules
from attnjax.sweep import RunContext, Stop, Train, manifest
from attnjax.sweep.outcome import INTERRUPTED, on_signals
from attnjax.sweep.worker import import_train

FAILED, WRONG = 1, 2
SLURM = ("SLURM_NTASKS", "SLURM_PROCID")
"""What SLURM tells each task of a step: how many there are, and which it is."""


class Hosts(NamedTuple):
    """Where process 0 listens, how many processes there are, and which one this is."""

    coordinator: str
    processes: int
    number: int


def hosts(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Hosts | None:
    """The processes that the options name; None for one process. Raises ValueError for options that do not fit together.

    Under SLURM the numbers of processes and of this process are those of the task, where the coordinator alone is given.
    """
    given = (arguments.processes, arguments.process_id)
    if arguments.coordinator is None:
        if given != (None, None):
            raise ValueError("--processes and --process-id need --coordinator HOST:PORT: where process 0 listens")
        return None
    if given == (None, None) and all(name in environ for name in SLURM):
        given = tuple(_of_slurm(environ, name, kind) for name, kind in zip(SLURM, (count, index), strict=True))
    processes, number = given
    if processes is None or number is None:
        raise ValueError("--coordinator needs --processes and --process-id, which only tasks of SLURM may leave out")
    if processes < 2:
        raise ValueError("--processes must be 2 or more; one process trains without --coordinator")
    if number >= processes:
        raise ValueError(f"--process-id must be 0 .. {processes - 1} with --processes {processes}, got {number}")
    if arguments.mesh.devices % processes:
        told = str(arguments.mesh) or "one device"
        raise ValueError(f"--mesh must name a multiple of {processes} devices, as many of each process; got {told}")
    return Hosts(arguments.coordinator, processes, number)


def _of_slurm(environ: Mapping[str, str], name: str, kind: Callable[[str], int]) -> int:
    try:
        return kind(environ[name])
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{name} {error}") from None


class Together:
    """This process among those that train together.

    Args:
      where: the processes.
      arguments: the options of the command.
      root: the folder of the runs, which the others may not see.
      config: the run that all must train; None for `work`, whose process 0 reads them.
      imports: classes of other projects that runs name.

    Raises ValueError where processes do not fit together.
    """

    def __init__(
        self,
        where: Hosts,
        arguments: argparse.Namespace,
        root: pathlib.Path,
        config: RunConfig | None,
        imports: Sequence[str],
    ):
        # Not before: it imports JAX.
        from attnjax.train import processes

        self._processes, self._mesh, self._trainer = processes, arguments.mesh, arguments.trainer
        self._root, self._imports, self._parted = root, imports, False
        processes.join(where.coordinator, where.processes, where.number, heartbeat=arguments.patience)
        self._leads = processes.leads()
        same = {"config": run_id(config)} if config is not None else {}
        same |= {"mesh": str(self._mesh), "trainer": self._trainer, "code (sha256)": manifest.code_hash()}
        same |= {f"version of {name}": importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
        processes.alike(same)

    def run(self, lead: Callable[[Callable[[Train], Train]], int]) -> int:
        """The exit status of all: that of `lead` in process 0, which gets a function that makes a training function joint."""
        return self._lead(lead) if self._leads else self._follow()

    def _lead(self, lead: Callable[[Callable[[Train], Train]], int]) -> int:
        code = FAILED
        try:
            code = lead(self._joint)
        except (ValueError, OSError):
            code = WRONG
            raise
        except KeyboardInterrupt:
            code = INTERRUPTED
            raise
        finally:
            self._say_end(code)
        return code

    def _say_end(self, code: int) -> None:
        if self._parted:
            self._processes.end(code, "the other processes are not waited for")
        try:
            self._say({"end": code})
        except Exception as error:
            self._processes.end(code, f"another process was lost at the end: {error}")
        self._leave()

    def _joint(self, train: Train) -> Train:
        """The training function that has the other processes train with this one."""

        def joint(configs: list[RunConfig], directories: list[pathlib.Path], context: RunContext) -> None:
            try:
                self._say({"configs": [to_dict(one) for one in configs], "attempts": [one.name for one in directories]})
                train(configs, directories, context)
            except self._processes.ProcessError as error:
                raise (error.__cause__ or error) from None
            except BaseException as error:
                self._part(error)
                if isinstance(error, Exception):
                    context.stop("the processes have parted")
                raise

        return joint

    def _follow(self) -> int:
        stop = Stop()
        with on_signals(stop):
            try:
                code = self._train_until_told(stop)
            except BaseException as error:
                self._part(error)
                if isinstance(error, KeyboardInterrupt):
                    self._processes.end(INTERRUPTED, "interrupted")
                traceback.print_exception(error)
                self._processes.end(FAILED, "this process cannot go on")
        self._leave()
        return code

    def _train_until_told(self, stop: Stop) -> int:
        """Train what process 0 says, until it says with which exit status to end."""
        import_modules(self._imports)
        train = import_train(self._trainer)
        while "end" not in (message := self._hear()):
            self._train_along(train, list(map(parse, message["configs"])), message["attempts"], stop)
        return message["end"]

    def _train_along(self, train: Train, configs: list[RunConfig], attempts: list[str], stop: Stop) -> None:
        context: Any = self._processes.Follower(self._mesh, lambda: stop.reason)
        try:
            folders = [self._root / run_id(one) / name for one, name in zip(configs, attempts, strict=True)]
            train(configs, folders, context)
        except self._processes.ProcessError as error:
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__)

    def _part(self, error: BaseException) -> None:
        """After an error that the others may not have. Ends the process where it is the loss of another."""
        self._parted = True
        if self._processes.lost(error):
            reason = " ".join(str(error).split())[:300]
            told = f"another process was lost; start all again, and they go on from the last checkpoint: {reason}"
            self._processes.end(self._processes.AGAIN, told)

    def _say(self, message: dict[str, Any]) -> None:
        self._processes.announced(json.dumps(message).encode())

    def _hear(self) -> dict[str, Any]:
        return json.loads(self._processes.announced())

    def _leave(self) -> None:
        import jax

        jax.distributed.shutdown()
