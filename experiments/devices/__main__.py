"""Compile for accelerators that are not here: gradients of attention and training steps, for eight H100s or TPUs.

    pip install 'attnjax[compile]'
    python -m experiments.devices                                      what has no record yet, in runs/devices
    python -m experiments.devices --kinds ring --names rope fox        some programs
    python -m experiments.devices --targets v5e:2x4 --again            also what has a record

Nothing runs. `attnjax compile CONFIG --topology NAME` does the same for the runs of a config. The exit status is 1 where a
program is refused, gathers what is spread over devices, or takes a tenth more temporary memory than in its last record.
"""

import argparse
import importlib.metadata
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import attnjax as aj
from attnjax.aot import TooLarge, Topology, compile_for, mesh_of, topology
from attnjax.config import parse
from attnjax.config.mesh import parse_mesh
from attnjax.train.programs import training_program

P = jax.sharding.PartitionSpec
DEVICES, HEADS, KV_HEADS, HEAD_DIM, WINDOW = 8, 8, 2, 128, 1024
SIZES = aj.Sizes(HEADS * HEAD_DIM, HEADS, KV_HEADS, HEAD_DIM)
TARGETS = ("h100:8", "v5e:2x4", "v6e:2x4")
LENGTHS = {"data": 4096, "ring": 8192, "train": 1024}
MODEL = {"layers": 4, "model": 512, "heads": 8, "hidden": 2048, "scan_layers": True, "encoding": "rope"}
NAMES = [
    name
    for name, encoding in aj.ENCODINGS.items()
    if name not in ("sinusoidal", "learned") and not encoding.whole_table
]
"""Encodings that act inside attention, in linear memory."""


class Case(NamedTuple):
    """A program of a kind: "data" and "ring" are gradients of attention, with an example or a piece of one on each device;
    "train" is a training step, whose name is a family and whose variant is a mesh.
    """

    kind: str
    name: str
    length: int
    variant: str = ""


def every_case() -> list[Case]:
    """Returns all programs: attention under every encoding, rings under a window, and training steps."""
    attention = [Case(kind, name, LENGTHS[kind]) for name in NAMES for kind in ("data", "ring")]
    windows = [Case("ring", name, LENGTHS["ring"], "window") for name in ("rope", "t5", "fox")]
    steps = [Case("train", name, LENGTHS["train"], "data=8") for name in ("decoder", "encoder")]
    steps += [
        Case("train", "decoder", LENGTHS["ring"], "sequence=8"),
        Case("train", "decoder", LENGTHS["train"], "population=8"),
    ]
    return [*steps, *windows, *attention]


def attention(there: Topology, case: Case) -> dict[str, Any]:
    """Returns what the compiler says of gradients to parameters, content, q, k and v, in bfloat16, causal."""
    encoding, ring = aj.ENCODINGS[case.name](), case.kind == "ring"
    axis = "sequence" if ring else "data"
    mask = aj.Mask(causal=True, window=(WINDOW, 0) if case.variant == "window" else None)

    def loss(params: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
        pos, given = None, {"axis_name": axis if ring else None}
        if encoding.has("context"):
            where = jnp.arange(x.shape[1], dtype=jnp.int32)
            where = where + jax.lax.axis_index(axis) * x.shape[1] if ring else where
            pos = aj.context_positions(encoding, params, x, where, SIZES, **given)
        options = {"encoding": encoding, "params": params, "q_pos": pos, "k_pos": pos, "mask": mask, **given}
        total = (aj.attend(q, k, v, implementation="chunked", **options).astype(jnp.float32) ** 2).sum()
        return jax.lax.psum(total, axis) if ring else total

    specs = (P(), *(P(None, axis) if ring else P(axis),) * 4)
    mesh, function = mesh_of(there, {axis: DEVICES}), jax.grad(loss, argnums=(0, 1, 2, 3, 4))
    if ring:
        function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs)
    array = lambda *last: jax.ShapeDtypeStruct((1 if ring else DEVICES, case.length, *last), jnp.bfloat16)
    keys = array(KV_HEADS, HEAD_DIM)
    params = jax.eval_shape(lambda: encoding.init(jax.random.key(0), SIZES))
    return read(
        compile_for(there, mesh, function, (params, array(SIZES.model), array(HEADS, HEAD_DIM), keys, keys), specs)
    )


