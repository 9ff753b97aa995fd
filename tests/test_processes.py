"""Two processes on one machine, which send to each other with Gloo, beside one: the same numbers.

    python -m tests.test_processes WHAT COORDINATOR ID DEVICES FILE

joins the other process through the coordinator (`HOST:PORT`), each with so many virtual CPU devices, and computes on all of
them the ring of an encoding, or `training`. What one found on the host is written as arrays by name.
"""

import functools
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

import attnjax as aj
from attnjax import Mask, Tiling, attend, context_positions
from attnjax.config import parse
from attnjax.config.mesh import parse_mesh
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.mesh import make_mesh, on_host, place
from attnjax.train.processes import agree, broadcast, leads
from attnjax.train.step import Trainer, members

P = jax.sharding.PartitionSpec
ROOT = pathlib.Path(__file__).resolve().parent.parent
PATIENCE = 120
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
RUN = {
    "task": {"name": "copy", "form": "decoder", "length_max": 6},
    "model": {"layers": 1, "model": 16, "heads": 2, "hidden": 16, "encoding": {"name": "t5"}},
    "train": {"steps": 9, "batch": 4, "clip": 1.0},
    "optimizer": {"name": "sgd"},
    "evaluate": {"lengths": [6], "validation_lengths": [], "count": 6, "batch": 4},
}


def ring(name, devices):
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
    return named(jax.tree.map(lambda leaf: multihost_utils.process_allgather(leaf, tiled=True), found))


def training(meshes):
    """Losses, parameters and evaluation of two runs after four steps on each of these meshes."""
    return {f"{mesh}{path}": leaf for mesh in meshes for path, leaf in named(trained(mesh)).items()}


def trained(text):
    runs = [parse(RUN | {"seed": i, "data_seed": i}) for i in range(2)]
    mesh, task = make_mesh(parse_mesh(text)), make_task(runs[0])
    trainer, there = Trainer(runs[0], task, mesh), place(members(runs), mesh)
    state = place(trainer.start(there), mesh)
    state, first = trainer.advance(state, there, 1)
    state, last = trainer.advance(state, there, 3)
    measured = next(Evaluator(runs[0], task, trainer.model, mesh).measure(state.params, ("test",)))
    values = np.array([[one["value"] for one in member.records] for member in measured])
    loss = np.concatenate([first.loss, last.loss], axis=1)
    return {"params": on_host(state.params, mesh), "loss": loss, "values": values}


def named(tree):
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def in_two_processes(folder, what, devices):
    """What each of two processes found, with so many devices each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    environment = {**os.environ, **COMPILED_QUICKLY, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"
    files, both = [folder / f"{i}.npz" for i in range(2)], []
    try:
        for i, file in enumerate(files):
            words = [what, coordinator, i, devices, file]
            command = [sys.executable, "-m", "tests.test_processes", *map(str, words)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            both.append(subprocess.Popen(command, cwd=folder, env=environment, **pipes))
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in both]
    finally:
        for process in both:
            process.kill()
            process.communicate()
    assert [process.returncode for process in both] == [0, 0], outputs
    return [dict(np.load(file)) for file in files]


def main(what, coordinator, number, devices, file):
    """Compute as one of two processes."""
    jax.config.update("jax_num_cpu_devices", int(devices))
    jax.distributed.initialize(coordinator, 2, int(number), initialization_timeout=60, heartbeat_timeout_seconds=20)
    assert len(jax.devices()) == 2 * len(jax.local_devices())
    assert broadcast({"number": number} if leads() else None) == {"number": "0"}
    assert agree(stop=not leads(), count=7 if leads() else 1) == (True, 7)
    np.savez(file, **(training(MESHES) if what == "training" else ring(what, len(jax.devices()))))
    jax.distributed.shutdown()


def assert_near(found, expected, atol):
    assert found.keys() == expected.keys()
    for name in found:
        scale = max(1, np.abs(expected[name]).max())
        np.testing.assert_allclose(found[name], expected[name], atol=atol * scale, err_msg=name)


def assert_same_bits(found, expected, names):
    assert set(names) <= found.keys()
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_ring_over_two_processes_equals_one_device(tmp_path, name):
    """Two devices of each. What no sum over all devices is part of has the bits of four devices of one process."""
    first, second = in_two_processes(tmp_path, name, devices=2)
    assert_same_bits(first, second, first)
    assert_near(first, ring(name, 1), 1e-5)
    assert_same_bits(first, ring(name, 4), [one for one in first if "params" not in one])


@pytest.mark.slow
def test_training_over_two_processes_equals_one_device(tmp_path):
    """Of two addends the order does not matter: two devices of one process have the same bits."""
    first, second = in_two_processes(tmp_path, "training", devices=1)
    assert_same_bits(first, second, first)
    alone, together = training(("",)), training(MESHES)
    for mesh in MESHES:
        own = {name.removeprefix(mesh): leaf for name, leaf in first.items() if name.startswith(mesh)}
        assert_near(own, alone, 1e-5)
    assert_same_bits(first, together, first)


if __name__ == "__main__":
    main(*sys.argv[1:])
