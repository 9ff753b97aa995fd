"""What a cluster wants to know of a worker, from a TOML file with a table for each executor. Nothing in it is guessed."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

PLAIN = re.compile(r"[ -~]*")
"""Printable ASCII, of one line."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a cluster wants to know of a worker, read from a TOML file; empty fields are left to the defaults of the cluster.

        [slurm]
        partition = "gpu"
        time = "04:00:00"
        gpus = 1
        cpus = 8
        setup = ["module load cuda/12", "source ~/attnjax/.venv/bin/activate"]
        options = ["--constraint=h100"]

        [ray]
        address = "10.0.0.1:6379"
        gpus = 1
        cpus = 8
        resources = {highmem = 1}
        environment = {XLA_PYTHON_CLIENT_PREALLOCATE = "false"}
        processes = 2

    Args:
      partition, account, qos, time, memory: as `sbatch` takes them.
      gpus, cpus: of each worker; of each of its processes, where it has several.
      warning: seconds before the end of a job, or its preemption, at which it gets SIGUSR1.
      restarts: how often a worker is started again at most.
      setup: lines of the shell before the worker starts: modules, an environment. They are executed as they are.
      options: further options of `sbatch`.
      address: of a Ray cluster, or "auto" for the one of this machine; "": one on this machine, for this command alone.
      resources: further resources of a Ray cluster that each worker takes, and how much of each.
      environment: variables of the environment of each worker.
      processes: how many processes a worker of a Ray cluster has, which train each model together.
      placement: where they run, as Ray calls it: "STRICT_SPREAD", on a node each, or "STRICT_PACK", all on one node.
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
    address: str = ""
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    processes: int = 1
    placement: str = "STRICT_SPREAD"


SHARED = ("gpus", "cpus", "restarts")
RAY_ALONE = ("address", "resources", "environment", "processes", "placement")
PLACEMENTS = ("STRICT_SPREAD", "STRICT_PACK")


def _known(executor: str) -> list[str]:
    """The fields of the profile of an executor."""
    names = [field.name for field in dataclasses.fields(Profile)]
    return [name for name in names if name in SHARED or (name in RAY_ALONE) == (executor == "ray")]


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
    found = Profile(**{name: _field(path, executor, name, value) for name, value in section.items()})
    if "placement" in section and found.processes < 2:
        raise ValueError(
            f"{path}: placement needs processes of 2 or more: it says on which nodes those of a worker run"
        )
    return found


def _field(path: pathlib.Path, executor: str, name: str, value: Any) -> Any:
    if name not in _known(executor):
        raise ValueError(f"{path}: unknown field {name!r}; choose from {', '.join(_known(executor))}")
    default = getattr(Profile(), name)
    if name == "placement" and value not in PLACEMENTS:
        raise ValueError(f"{path}: placement must be {' or '.join(PLACEMENTS)}, got {value!r}")
    if isinstance(default, dict):
        return _table(path, name, value)
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(_is_line(one) for one in value):
            raise ValueError(f"{path}: {name} must be a list of lines of text, got {value!r}")
        if name == "options" and not all(one.startswith("--") for one in value):
            raise ValueError(f"{path}: options must begin with --, got {value!r}")
        return tuple(value)
    if isinstance(default, int):
        least = int(name == "processes")
        if type(value) is not int or value < least:
            raise ValueError(f"{path}: {name} must be a number of at least {least}, got {value!r}")
        return value
    if not _is_line(value) or " " in value:
        raise ValueError(f"{path}: {name} must be one word, got {value!r}")
    return value


def _table(path: pathlib.Path, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {name} must be a table, got {value!r}")
    if name == "environment" and not all(VARIABLE.fullmatch(key) and _is_line(one) for key, one in value.items()):
        raise ValueError(f"{path}: environment must give variables lines of text, got {value!r}")
    if name == "resources" and not all(_is_line(key) and _is_amount(one) for key, one in value.items()):
        raise ValueError(f"{path}: resources must give names numbers above 0, got {value!r}")
    return value


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and PLAIN.fullmatch(value) is not None
