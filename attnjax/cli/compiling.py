"""The command `attnjax compile`: what the training steps of a config need on accelerators that are not here."""

import argparse

from attnjax.cli.planning import planned
from attnjax.config import cell_id
from attnjax.config.mesh import MeshShape
from attnjax.config.outside import import_modules
from attnjax.sweep import groups


def compile_(arguments: argparse.Namespace) -> int:
    """`attnjax compile CONFIG --topology NAME`: a paragraph for each program; 1 where one does not fit."""
    plan = planned(arguments.config, arguments.overrides)
    import_modules(plan.imports)

    import jax

    # Compilers are found beside the platform that computes, which is left alone.
    jax.config.update("jax_platforms", "cpu")
    from attnjax.aot import TooLarge, compile_for, mesh_of, topology
    from attnjax.attention.support import size_of
    from attnjax.train.loop import make_task
    from attnjax.train.mesh import MEMBERS, check_batches, padded
    from attnjax.train.step import Trainer

    there = topology(arguments.topology)
    shape = arguments.mesh or MeshShape(data=len(there.devices))
    mesh, failed = mesh_of(there, shape._asdict()), 0
    print(
        f"{there.name}: {len(there.devices)} devices of {size_of(there.memory)}; "
        f"mesh {str(shape) or 'of one device'}; jax {jax.__version__}"
    )
    for alike in groups([one.config for one in plan.runs]):
        run = alike[0]
        check_batches(shape, run)
        trainer = Trainer(run, make_task(run), mesh)
        members, whole = jax.sharding.PartitionSpec(MEMBERS), jax.sharding.PartitionSpec()
        print(f"\n{cell_id(run)}: {len(alike)} runs of {run.task.name} with {_encodings(run)}", flush=True)
        given, specs = trainer.arguments(padded(len(alike), mesh)), (members, members, whole, whole)
        try:
            found = compile_for(there, mesh, trainer.program, given, specs, donate_argnums=0)
        except TooLarge as error:
            print(f"  does not fit: {error}")
            failed += 1
            continue
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
    return 1 if failed else 0


def _encodings(run) -> str:
    return "+".join(dict.fromkeys(one.name for one in run.model.encodings))
