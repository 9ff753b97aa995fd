"""The agreement matrix on the accelerator of this process, against the float64 oracle on its CPU.

    python -m tests.on_device                                  every encoding; records and page go into runs/on_device
    python -m tests.on_device rope t5 --out experiments/devices/h100

Each encoding runs under all masks, rules and positions of `tests/attention/matrix.py` with grouped heads, in each
implementation that can serve it and in three ways: float32 with products in full precision; float32 as the device multiplies by
itself (NVIDIA GPUs and TPUs shorten the operands); bfloat16. Outputs and all gradients are compared. The bound is that of the
tests, 2e-5 of the largest entry, in full precision, and 32 roundings of the operands otherwise (the gradient of the scale is a
sum over all queries).

Every record is in records.jsonl before the next program is compiled, and the same command goes on where it was stopped. The
exit status is 1 where an error is above its bound.
"""

import argparse
import functools
import pathlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax import Trait
from attnjax.attention import dispatch
from attnjax.attention.blockwise import blockwise
from attnjax.records import jsonl
from attnjax.report import formatting
from experiments import recorded
from tests.attention.matrix import ENCODINGS, TILE, allowed_by, as_precise, attention, cases_of, draw, outcome, truth

LAYOUT = "gqa"
PROTOCOL = {"kind": "protocol", "masks": "4 masks x 4 rules", "layout": LAYOUT, "compared": "output and all gradients"}


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
IMPLEMENTATIONS = ("dense", "chunked", "xla")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare what has no record yet, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.on_device", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encodings", nargs="*", metavar="ENCODING", help="names of the matrix; default: all")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/on_device"), help="folder of results")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.encodings) - set(ENCODINGS)):
        parser.error(f"the matrix has no encoding {', '.join(unknown)}; it has {', '.join(ENCODINGS)}")
    path, device = chosen.out / recorded.RECORDS, jax.devices()[0]
    known = {(row["device"], row["encoding"], row["way"], row["implementation"]) for row in rows(path)}
    for name in chosen.encodings or ENCODINGS:
        for way in WAYS:
            for implementation in IMPLEMENTATIONS:
                if implementation == "xla" and Trait.SCORE in ENCODINGS[name].traits:
                    continue
                key = (device.device_kind, name, way.name, implementation)
                if key not in known:
                    recorded.begin(path, PROTOCOL)
                    record = dict(zip(("device", "encoding", "way", "implementation"), key, strict=True))
                    record |= {"kind": "compared", "jax": jax.__version__, "bound": way.bound}
                    jsonl.append(path, record | compared(name, implementation, way))
                    print(*key, f"{rows(path)[-1]['error']:.1e}", flush=True)
    found = rows(path)
    (chosen.out / "README.md").write_text(page(recorded.about(jsonl.read(path).tables), found), encoding="utf-8")
    return int(any(failed(row) for row in found))


def rows(path: pathlib.Path) -> list[dict]:
    """What has been compared."""
    return [row for row in jsonl.read(path).tables if row.get("kind") == "compared"] if path.exists() else []


def failed(row: dict) -> bool:
    """Also where the error is not a number."""
    return not row["error"] <= row["bound"]


def compared(name: str, implementation: str, way: Way) -> dict:
    """The largest error of all cases, how many there were, and the array in which it was found."""
    inputs = draw(ENCODINGS[name], LAYOUT)
    rounded = [np.asarray(jnp.asarray(x, way.dtype), np.float32) for x in inputs[:3]]
    with jax.default_matmul_precision(way.precision):
        run = attention(name, implementation, {})
        worst, where, count = 0.0, "", 0
        for (_, data), expected in zip(cases_of(name, LAYOUT), truths(name, way.dtype), strict=True):
            data = as_precise(data, "float32")
            (_, out), gradients = run(*(jnp.asarray(x, way.dtype) for x in rounded), *inputs[3:], *data)
            got = {"out": out} | dict(zip(("q", "k", "v", "params", "scale"), gradients, strict=True))
            count += 1
            for (at, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
                # Sums over the batch may cancel: of parameters and scale, errors are relative to its order at least.
                unit = max(1.0 if at[0].key in ("params", "scale") else 0.0, np.abs(b).max())
                error = float(np.abs(np.asarray(a, np.float64) - b).max() / unit)
                if not error <= worst:
                    worst, where = error, jax.tree_util.keystr(at)
    return {"error": worst, "where": where, "cases": count}


@functools.lru_cache(maxsize=2)
def truths(name: str, dtype: str) -> list:
    """What the cases give in float64, of inputs rounded to this type, on the CPU."""
    q, k, v, *rest = draw(ENCODINGS[name], LAYOUT)
    inputs = (*(np.asarray(jnp.asarray(x, dtype), np.float32) for x in (q, k, v)), *rest)
    with jax.default_device(jax.devices("cpu")[0]):
        program = truth(name)
        given = ((*data[:2], allowed_by(*data[2:]), data[-1]) for _, data in cases_of(name, LAYOUT))
        return [outcome(program, inputs, data, "float64") for data in given]


def page(about: dict, found: list[dict]) -> str:
    """The largest error of each encoding, over implementations, as a table."""
    devices = ", ".join(dict.fromkeys(row["device"] for row in found))
    ways = [way for way in WAYS if any(row["way"] == way.name for row in found)]
    bad = [row for row in found if failed(row)]
    text = [
        f"# The agreement matrix, run on: {devices}",
        "",
        f"Run on {about['date']} with jax {found[0]['jax']} by `python -m tests.on_device`. Outputs and the gradients of q, k, "
        f"v, the scale and all that is learned, beside the float64 oracle: {sum(row['cases'] for row in found):,} cases in "
        f"{len({row['implementation'] for row in found})} implementations. Errors are relative to the largest entry of an "
        "array.",
        "",
        f"{len(found) - len(bad)} of {len(found)} programs are within their bound.",
        *(
            f"* {row['encoding']}, {row['implementation']}, {row['way']}: {row['error']:.1e} in {row['where']}"
            for row in bad
        ),
        "",
    ]
    header = ("encoding", *(f"{way.name} (bound {way.bound:.1e})" for way in ways))
    largest = lambda name, way: max(
        (row["error"] for row in found if (row["encoding"], row["way"]) == (name, way.name)), default=None
    )
    cell = lambda error: formatting.NONE if error is None else f"{error:.1e}"
    names = list(dict.fromkeys(row["encoding"] for row in found))
    table = [(name, *(cell(largest(name, way)) for way in ways)) for name in names]
    return "\n".join(text) + "\n" + formatting.markdown_table(header, table)


if __name__ == "__main__":
    dispatch.WITH_LSE["chunked"] = functools.partial(blockwise, tiling=TILE)  # several tiles, as in the tests
    sys.exit(main())
