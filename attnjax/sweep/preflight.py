"""Checks that a trainer accepts the runs of a sweep, in a separate process that computes on the CPU.

    python -m attnjax.sweep.preflight       reads {"trainer", "imports", "configs"} and writes what is wrong, or nothing

JAX holds an accelerator from the first question about it until its process ends: all memory of a GPU, the whole of a TPU. A
driver that only watches its workers must leave it to them.
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
from attnjax.sweep.worker import import_train


def check(trainer: str, configs: Iterable[RunConfig], mesh: MeshShape = ONE_DEVICE) -> None:
    """Call the functions `check` and `check_mesh` of the trainer's module, where it has them, in this process.

    Runs that train together with one and the same encoding are alike in all that can be wrong: one of them is asked about.
    Raises ValueError, also for a mesh of several devices and a trainer without `check_mesh`, which trains on one.
    """
    import_train(trainer)
    module = importlib.import_module(trainer.partition(":")[0])
    found, on_mesh = getattr(module, "check", None), getattr(module, "check_mesh", None)
    if mesh.devices > 1 and on_mesh is None:
        raise ValueError(f"the trainer {trainer} knows no mesh: {module.__name__} has no function check_mesh")
    for config in _different(configs):
        if found is not None:
            found(config)
        if on_mesh is not None and mesh.devices > 1:
            on_mesh(mesh, config)


def check_apart(
    trainer: str,
    configs: Iterable[RunConfig],
    path: Sequence[str],
    imports: Sequence[str] = (),
    mesh: MeshShape = ONE_DEVICE,
) -> None:
    """The same in a process that sees the CPU alone, as many devices as the mesh has, and finds modules on `path`.

    `imports`: classes of other projects, `package.module:Class`, whose modules it imports first. Raises ValueError with what it
    said.
    """
    order = {"trainer": trainer, "imports": imports, "configs": [to_dict(config) for config in _different(configs)]}
    order["mesh"], devices = str(mesh), {"JAX_NUM_CPU_DEVICES": str(mesh.devices)} if mesh.devices > 1 else {}
    done = subprocess.run(
        [sys.executable, "-m", "attnjax.sweep.preflight"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        env={**os.environ, **devices, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path)},
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ValueError(f"the check of the runs ended with exit status {done.returncode}; the last it said is: {last}")
    if done.stdout:
        raise ValueError(json.loads(done.stdout))


def _different(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """One config of each population and encoding: inside a population the numbers of an encoding may differ."""
    alike = groups(configs, key=lambda config: f"{population_key(config)} {config.model.encoding}")
    return [first for first, *_ in alike]


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
