"""Compiles the cases for each topology, and writes a record of each."""

import functools
import hashlib
import importlib.metadata
import pathlib
from collections.abc import Iterable, Iterator

import attnjax
from attnjax.aot import TooLarge, Topology, compile_for, topology
from attnjax.records import jsonl
from experiments import recorded
from experiments.devices import attention, runs
from experiments.devices.cases import DEVICES, Case
from experiments.recorded import Record

PROTOCOL = {"kind": "protocol", "dtype": "bfloat16", "heads": 8, "kv_heads": 2, "head_dim": 128, "devices": DEVICES}
COMPILERS = {"tpu": ("libtpu",), "cuda": ("jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12")}
READER = 2
"""Of widened products. The first, of records without a number, followed no operand through tuples and loops, and did not know
the products of libraries.
"""
SOURCES = ("aot", "attention", "config", "modules", "positions", "tasks", "train", "registry.py", "typing.py")
"""The parts of the package that decide what is compiled."""


def compile_all(path: pathlib.Path, wanted: Iterable[tuple[str, Case]], *, again: bool = False) -> list[str]:
    """Compile what has no record yet, and with `again` what has one of other sources; return what is wrong, a line each.

    Raises ValueError without the compilers.
    """
    rows = [row for row in recorded.begin(path, PROTOCOL) if row.get("kind") == "compiled"]
    known = {(row["target"], Case(*row["case"])) for row in rows if not again or row.get("source") == source()}
    wrong: list[str] = []
    missing = [one for one in wanted if one not in known]
    for name in dict.fromkeys(name for name, _ in missing):
        topology(name)
    for name, case in missing:
        try:
            row = compiled(name, case)
        except ValueError as error:
            # Such as a config whose text is not on this machine.
            wrong.append(f"{name}, {case}: not compiled: {error}")
        else:
            jsonl.append(path, row)
            told = row.get("error") or f"{row['temporary'] / 2**20:.1f} MiB in {row['seconds']} s"
            print(f"{name}, {case}: {told}", flush=True)
            wrong += faults(row)
    return wrong


def compiled(name: str, case: Case) -> Record:
    """The record of a case: what the compiler says, {"error": ...} where it refuses."""
    there = topology(name)
    where = {"kind": "compiled", "target": there.name, "jax": version("jax"), "source": source()}
    where["compiler"] = ", ".join(f"{one} {version(one)}" for one in COMPILERS.get(there.platform, ()))
    return where | {"case": list(case)} | told(there, case)


def told(there: Topology, case: Case) -> Record:
    """What the compiler says of one case; {"error": ...} where it refuses."""
    if case.kind in ("data", "ring"):
        program, about = attention.gradient(there, case), {"budget": attention.budget(case)}
    else:
        made = runs.program(there, case)
        program, about = made.program, {"budget": made.budget, **made.about}
    try:
        mesh, function, given, specs, options = program
        found = compile_for(there, mesh, function, given, specs, **options)
    except (TooLarge, RuntimeError, NotImplementedError) as error:
        return about | {"error": (str(error).splitlines() or [type(error).__name__])[0][:300]}
    return about | {
        "seconds": round(found.seconds, 1),
        "memory": found.memory,
        "temporary": found.temporary,
        "collectives": [list(one) for one in found.collectives],
        "widened": sorted(set(found.widened)),
        "reader": READER,
    }


def faults(row: Record) -> Iterator[str]:
    """What is wrong with a program by itself: refused, or over its budget, or an example gathered on every device."""
    case = Case(*row["case"])
    where = f"{row['target']}, {case}"
    if case.refused:
        if "error" not in row:
            yield f"{where}: one device holds what only a ring should"
    elif "error" in row:
        yield f"{where}: refused: {row['error']}"
    else:
        if row["temporary"] > budget(row):
            yield f"{where}: {row['temporary']} bytes of temporary memory are over the budget of {budget(row)}"
        added, most = total(row), attention.summed(case) if case.kind == "data" else None
        if most is not None and added > most:
            yield f"{where}: {added} bytes are added over devices, and learned gradients have {most}"
        if gathered := sorted({kind for kind, *_ in row["collectives"]} & {"all-gather", "all-to-all"}):
            yield f"{where}: {' and '.join(gathered)} among the collectives"


def total(row: Record) -> int:
    """Bytes that each device hands to sums over devices."""
    return sum(size for kind, _, size, _ in row["collectives"] if kind == "all-reduce")


def budget(row: Record) -> int:
    """The budget of a record; those of attention were not always written down."""
    return row["budget"] if "budget" in row else attention.budget(Case(*row["case"]))


def version(package: str) -> str:
    """The version of a package, "none" where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


@functools.cache
def source() -> str:
    """Names the sources of the package that decide what is compiled, by the first 12 digits of their SHA-256."""
    root, digest = pathlib.Path(attnjax.__file__).parent, hashlib.sha256()
    for path in sorted(path for part in SOURCES for path in [root / part, *(root / part).rglob("*.py")]):
        if path.is_file():
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
