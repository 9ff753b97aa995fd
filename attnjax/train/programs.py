"""The program that trains a population, as a function of abstract arguments: for compilers, which run nothing."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from attnjax.config import RunConfig
from attnjax.config.mesh import MeshShape
from attnjax.train.loop import make_task
from attnjax.train.mesh import MEMBERS, check_batches, padded
from attnjax.train.model import encoding_of
from attnjax.train.step import Trainer


class Program(NamedTuple):
    """A function to compile, its abstract arguments and how they lie on a mesh; `options` are those of `jax.jit`."""

    mesh: jax.sharding.Mesh
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    specs: tuple[Any, ...]
    options: dict[str, Any]


def training_program(mesh: jax.sharding.Mesh, shape: MeshShape, runs: Sequence[RunConfig]) -> Program:
    """Return the program that trains runs of one group (`attnjax.sweep.groups`) on a mesh of this shape.

    Raises ValueError where the batches of the runs cannot be spread over it.
    """
    check_batches(shape, runs[0])
    trainer = Trainer(runs[0], make_task(runs[0]), mesh, encoding=encoding_of(runs))
    given = trainer.arguments(padded(len(runs), mesh))
    members, whole = jax.sharding.PartitionSpec(MEMBERS), jax.sharding.PartitionSpec()
    return Program(mesh, trainer.program, given, (members, members, whole, whole), {"donate_argnums": 0})
