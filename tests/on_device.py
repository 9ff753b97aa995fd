"""The agreement of all encodings on the accelerator of this process, with the float64 oracle on its CPU.

    python -m tests.on_device                                  every encoding; records go into runs/on_device
    python -m tests.on_device rope t5 --out runs/part          some encodings

Each encoding runs under all masks, rules and positions of `tests/attention/matrix.py` with grouped heads, in each
implementation that can serve it and in three ways: float32 with products in full precision; float32 as the device multiplies by
itself (NVIDIA GPUs and TPUs shorten the operands); bfloat16. Outputs and all gradients are compared. The bound is that of the
tests, 2e-5 of the largest entry, in full precision, and 32 roundings of the operands otherwise (the gradient of the scale is a
sum over all queries).

The masks of the matrix are data, which the kernel of cuDNN does not take. On an NVIDIA GPU it runs in bfloat16 under masks that
are known: causal, full, and a causal window, over as many keys as queries at the default positions.

Every record is in records.jsonl before the next program is compiled, and the same command goes on where it was stopped. The
exit status is 1 where an error is above its bound. The gradient of CoPE jumps where a counted position passes a whole
number, so that with shortened operands no implementation stays within the bound there.
"""

import argparse
import datetime
import functools
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attnjax
from attnjax import Mask
from tests.attention import matrix
from tests.attention.matrix import AXES, CAUSAL_ONLY, ENCODINGS, LAYOUTS, PER_HEAD, B

LAYOUT = "gqa"
T = LAYOUTS[LAYOUT][1]
"""Queries, and under known masks also keys."""
KNOWN = {"causal": Mask(causal=True), "full": Mask(), "causal window": Mask(causal=True, window=(4, 0))}


class Way(NamedTuple):
    """How numbers are multiplied: the type of q, k and v, JAX's precision of products, and the largest relative error."""

    name: str
    dtype: str
    precision: str
    bound: float


WAYS = (
    Way("float32, full precision", "float32", "highest", 2e-5),
    Way("float32, as the device multiplies", "float32", "default", 32 * 2**-11),
    Way("bfloat16", "bfloat16", "default", 32 * 2**-8),
)
TABLES = ("dense", "chunked")
"""Implementations that serve masks that are data, on every device."""
IMPLEMENTATIONS = (*TABLES, "cudnn")
KEY = ("device", "encoding", "way", "implementation")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compares what has no record yet, and tells what is above its bound."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.on_device", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encodings", nargs="*", metavar="ENCODING", help="names of the matrix; default: all")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/on_device"), help="folder of results")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.encodings) - set(ENCODINGS)):
        parser.error(f"the matrix has no encoding {', '.join(unknown)}; it has {', '.join(ENCODINGS)}")
    path = chosen.out / "records.jsonl"
    chosen.out.mkdir(parents=True, exist_ok=True)
    compare(path, chosen.encodings or list(ENCODINGS))
    found = rows(path)
    bad = [row for row in found if failed(row)]
    print(f"{len(found) - len(bad)} of {len(found)} programs are within their bound")
    for row in bad:
        print(f"{row['encoding']}, {row['implementation']}, {row['way']}: {row['error']:.1e} in {row['where']}")
    return int(bool(bad))


def compare(path: pathlib.Path, names: Sequence[str]) -> None:
    """Adds a record for each program that has none."""
    device, known = jax.devices()[0].device_kind, {tuple(row[name] for name in KEY) for row in rows(path)}
    for name in names:
        for way in WAYS:
            for implementation in IMPLEMENTATIONS:
                key = (device, name, way.name, implementation)
                if key in known or not any(programs := [*programs_of(name, implementation, way)]):
                    continue
                today = datetime.datetime.now(datetime.UTC).date().isoformat()
                record = {"kind": "compared", "date": today, "jax": jax.__version__, "bound": way.bound}
                record |= dict(zip(KEY, key, strict=True)) | compared(programs, way)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
                print(*key, f"{record['error']:.1e}", flush=True)


