"""Training in several processes (`jax.distributed`): process 0 decides, reads and writes, the others compute with it.

Every process calls `train` with the same configs, process 0 with the context that records and the others with a `Follower`.
How many steps a call takes and where to resume depend on clocks and files, so process 0 tells the others. They record nothing,
and write nothing but members that they alone have, where they see the folders of the runs (`saves.py`). All processes stop
where one is asked to stop, or cannot go on for a reason of its own (`together`); an error of a program that all compute, as
where a process is lost, ends each for itself.
"""

import ipaddress
import os
import pathlib
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from attnjax.config.mesh import MeshShape
from attnjax.typing import PyTree

AGAIN = 75
"""The exit status of a process that others have left: "temporary failure" of sysexits.h, to be started again."""
JOIN = 300.0
"""Seconds that a process waits for the others."""
SAID = 320
"""Most bytes that `said` passes on."""
LOST = re.compile(
    r"\b(UNKNOWN|UNAVAILABLE|INTERNAL|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION|DATA_LOSS): |Gloo|NCCL"
)
"""How errors of a program begin that another process did not go on with. Lack of memory has another word."""
T = TypeVar("T")


class ProcessError(ValueError):
    """Every process raises it where one could not go on; its cause is the error of this process, if it was this one."""


class Follower:
    """A `RunContext` that records nothing, for every process but the first.

    Args:
      mesh: the devices to train on.
      asked: returns why this process is asked to stop, "" while it is not.

    Example:
        >>> Follower(MeshShape(data=2)).stopping()
        ''
    """

    def __init__(self, mesh: MeshShape, asked: Callable[[], str] = lambda: ""):
        self.mesh, self._asked = mesh, asked

    def stopping(self) -> str:
        reason = self._asked()
        return reason and f"{reason} of process {jax.process_index()}"

    def holds(self, directory: pathlib.Path) -> bool:
        return True

    def stop(self, reason: str) -> None: ...
    def step(self, directory: pathlib.Path, step: int, **numbers: float) -> None: ...
    def metrics(self, directory: pathlib.Path, record: Mapping[str, Any]) -> None: ...
    def results(self, directory: pathlib.Path, *found: Mapping[str, Any]) -> None: ...
    def examples(self, directory: pathlib.Path, step: int, scores: Any, by_position: Any) -> None: ...
    def truncate_after(self, directory: pathlib.Path, step: int) -> None: ...
    def log_manifest(self, directory: pathlib.Path, **fields: Any) -> None: ...
    def fail(self, directory: pathlib.Path, step: int, reason: str) -> None: ...


def join(coordinator: str, processes: int, number: int, *, heartbeat: float = 60.0, timeout: float = JOIN) -> None:
    """Join the other processes, before anything else is asked of JAX.

    Args:
      coordinator: HOST:PORT of process 0, where JAX's coordination service listens; without authentication, and on all
        addresses of that host unless HOST is a loopback address.
      processes: how many there are.
      number: which one this is, from 0.
      heartbeat: seconds without a sign of life after which a process counts as lost, and JAX ends the others.
      timeout: seconds after which this process ends with a sentence and the exit status 75, if the others are not there.

    Raises:
      ValueError: where the port is taken, or processes have different numbers of devices, or those of a TPU another order.
    """
    host, _, port = coordinator.rpartition(":")
    if number == 0:
        _check_free(int(port))
    # JAX would catch SIGTERM itself; and it ends the process without a sentence where the others do not come.
    jax.config.update("jax_enable_preemption_service", False)
    sentence = f"{processes} processes did not meet at {coordinator} within {timeout:g} s; this is process {number}"
    timer = threading.Timer(timeout, end, (AGAIN, sentence))
    timer.daemon = True
    timer.start()
    jax.distributed.initialize(
        coordinator_address=coordinator,
        num_processes=processes,
        process_id=number,
        cluster_detection_method="deactivate",
        coordinator_bind_address=coordinator if _is_loopback(host) else None,
        initialization_timeout=int(timeout) + 60,
        heartbeat_timeout_seconds=max(1, round(heartbeat)),
    )
    counts = [sum(one.process_index == i for one in jax.devices()) for i in range(processes)]
    timer.cancel()
    if len(set(counts)) > 1:
        raise ValueError(f"all processes must have the same number of devices; they have {', '.join(map(str, counts))}")
    _check_order(said(str(number)), jax.process_index())


