"""The verb `compile`: what the training steps of a config need on accelerators that are not here."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from attnjax.cli.planning import planned
from attnjax.config import cell_id, encoding_name
from attnjax.config.mesh import MeshShape
from attnjax.config.outside import import_modules
from attnjax.sweep import groups

if TYPE_CHECKING:
    from attnjax.aot import Compiled


def compile_(arguments: argparse.Namespace) -> int:
    """`attnjax compile CONFIG --topology NAME`: a paragraph for each program; 1 where one does not fit."""
    plan = planned(arguments.config, arguments.overrides)
    import_modules(plan.imports)

    import jax

    # Compilers are found beside the platform that computes, which is left alone.
    jax.config.update("jax_platforms", "cpu")
    from attnjax.aot import TooLarge, compile_for, mesh_of, topology
    from attnjax.attention.choice import size_of
    from attnjax.train.mesh import check_batches
    from attnjax.train.programs import training_program

    there, failed = topology(arguments.topology), 0
    shape = arguments.mesh or MeshShape(data=len(there.devices))
    mesh, populations = mesh_of(there, shape._asdict()), groups([one.config for one in plan.runs])
    for runs in populations:
        check_batches(shape, runs[0])
    devices = f"{len(there.devices)} devices of {size_of(there.memory)}"
    print(f"{there.name}: {devices}; mesh {str(shape) or 'of one device'}; jax {jax.__version__}")
    for runs in populations:
        names = ", ".join(dict.fromkeys(encoding_name(run.model) for run in runs))
        print(f"\n{cell_id(runs[0])}: {len(runs)} runs of {runs[0].task.name} with {names}", flush=True)
        try:
            _, function, given, specs, options = training_program(mesh, shape, runs)
            _tell(compile_for(there, mesh, function, given, specs, **options), size_of)
        except TooLarge as error:
            print(f"  does not fit: {error}")
            failed = 1
    return failed


def _tell(found: "Compiled", size_of: Callable[[int], str]) -> None:
    print(f"  compiled in {found.seconds:.1f} s; it needs {size_of(found.memory)} of a device:")
    print(f"    arguments {size_of(found.arguments)}; temporary {size_of(found.temporary)}; results and code the rest")
    for one in found.collectives:
        least = "at least " if one.at_least else ""
        print(f"  {one.kind}: {least}{one.count}, {size_of(one.bytes)} from each device")
    print(f"  16-bit operands made float32 before a product: {len(found.widened) or 'none'}")
    for origin in dict.fromkeys(found.widened):
        print(f"    {origin}")
