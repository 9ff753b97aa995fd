"""Executors: who starts the workers of a sweep. What became of the runs is read from the folder, never from an executor.

    local     processes of this machine, see `workers.py`; the driver stays
    slurm     an array of jobs, see `slurm.py`; the command ends when they are submitted

A worker is `attnjax work DIR`, whoever starts it: it claims runs by their leases, so that executors, and several sweeps of one
folder from several of them, need not know of each other.
"""

import dataclasses
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attnjax.sweep.execute import ExecutionConfig

EXECUTORS = ("local", "slurm")
PLAIN = re.compile(r"[ -~]*")
"""Printable ASCII, of one line."""


class Executor(Protocol):
    """Starts workers elsewhere. `workers` names those that were submitted, in the words of the executor."""

    def submit(self) -> str:
        """Submit the workers; returns the name under which `poll` and `stop` know them.

        Raises ValueError, with the words of the executor, where it refuses.
        """
        ...

    def poll(self, workers: str) -> Mapping[str, int]:
        """How many workers wait, run or are in another state, in the executor's words. It may know nothing any more: {}."""
        ...

    def stop(self, workers: str) -> None:
        """Ask all of them to save and end, and start none again."""
        ...


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a cluster wants to know of a job, read from a TOML file; empty fields are left to the defaults of the cluster.

        [slurm]
        partition = "gpu"
        time = "04:00:00"
        gpus = 1
        cpus = 8
        setup = ["module load cuda/12", "source ~/attnjax/.venv/bin/activate"]
        options = ["--constraint=h100"]

    Args:
      partition, account, qos, time, memory: as `sbatch` takes them.
      gpus, cpus: of each worker.
      warning: seconds before the end of a job, or its preemption, at which it gets SIGUSR1.
      restarts: how often a worker is started again at most.
      setup: lines of the shell before the worker starts: modules, an environment. They are executed as they are.
      options: further options of `sbatch`.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    memory: str = ""
    gpus: int = 0
    cpus: int = 0
    warning: int = 120
    restarts: int = 100
    setup: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def profile(path: pathlib.Path | None, executor: str) -> Profile:
    """The profile of an executor in a file; the default one without a file.

    Raises ValueError, naming the file and the field, for what is no profile, and OSError where it cannot be read.
    """
    if path is None:
        return Profile()
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no TOML file: {error}") from None
    section = table.get(executor)
    if not isinstance(section, dict):
        raise ValueError(f"{path} has no table [{executor}]")
    return Profile(**{name: _field(path, name, value) for name, value in section.items()})


def _field(path: pathlib.Path, name: str, value: Any) -> Any:
    known = {field.name: field.default for field in dataclasses.fields(Profile)}
    if name not in known:
        raise ValueError(f"{path}: unknown field {name!r}; choose from {', '.join(known)}")
    default = known[name]
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(_is_line(one) for one in value):
            raise ValueError(f"{path}: {name} must be a list of lines of text, got {value!r}")
        if name == "options" and not all(one.startswith("--") for one in value):
            raise ValueError(f"{path}: options must begin with --, got {value!r}")
        return tuple(value)
    if isinstance(default, int):
        if type(value) is not int or value < 0:
            raise ValueError(f"{path}: {name} must be a number of at least 0, got {value!r}")
        return value
    if not _is_line(value) or " " in value:
        raise ValueError(f"{path}: {name} must be one word, got {value!r}")
    return value


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and PLAIN.fullmatch(value) is not None


def worker_command(root: pathlib.Path, trainer: str, execution: ExecutionConfig) -> Sequence[str]:
    """The command line of a worker: what `attnjax work` needs to execute runs as `execution` says."""
    command = [sys.executable, "-m", "attnjax", "work", str(root), "--trainer", trainer]
    command += ["--patience", f"{execution.patience:g}", "--attempts", str(execution.attempts)]
    command += ["--stall", f"{execution.stall:g}"]
    command += ["--population", str(execution.population)] if execution.population else []
    command += ["--mesh", execution.mesh] if execution.mesh else []
    command += ["--wait"] * execution.wait + ["--fail-fast"] * execution.fail_fast
    return [*command, *(word for one in execution.imports for word in ("--import", one))]
