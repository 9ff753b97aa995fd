"""Compiles the cases for each topology, and writes a record of each."""

import pathlib
from collections.abc import Sequence

import jax

from attnjax.aot import TooLarge, Topology, compile_for, mesh_of, topology
from attnjax.records import jsonl
from experiments import recorded
from experiments.devices.cases import DEVICES, TARGETS, Case, cases, program

PROTOCOL = {"kind": "protocol", "dtype": "bfloat16", "heads": 8, "kv_heads": 2, "head_dim": 128, "devices": DEVICES}


def compile_all(path: pathlib.Path, encodings: Sequence[str] | None, targets: Sequence[str] | None) -> None:
    """Compile what has no record yet. Raises ValueError for names that are unknown, and without the compilers."""
    # Compilers are found beside the platform that computes, and plugins of absent devices are not asked to start.
    jax.config.update("jax_platforms", "cpu")
    chosen = [case for case in cases() if encodings is None or case.encoding in encodings]
    if unknown := set(encodings or ()) - {case.encoding for case in chosen}:
        raise ValueError(f"no encoding that acts inside attention is called {', '.join(sorted(unknown))}")
    there = [topology(name) for name in targets or TARGETS]
    known = {(row["target"], *row["case"]) for row in recorded.begin(path, PROTOCOL) if row.get("kind") == "compiled"}
    for target in there:
        for case in chosen:
            if (target.name, *case) not in known:
                where = {"kind": "compiled", "target": target.name, "jax": jax.__version__, "case": list(case)}
                row = where | told(target, case)
                jsonl.append(path, row)
                print(target.name, *case, row.get("error") or f"{row['temporary'] / 2**20:.1f} MiB", flush=True)


def told(target: Topology, case: Case) -> dict:
    """What the compiler says of one case; {"error": ...} where it refuses."""
    function, arguments, specs = program(case)
    mesh = mesh_of(target, {case.axis: DEVICES})
    if case.kind == "ring":
        function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs)
    try:
        found = compile_for(target, mesh, function, arguments, specs)
    except (TooLarge, RuntimeError, NotImplementedError) as error:
        return {"error": (str(error).splitlines() or [type(error).__name__])[0][:300]}
    return {
        "seconds": round(found.seconds, 1),
        "memory": found.memory,
        "temporary": found.temporary,
        "collectives": [list(one) for one in found.collectives],
        "widened": sorted(set(found.widened)),
    }
