"""Rings and training steps over all devices of all processes; as a program, what each one of several processes computes.

    python -m tests.spread WHAT COORDINATOR PROCESSES ID DEVICES FILE

joins the other processes through the coordinator (`HOST:PORT`), each with so many virtual CPU devices, and computes on all of
them the ring of an encoding, `training`, whole `runs`, or runs of which a process is `lost`. All processes see the folders of
the runs. What one found on the host is written as arrays by name.
"""

import functools
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

import attnjax as aj
from attnjax import Mask, Tiling, attend, context_positions
from attnjax.config import parse
from attnjax.config.mesh import parse_mesh
from attnjax.train import checkpoint
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import CHECKPOINTS, make_task, train
from attnjax.train.mesh import make_mesh, on_host, place
from attnjax.train.processes import Follower, agree, broadcast, leads
from attnjax.train.step import Trainer, members
from tests.train.conftest import Recorder

P = jax.sharding.PartitionSpec
ROOT = pathlib.Path(__file__).resolve().parent.parent
PATIENCE = 120
GONE = 9
"""The exit status of a process that is lost."""
LENGTH = 32
SIZES = aj.Sizes(model=16, heads=4, kv_heads=2, head_dim=4)
ENCODINGS = {"rope": aj.RoPE(), "t5": aj.T5Bias(buckets=8, max_distance=20), "fox": aj.FoX()}
COMPILED_QUICKLY = {
    "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1"
    + (" --xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 11) else ""),
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}
"""As `conftest.py` sets it for the process of the tests: other programs would round otherwise."""
MESHES = ("data=2", "sequence=2", "population=2")
MODEL = {"layers": 1, "model": 16, "heads": 2, "hidden": 16, "encoding": {"name": "t5"}}
RUN = {
    "task": {"name": "copy", "form": "decoder", "length_max": 6},
    "model": MODEL,
    "train": {"steps": 9, "batch": 4, "clip": 1.0},
    "optimizer": {"name": "sgd"},
    "evaluate": {"lengths": [6], "validation_lengths": [], "count": 6, "batch": 4},
}


def ring(name: str, devices: int) -> dict[str, np.ndarray]:
    """Output and gradients of causal attention with its tokens over the devices; 1: dense, on one."""
    random, encoding = np.random.default_rng(0), ENCODINGS[name]
    normal = lambda *shape: random.normal(size=shape).astype(np.float32)
    params = jax.tree.map(lambda x: np.asarray(x) + 0.3 * normal(*x.shape), encoding.init(jax.random.key(0), SIZES))
    x, q, k, v = (normal(2, LENGTH, *shape) for shape in ((16,), (4, 4), (2, 4), (2, 4)))
    weight = normal(2, LENGTH, 4, 4)

    def run(x, q, k, v, params, where, **how):
        axis = {"axis_name": how["axis_name"]} if "axis_name" in how else {}
        pos = context_positions(encoding, params, x, where, SIZES, **axis)
        return attend(q, k, v, encoding=encoding, params=params, q_pos=pos, k_pos=pos, mask=Mask(causal=True), **how)

    spread = functools.partial(run, implementation="dense")
    if devices > 1:
        mesh = jax.make_mesh((devices,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
        specs = {"in_specs": (*(P(None, "sequence"),) * 4, P(), P("sequence")), "out_specs": P(None, "sequence")}
        run_ring = functools.partial(run, implementation=Tiling(5, 4), axis_name="sequence")
        spread = jax.shard_map(run_ring, mesh=mesh, **specs)

    def loss(inputs, where):
        out = spread(*inputs, where)
        return (weight * out).sum(), out

    program = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, out), gradients = program((x, q, k, v, params), np.arange(LENGTH, dtype=np.int32))
    found = {"out": out, **dict(zip(("x", "q", "k", "v", "params"), gradients, strict=True))}
    return dict(_named(jax.tree.map(lambda leaf: multihost_utils.process_allgather(leaf, tiled=True), found)))


def training(meshes: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Losses, parameters and evaluation of two runs after four steps on each of these meshes."""
    return {f"{mesh}{path}": leaf for mesh in meshes for path, leaf in _named(_trained(mesh))}


def _trained(text: str):
    runs = [parse(RUN | {"seed": i, "data_seed": i}) for i in range(2)]
    mesh, task = make_mesh(parse_mesh(text)), make_task(runs[0])
    trainer, there = Trainer(runs[0], task, mesh), place(members(runs), mesh)
    state = place(trainer.start(there), mesh)
    state, first = trainer.advance(state, there, 1)
    state, last = trainer.advance(state, there, 3)
    records = next(Evaluator(runs[0], task, trainer.model, mesh)(state.params, ("test",)))
    values = np.array([[one["value"] for one in member] for member in records])
    loss = np.concatenate([first.loss, last.loss], axis=1)
    return {"params": on_host(state.params, mesh), "loss": loss, "values": values}


def two_runs():
    """Two members with a checkpoint and an evaluation at step 4, and their end at 9."""
    evaluate = RUN["evaluate"] | {"validation_lengths": [5], "every": 4}
    often = RUN["train"] | {"log_every": 2, "checkpoint_every": 4}
    return [parse(RUN | {"train": often, "evaluate": evaluate, "seed": i, "data_seed": i}) for i in range(2)]


class Dying(Follower):
    """Its process is gone, without a word, after step 6."""

    def metrics(self, directory, record):
        if record["step"] == 6:
            os._exit(GONE)


def lost(folder: pathlib.Path, mesh: str = "population=2") -> None:
    """Train until the second process is gone."""
    directories = [folder / "0", folder / "1"]
    if leads():
        for directory in directories:
            directory.mkdir(parents=True)
    train(two_runs(), directories, (Recorder if leads() else Dying)(mesh=parse_mesh(mesh)))


class Stopped(Recorder):
    """Is told why another process is asked to stop."""

    reason = ""

    def stop(self, reason):
        self.reason = reason


def runs(folder: pathlib.Path, mesh: str = "population=2") -> dict[str, np.ndarray]:
    """Losses, evaluations and digests of two runs that are stopped, resumed and end; nothing of processes that follow.

    With two processes the second is asked to stop; it has no `step` to count, so that the first must tell it what was done.
    """
    both, directories = two_runs(), [folder / "0", folder / "1"]
    if not leads():
        asked = []
        stop = lambda: asked.append(1) or ("a test" if len(asked) > 3 else "")
        train(both, directories, Follower(parse_mesh(mesh), stop))
        train(both, directories, Follower(parse_mesh(mesh)))
        return {}
    for directory in directories:
        directory.mkdir(parents=True)
    first, last = Stopped(mesh=parse_mesh(mesh)), Recorder(mesh=parse_mesh(mesh))
    if jax.process_count() == 1:
        first.stop_after = 3
    train(both, directories, first)
    assert bool(first.reason) == (jax.process_count() > 1)
    assert 0 < checkpoint.steps(directories[0] / CHECKPOINTS)[-1] < both[0].train.steps
    train(both, directories, last)
    losses = [record["loss"] for i in "01" for one in (first, last) for record in one.logs.get(i, ())]
    values = [record["value"] for i in "01" for one in (first, last) for record in one.found.get(i, ())]
    digests = [last.notes[i]["parameters_sha256"] for i in "01"]
    return {"loss": np.array(losses), "value": np.array(values), "sha": np.array(digests)}


def _named(tree):
    return [(jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in jax.tree.leaves_with_path(tree)]


def in_processes(folder: pathlib.Path, what: str, *, processes: int, devices: int) -> list[dict[str, np.ndarray]]:
    """What each of these processes found, with so many devices each."""
    files, ended = [folder / f"{what}{i}.npz" for i in range(processes)], ends(folder, what, processes, devices)
    assert not any(code for code, _ in ended), ended
    return [dict(np.load(file)) for file in files]


def ends(folder: pathlib.Path, what: str, processes: int, devices: int) -> list[tuple[int, str]]:
    """The exit status of each of these processes, and what it printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {**os.environ, **COMPILED_QUICKLY, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    files = [folder / f"{what}{i}.npz" for i in range(processes)]
    started = []
    try:
        for i, file in enumerate(files):
            words = [what, coordinator, processes, i, devices, file]
            command = [sys.executable, "-m", "tests.spread", *map(str, words)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            started.append(subprocess.Popen(command, cwd=folder, env=environment, **pipes))
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


def main(what: str, coordinator: str, processes: str, number: str, devices: str, file: str) -> None:
    """Compute as one of several processes."""
    jax.config.update("jax_num_cpu_devices", int(devices))
    jax.distributed.initialize(
        coordinator, int(processes), int(number), initialization_timeout=60, heartbeat_timeout_seconds=20
    )
    assert len(jax.devices()) == int(processes) * len(jax.local_devices())
    assert broadcast({"number": number} if leads() else None) == {"number": "0"}
    assert agree(stop=not leads(), count=7 if leads() else 1) == (int(processes) > 1, 7)
    if what == "lost":
        return lost(pathlib.Path(file).parent / "runs")
    if what == "runs":
        found = runs(pathlib.Path(file).parent / "runs")
    else:
        found = training(MESHES) if what == "training" else ring(what, len(jax.devices()))
    np.savez(file, **found)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
