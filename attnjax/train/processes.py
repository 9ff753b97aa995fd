"""Several processes that train one model (`jax.distributed`), and all see the folder of runs.

Every process calls `train` with the same configs and folders. Process 0 alone writes records and checkpoints; the others have a
`Follower` (`loop.py`) for a context. All must find the same checkpoints, and all stop where one is asked to.

A state is gathered to the host of process 0 before it is saved. Orbax could write an array from all processes, but the members
of a population go on in runs of their own, in any number of processes, so that each needs a checkpoint of its own; and orbax
0.12.8 saves nothing that lies on one process alone.

An error ends its process. The others end when a collective fails, or by JAX's heartbeat.
"""

import json
import re
import socket
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

LOST = re.compile(r"\b(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED): |Gloo|NCCL")
"""How errors of a collective begin that another process did not go on with."""


def join(coordinator: str, processes: int | None = None, number: int | None = None, *, heartbeat: float = 60.0) -> None:
    """Join the other processes, before anything else is asked of JAX.

    Args:
      coordinator: HOST:PORT of process 0, where JAX's coordination service listens, without authentication.
      processes, number: how many there are, and which one this is; None: as the cluster says (SLURM, Open MPI, ...).
      heartbeat: seconds without a sign of life after which JAX counts a process as lost, and ends the others.

    Raises ValueError where the port is taken.
    """
    if number == 0:
        _check_free(int(coordinator.rpartition(":")[2]))
    jax.config.update("jax_enable_preemption_service", False)  # it would catch SIGTERM itself
    jax.distributed.initialize(coordinator, processes, number, heartbeat_timeout_seconds=max(1, round(heartbeat)))


def _check_free(port: int) -> None:
    """Raise ValueError where the port is taken, at which the library that listens would crash."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ValueError(f"--coordinator: port {port} of this host cannot be used: {error.strerror}") from None


def leave() -> None:
    """Wait for the other processes, and part from them."""
    jax.distributed.shutdown()


def is_lost(error: Exception) -> bool:
    """Return whether an error says that another process is gone.

    Example:
      >>> is_lost(ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"))
      True
      >>> is_lost(RuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
      False
    """
    return LOST.search(str(error)) is not None and "RESOURCE_EXHAUSTED" not in str(error)


def leads() -> bool:
    """Return whether this process is the one that writes: the first, or the only one."""
    return jax.process_index() == 0


def agree(*, stop: bool, count: int) -> tuple[bool, int]:
    """Return whether any process is asked to stop, and the count of process 0. Every process must call it.

    Example:
      >>> agree(stop=False, count=10)
      (False, 10)
    """
    if jax.process_count() == 1:
        return stop, count
    rows = multihost_utils.process_allgather(np.array([stop, count], np.int32))
    return bool(rows[:, 0].any()), int(rows[0, 1])


def check_same(numbers: list[int], otherwise: str) -> None:
    """Raise OSError, saying `otherwise`, where another process has other numbers. Every process must call it, and waits.

    Example:
      >>> check_same([60, 40], "unequal")
    """
    if jax.process_count() == 1:
        return
    rows = multihost_utils.process_allgather(np.array(numbers, np.int32))
    if (rows != rows[0]).any():
        raise OSError(otherwise)


def broadcast(message: Any = None) -> Any:
    """Return the message of process 0, which must be JSON. Every process must call it, the others without a message.

    Example:
      >>> broadcast({"steps": [60]})
      {'steps': [60]}
    """
    if jax.process_count() == 1:
        return message
    data = np.frombuffer(json.dumps(message).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    return json.loads(multihost_utils.broadcast_one_to_all(np.resize(data, size)).tobytes())
