"""The programs that train and measure a population, as functions of abstract arguments: for compilers, which run nothing."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from attnjax.config import RunConfig
from attnjax.config.mesh import MeshShape
from attnjax.train.evaluate import Evaluator
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
    trainer, given = _trainer(mesh, shape, runs)
    members, whole = jax.sharding.PartitionSpec(MEMBERS), jax.sharding.PartitionSpec()
    return Program(mesh, trainer.program, given, (members, members, whole, whole), {"donate_argnums": 0})


def evaluation_program(mesh: jax.sharding.Mesh, shape: MeshShape, runs: Sequence[RunConfig], size: int) -> Program:
    """Return the program that measures a batch of examples padded to `size`, for runs of one group.

    Raises ValueError as `training_program` does.
    """
    trainer, (states, population, _, _) = _trainer(mesh, shape, runs)
    evaluator = Evaluator(runs[0], make_task(runs[0]), trainer.model, mesh)
    members, whole = jax.sharding.PartitionSpec(MEMBERS), jax.sharding.PartitionSpec()
    given = (states.params, population.encoding, *evaluator.arguments(size))
    return Program(mesh, evaluator.program(size), given, (members, members, whole, whole), {})


def _trainer(mesh: jax.sharding.Mesh, shape: MeshShape, runs: Sequence[RunConfig]) -> tuple[Trainer, tuple[Any, ...]]:
    check_batches(shape, runs[0])
    trainer = Trainer(runs[0], make_task(runs[0]), mesh, encoding=encoding_of(runs))
    return trainer, trainer.arguments(padded(len(runs), mesh))
