"""Training in several processes (`jax.distributed`): process 0 decides, reads and writes, the others compute with it.

Every process calls `train` with the same configs, process 0 with the context that records and the others with a `Follower`.
How many steps a call takes, whether to stop and where to resume depend on clocks, signals and files, so process 0 tells the
others. They write nothing and need no access to the folders of the runs. Where a process is lost, JAX ends the others.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from attnjax.config.mesh import MeshShape
from attnjax.typing import PyTree


class Follower:
    """A `RunContext` that records nothing and never asks to stop, for every process but the first.

    Example:
        >>> Follower(MeshShape(data=2)).stopping()
        ''
    """

    def __init__(self, mesh: MeshShape):
        self.mesh = mesh

    def stopping(self) -> str:
        return ""

    def step(self, directory: pathlib.Path, step: int, **numbers: float) -> None: ...
    def metrics(self, directory: pathlib.Path, record: Mapping[str, Any]) -> None: ...
    def results(self, directory: pathlib.Path, *found: Mapping[str, Any]) -> None: ...
    def examples(self, directory: pathlib.Path, step: int, scores: Any, by_position: Any) -> None: ...
    def truncate_after(self, directory: pathlib.Path, step: int) -> None: ...
    def log_manifest(self, directory: pathlib.Path, **fields: Any) -> None: ...
    def fail(self, directory: pathlib.Path, step: int, reason: str) -> None: ...


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
