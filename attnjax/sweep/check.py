"""Checks that a trainer accepts the runs of a sweep, in this process or in one that computes on the CPU.

    python -m attnjax.sweep.check       reads {"trainer", "imports", "configs", "mesh"} and writes what is wrong, or nothing

JAX holds an accelerator from the first question about it until its process ends, so a driver that only watches its workers
leaves the question to another process.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from attnjax.config import RunConfig, parse, to_dict
from attnjax.config.mesh import ONE_DEVICE, MeshShape, parse_mesh
from attnjax.config.outside import import_modules
from attnjax.sweep.plan import groups, population_key
from attnjax.sweep.pool import import_path
from attnjax.sweep.worker import import_train


def check(trainer: str, configs: Iterable[RunConfig], mesh: MeshShape = ONE_DEVICE) -> None:
    """Call the functions `check` and `check_mesh` of the trainer's module, where it has them, for one run of each population.

    Raises ValueError, also for a mesh of several devices and a trainer without `check_mesh`, which trains on one.
    """
    import_train(trainer)
    module = importlib.import_module(trainer.partition(":")[0])
    found, on_mesh = getattr(module, "check", None), getattr(module, "check_mesh", None)
    if mesh.devices > 1 and on_mesh is None:
        raise ValueError(f"the trainer {trainer} knows no mesh: {module.__name__} has no function check_mesh")
    # Inside a population the numbers of an encoding may differ.
    for config, *_ in groups(configs, key=lambda config: f"{population_key(config)} {config.model.encoding}"):
        if found is not None:
            found(config)
        if on_mesh is not None and mesh.devices > 1:
            on_mesh(mesh, config)


def check_apart(
    trainer: str, configs: Iterable[RunConfig], imports: Sequence[str] = (), mesh: MeshShape = ONE_DEVICE
) -> None:
    """Do the same in a process that sees the CPU alone, with as many devices as the mesh has."""
    order = {"trainer": trainer, "imports": imports, "configs": list(map(to_dict, configs)), "mesh": str(mesh)}
    count = {"JAX_NUM_CPU_DEVICES": str(mesh.devices)} if mesh.devices > 1 else {}
    done = subprocess.run(
        [sys.executable, "-m", "attnjax.sweep.check"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        env={**os.environ, **count, "JAX_PLATFORMS": "cpu", "PYTHONPATH": import_path()},
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ValueError(f"the check of the runs ended with exit status {done.returncode}; the last it said is: {last}")
    if done.stdout:
        raise ValueError(json.loads(done.stdout))


def main() -> None:
    """Check the configs of the order on standard input; a ValueError goes to standard output as JSON."""
    order, output = json.loads(sys.stdin.read()), os.dup(1)
    os.dup2(2, 1)  # whatever a trainer prints is no answer
    try:
        import_modules(order["imports"])
        check(order["trainer"], map(parse, order["configs"]), parse_mesh(order["mesh"]))
    except ValueError as error:
        os.write(output, json.dumps(str(error)).encode())


if __name__ == "__main__":
    main()
