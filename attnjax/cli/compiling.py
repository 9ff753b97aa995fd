"""The command `attnjax compile`: what the training steps of a config need on accelerators that are not here."""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attnjax.cli.planning import planned
from attnjax.config import RunConfig, cell_id
from attnjax.config.mesh import MeshShape
from attnjax.config.outside import import_modules
from attnjax.sweep import groups

if TYPE_CHECKING:
    from attnjax.aot import Compiled, Topology


class Program(NamedTuple):
    """A function to compile, its abstract arguments and how they lie on a mesh; `options` are those of `jax.jit`."""

    mesh: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    specs: tuple[Any, ...]
    options: dict[str, Any]

    def compile_for(self, there: "Topology") -> "Compiled":
        """Compile it. Raises `attnjax.aot.TooLarge` where it does not fit."""
        from attnjax.aot import compile_for

        return compile_for(there, self.mesh, self.function, self.arguments, self.specs, **self.options)


def training_program(there: "Topology", shape: MeshShape, runs: Sequence[RunConfig]) -> Program:
    """Return the program that trains runs of one group (`attnjax.sweep.groups`) on all devices of a topology.

    Raises ValueError where the mesh has more or fewer devices, or the batches of the runs cannot be spread over it.
    """
    import jax

    from attnjax.aot import mesh_of
    from attnjax.train.loop import make_task
    from attnjax.train.mesh import MEMBERS, check_batches, padded
    from attnjax.train.step import Trainer

    mesh = mesh_of(there, shape._asdict())
    check_batches(shape, runs[0])
    trainer = Trainer(runs[0], make_task(runs[0]), mesh)
    members, whole = jax.sharding.PartitionSpec(MEMBERS), jax.sharding.PartitionSpec()
    given = trainer.arguments(padded(len(runs), mesh))
    return Program(mesh, trainer.program, given, (members, members, whole, whole), {"donate_argnums": 0})


def evaluation_program(there: "Topology", shape: MeshShape, runs: Sequence[RunConfig], size: int) -> Program:
    """Return the program that measures a batch of examples padded to `size`, for runs of one group.

    Raises ValueError as `training_program` does.
    """
    import jax

    from attnjax.aot import mesh_of
    from attnjax.train.evaluate import Evaluator
    from attnjax.train.loop import make_task
    from attnjax.train.mesh import MEMBERS, check_batches, padded
    from attnjax.train.step import Trainer

    mesh, task = mesh_of(there, shape._asdict()), make_task(runs[0])
    check_batches(shape, runs[0])
    trainer = Trainer(runs[0], task, mesh)
    states, population, _, _ = trainer.arguments(padded(len(runs), mesh))
    evaluator = Evaluator(runs[0], task, trainer.model, mesh)
    members, whole = jax.sharding.PartitionSpec(MEMBERS), jax.sharding.PartitionSpec()
    given = (states.params, population.encoding, *evaluator.arguments(size))
    return Program(mesh, evaluator.program(size), given, (members, members, whole, whole, whole), {})


def compile_(arguments: argparse.Namespace) -> int:
    """`attnjax compile CONFIG --topology NAME`: a paragraph for each program; 1 where one does not fit."""
    plan = planned(arguments.config, arguments.overrides)
    import_modules(plan.imports)

    import jax

    # Compilers are found beside the platform that computes, which is left alone.
    jax.config.update("jax_platforms", "cpu")
    from attnjax.aot import TooLarge, mesh_of, topology
    from attnjax.attention.choice import size_of
    from attnjax.train.mesh import check_batches

    there, failed = topology(arguments.topology), 0
    shape = arguments.mesh or MeshShape(data=len(there.devices))
    mesh_of(there, shape._asdict())
    together = groups([one.config for one in plan.runs])
    for runs in together:
        check_batches(shape, runs[0])
    print(
        f"{there.name}: {len(there.devices)} devices of {size_of(there.memory)}; "
        f"mesh {str(shape) or 'of one device'}; jax {jax.__version__}"
    )
    for runs in together:
        run = runs[0]
        print(f"\n{cell_id(run)}: {len(runs)} runs of {run.task.name} with {encodings(run)}", flush=True)
        try:
            found = training_program(there, shape, runs).compile_for(there)
        except TooLarge as error:
            print(f"  does not fit: {error}")
            failed += 1
        else:
            _tell(found, size_of)
    return 1 if failed else 0


def encodings(run: RunConfig) -> str:
    """Return the names of the encodings of a run, each once."""
    return "+".join(dict.fromkeys(one.name for one in run.model.encodings))


def _tell(found: "Compiled", size_of: Callable[[int], str]) -> None:
    print(f"  compiled in {found.seconds:.1f} s; it needs {size_of(found.memory)} of a device:")
    print(
        f"    arguments {size_of(found.arguments)}, of which {size_of(found.aliased)} hold results; other results "
        f"{size_of(found.outputs - found.aliased)}; temporary {size_of(found.temporary)}; code {size_of(found.code)}"
    )
    print(f"  operations: {'the compiler does not say' if found.flops is None else f'{found.flops:.3g}'}")
    for one in found.collectives:
        least = "at least " if one.at_least else ""
        print(f"  {one.kind}: {least}{one.count}, {size_of(one.bytes)} from each device")
    print(f"  16-bit operands made float32 before a product: {len(found.widened) or 'none'}")
    for origin in dict.fromkeys(found.widened):
        print(f"    {origin}")