def _check_order(given: Sequence[str], here: int) -> None:
    """Raise ValueError where the devices number the processes otherwise than the user did, as those of a TPU slice may."""
    if list(given) != [str(i) for i in range(len(given))]:
        raise ValueError(f"the devices number the processes in an order of their own: here --process-id must be {here}")


def _check_free(port: int) -> None:
    """Raise ValueError where the port is taken, at which the library that listens would crash."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ValueError(f"--coordinator: port {port} of this host cannot be used: {error.strerror}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def end(code: int, sentence: str) -> NoReturn:
    """End this process at once: at a regular end it would wait for the others."""
    print(f"attnjax: {sentence}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def lost(error: BaseException) -> bool:
    """Return whether an error of a program says that another process did not go on with it.

    Example:
        >>> lost(ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"))
        True
        >>> lost(RuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
        False
    """
    return LOST.search(str(error)) is not None and "RESOURCE_EXHAUSTED" not in str(error)


def leads() -> bool:
    """Return whether this process is the one that decides, reads and writes: the first, or the only one."""
    return jax.process_index() == 0


def agreed(number: int) -> int:
    """Return the number of process 0; every process must call it."""
    return number if jax.process_count() == 1 else int(shared(np.int32(number)))


def shared(tree: PyTree) -> PyTree:
    """Return the arrays of process 0 on the host of each; every process must call it with arrays of the same shapes."""
    if jax.process_count() == 1:
        return tree
    # As bytes, because JAX adds the zeros of the other processes to it, and -0.0 + 0.0 is 0.0.
    bytes_of = lambda x: np.ascontiguousarray(x).reshape(-1).view(np.uint8)
    found = multihost_utils.broadcast_one_to_all(jax.tree.map(bytes_of, tree))
    return jax.tree.map(lambda x, data: np.asarray(data).view(x.dtype).reshape(x.shape), tree, found)


def announced(message: bytes = b"") -> bytes:
    """Return the message of process 0, which has one byte or more; every process must call it."""
    size = agreed(len(message))
    return shared(np.frombuffer(message.ljust(size, b"\0")[:size], np.uint8)).tobytes()


def said(text: str) -> tuple[str, ...]:
    """Return the text of every process, cut at `SAID` bytes; every process must call it.

    Example:
        >>> said("SIGTERM")
        ('SIGTERM',)
    """
    if jax.process_count() == 1:
        return (text,)
    mine = np.frombuffer(text.encode()[:SAID].ljust(SAID, b"\0"), np.uint8)
    rows = multihost_utils.process_allgather(mine)
    return tuple(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows)


def together(work: Callable[..., T], *arguments: Any) -> T:
    """Return `work(*arguments)`, which computes nothing with other processes. Every process must call it.

    Raises:
      ProcessError: in every process, where `work` raises in one of several; in a single process, what `work` raises.

    Example:
        >>> together(max, 1, 2)
        2
    """
    if jax.process_count() == 1:
        return work(*arguments)
    found, error = None, None
    try:
        found = work(*arguments)
    except Exception as raised:
        error = raised
    reasons = said(f"{type(error).__name__}: {error}" if error else "")
    first = next((i for i, reason in enumerate(reasons) if reason), None)
    if first is not None:
        raise ProcessError(f"process {first}: {reasons[first]}") from error
    return found  # pyrefly: ignore[bad-return]


def alike(what: Mapping[str, str]) -> None:
    """Raise ProcessError in every process where one has another value of something than process 0."""
    for name, value in what.items():
        texts = said(value)
        for i, text in enumerate(texts):
            if text != texts[0]:
                raise ProcessError(f"process {i} has another {name} than process 0: {text} instead of {texts[0]}")