def rows(path: pathlib.Path) -> list[dict]:
    """Returns the comparisons in a file of records."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if row["kind"] == "compared"]


def failed(row: dict) -> bool:
    """Whether the error is above its bound, or not a number."""
    return not row["error"] <= row["bound"]


def compared(programs: Sequence[tuple], way: Way) -> dict:
    """Returns the largest error of all cases, the array in which it was found, and the number of cases."""
    worst, where, count = 0.0, "", 0
    for run, (q, k, v, *rest), data, expected in programs:
        arrays = (jnp.asarray(rounded(x, way.dtype), way.dtype) for x in (q, k, v))
        with jax.default_matmul_precision(way.precision):
            got = jax.tree.map(np.asarray, jax.jit(run)(*arrays, *rest, data))
        for i in range(len(got["out"])):
            at = lambda x, i=i: x[i]
            for error, place in matrix.errors(jax.tree.map(at, got), jax.tree.map(at, expected)):
                worst, where = (worst, where) if error <= worst else (float(error), place)
        count += len(got["out"])
    return {"error": worst, "where": where, "cases": count}


def rounded(x: Any, dtype: str) -> np.ndarray:
    return np.asarray(jnp.asarray(x, dtype), np.float32)


def programs_of(name: str, implementation: str, way: Way) -> Iterator[tuple]:
    """Yields (program, inputs, stacked cases, expected results) of an implementation, where it can serve this encoding."""
    if implementation in TABLES:
        if serves(name, implementation, way, "causal"):
            one = matrix.TILES if implementation == "chunked" else implementation
            data = matrix.stacked([data for _, data in matrix.cases_of(name, LAYOUT)])
            yield over_cases(matrix.attention(name, one)), inputs_of(name, known=False), data, truths(name, way.dtype)
        return
    for n, mask in enumerate(known_masks(name)):
        if serves(name, implementation, way, mask):
            run, pos = over_cases(under_known_mask(name, implementation, mask)), own_positions(name)
            data = matrix.stacked([(np.zeros(0) if pos is None else pos,)])
            one = jax.tree.map(lambda x, n=n: x[n : n + 1], truths(name, way.dtype, known=True))
            yield run, inputs_of(name, known=True), data, one


def over_cases(function: Any) -> Any:
    """The output and all gradients of each case; data of the cases are stacked."""
    return matrix.over_cases(matrix.with_gradients(function))


def known_masks(name: str) -> list[str]:
    """The known masks that the encoding can have."""
    return [mask for mask in KNOWN if KNOWN[mask].causal or name not in CAUSAL_ONLY]


def options_of(name: str, mask: str, pos: Any) -> dict[str, Any]:
    where = {} if own_positions(name) is None else {"q_pos": pos, "k_pos": pos}
    return {"encoding": ENCODINGS[name], "mask": KNOWN[mask]} | where


def serves(name: str, implementation: str, way: Way, mask: str) -> bool:
    """Whether an implementation serves an encoding."""
    q, k, v, params, _ = inputs_of(name, known=True)
    of, pos = (jax.ShapeDtypeStruct(x.shape, way.dtype) for x in (q, k, v)), own_positions(name)
    try:
        options = options_of(name, mask, jax.tree.map(jnp.asarray, pos))
        attnjax.explain(*of, implementation=implementation, params=params, **options)
    except NotImplementedError:
        return False
    return True


def inputs_of(name: str, *, known: bool) -> tuple:
    """Returns the inputs of the matrix; with as many keys as queries under known masks."""
    q, k, v, *rest = matrix.draw(ENCODINGS[name], LAYOUT)
    return (q, k[:, :T], v[:, :T], *rest) if known else (q, k, v, *rest)


def own_positions(name: str) -> Any:
    """Returns positions of encodings that have rows per head or coordinates, which are data; None for others."""
    return matrix.positions_of(name, "random", LAYOUT)[0] if name in PER_HEAD or name in AXES else None


def under_known_mask(name: str, implementation: str, mask: str) -> Any:
    """Returns attention under a mask that is known."""

    def run(q: Any, k: Any, v: Any, params: Any, scale: Any, pos: Any) -> Any:
        how = {"params": params, "scale": scale, "implementation": implementation}
        return attnjax.attend(q, k, v, **how, **options_of(name, mask, pos))

    return run


@functools.lru_cache(maxsize=2)
def truths(name: str, dtype: str, *, known: bool = False) -> dict:
    """Returns the results of the oracle in all cases, or under all known masks, of inputs rounded to this type."""
    q, k, v, *rest = inputs_of(name, known=known)
    inputs = *(rounded(x, dtype) for x in (q, k, v)), *rest
    cases = [(*x[:2], matrix.allowed_by(*x[2:])) for _, x in matrix.cases_of(name, LAYOUT)]
    if known:
        pos, i = own_positions(name), np.arange(T)
        pos = np.broadcast_to(i.astype(np.int32), (B, T)) if pos is None else pos
        seen = {"causal": i[:, None] >= i, "full": np.ones((T, T), bool), "causal window": abs(i[:, None] - 2 - i) <= 2}
        cases = [(pos, pos, np.broadcast_to(seen[mask], (B, T, T))) for mask in known_masks(name)]
    with jax.default_device(jax.devices("cpu")[0]):
        return matrix.outcome(over_cases(matrix.truth(name)), inputs, matrix.stacked(cases), "float64")


if __name__ == "__main__":
    sys.exit(main())
