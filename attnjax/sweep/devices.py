"""The GPU that each worker process sees: one for each worker; if there are more workers than GPUs, they share.

JAX takes all memory of all GPUs that a process sees, so workers that see the same ones fail. The GPUs are counted without
JAX, because a process that asks JAX takes them. If the user has set `CUDA_VISIBLE_DEVICES` (or
`JAX_CUDA_VISIBLE_DEVICES`), only those GPUs are assigned.
"""

import pathlib
import re
from collections.abc import Mapping

CUDA = "CUDA_VISIBLE_DEVICES"
JAX = "JAX_CUDA_VISIBLE_DEVICES"
FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
SHARED = 0.9
"""Of the memory of a GPU, what its workers take together."""
DEVICES = pathlib.Path("/dev")


def of_worker(number: int, workers: int, environ: Mapping[str, str], devices: pathlib.Path = DEVICES) -> dict[str, str]:
    """The variables that give worker `number` of `workers`, from 0, its GPU and its share of the memory.

    Args:
      number: of the worker; one that replaces another has the number of that one.
      workers: how many there are.
      environ: the environment of the driver. A fraction of memory that is set there is not set here.
      devices: where the system has its devices.

    Example:
      >>> of_worker(5, 6, {"CUDA_VISIBLE_DEVICES": "0,2,4,6"})
      {'CUDA_VISIBLE_DEVICES': '2', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.450'}
    """
    variable, gpus = visible(environ, devices)
    mine = {variable: gpus[number % len(gpus)]} if gpus else {}
    count = max(1, len(gpus))
    sharers = len(range(number % count, workers, count))
    # Without a GPU the fraction says nothing, unless JAX finds an accelerator that is not counted here.
    fraction = {FRACTION: f"{SHARED / sharers:.3f}"} if sharers > 1 and FRACTION not in environ else {}
    return {**mine, **fraction}


def visible(environ: Mapping[str, str], devices: pathlib.Path = DEVICES) -> tuple[str, list[str]]:
    """The variable that says which GPUs a process may see, and those that this one may: none where it is told to use none."""
    variable = JAX if environ.get(JAX, "all") != "all" else CUDA
    asked = environ.get("JAX_PLATFORMS", "")
    if asked and not {"cuda", "gpu"} & set(asked.split(",")):
        return variable, []
    if variable in environ:
        names = [name.strip() for name in environ[variable].split(",")]
        # CUDA reads the list up to the first entry that names no GPU, such as -1.
        return variable, names[: next((i for i, name in enumerate(names) if name in ("", "-1")), None)]
    found = [path for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return variable, [str(number) for number in range(len(found))]  # CUDA counts those that it may see, from 0