def training(there: Topology, case: Case) -> dict[str, Any]:
    """Returns what the compiler says of a training step that copies: 4 examples on each device, in bfloat16."""
    shape, decoder = parse_mesh(case.variant), case.name == "decoder"
    length = case.length // 2 - decoder  # a decoder sees a start, the input, the answer and its end
    task = {"name": "copy", "form": case.name, "begin": decoder, "length_min": length // 2, "length_max": length}
    train = {"batch": 4 * shape.data, "dtype_policy": "bfloat16"}
    runs = [parse({"task": task, "model": MODEL, "train": train, "seed": seed}) for seed in range(shape.population)]
    mesh, function, given, specs, options = training_program(mesh_of(there, shape._asdict()), shape, runs)
    return read(compile_for(there, mesh, function, given, specs, **options))


def read(found: Any) -> dict[str, Any]:
    """Returns the numbers of a compiled program that are recorded; sizes are bytes on one device."""
    told = {"seconds": round(found.seconds, 1), "memory": found.memory, "temporary": found.temporary}
    collectives = {one.kind: [one.count, one.bytes] for one in found.collectives}
    return told | {"collectives": collectives, "float32_products": len(set(found.widened))}


def compiled(there: Topology, case: Case) -> dict[str, Any]:
    """Returns the record of a case; it has an "error" where the compiler refuses."""
    made = {"kind": "compiled", "device": there.name, "jax": jax.__version__, "case": list(case)}
    packages = ("libtpu",) if there.platform == "tpu" else ("jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12")
    made["compiler"] = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in packages if there.platform != "cpu"
    )
    try:
        return made | (training if case.kind == "train" else attention)(there, case)
    except (TooLarge, RuntimeError, NotImplementedError) as error:
        return made | {"error": (str(error).splitlines() or [type(error).__name__])[0][:300]}


def wrong(row: dict[str, Any], before: dict[str, Any] | None) -> str:
    """Returns what is wrong with a program, or nothing."""
    if "error" in row:
        return f"refused: {row['error']}"
    if gathered := sorted(row["collectives"].keys() & {"all-gather", "all-to-all"}):
        return f"{' and '.join(gathered)} among the collectives"
    if before and "error" not in before and row["temporary"] > 1.1 * before["temporary"] + 2**20:
        return f"temporary memory was {before['temporary']} bytes and is {row['temporary']}"
    return ""


def records(path: pathlib.Path) -> dict[tuple[str, Case], dict[str, Any]]:
    """Returns the last record of each device and case in a file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [row for row in map(json.loads, lines) if row["kind"] == "compiled"]
    return {(row["device"], Case(*row["case"])): row for row in rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles, adds a line for each program to records.jsonl, and returns the exit status."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m experiments.devices", description=__doc__, formatter_class=raw)
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("runs/devices"), help="folder of records.jsonl"
    )
    parser.add_argument("--kinds", nargs="+", choices=tuple(LENGTHS), default=tuple(LENGTHS), help="default: all")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="encodings and families; default: all")
    parser.add_argument(
        "--targets", nargs="+", default=TARGETS, metavar="KIND:SIZES", help="topologies of eight devices"
    )
    parser.add_argument("--again", action="store_true", help="compile also what has a record")
    chosen = parser.parse_args(arguments)
    # Compilers are found beside the platform that computes, and plugins of absent devices are not asked to start.
    jax.config.update("jax_platforms", "cpu")
    path, status = chosen.out / "records.jsonl", 0
    chosen.out.mkdir(parents=True, exist_ok=True)
    known = records(path)
    for target in chosen.targets:
        there = topology(target)
        for case in every_case():
            asked = case.kind in chosen.kinds and (not chosen.names or case.name in chosen.names)
            if not asked or ((target, case) in known and not chosen.again):
                continue
            row = compiled(there, case)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            fault = wrong(row, known.get((target, case)))
            status = 1 if fault else status
            print(target, *case, fault or f"{row['temporary'] / 2**20:.1f} MiB in {row['seconds']} s", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
