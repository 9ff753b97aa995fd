"""The agreement matrix on the accelerator of this process, against the float64 oracle on its CPU.

    python -m tests.on_device                                  every encoding; records and page go into runs/on_device
    python -m tests.on_device rope t5 --out runs/part1         several processes on one GPU, each with encodings of its own
    python -m tests.on_device --out runs/all --merge runs/part1 runs/part2

Each encoding runs under all masks, rules and positions of `tests/attention/matrix.py` with grouped heads, in each
implementation that can serve it and in three ways: float32 with products in full precision; float32 as the device multiplies by
itself (NVIDIA GPUs and TPUs shorten the operands); bfloat16. Outputs and all gradients are compared. The bound is that of the
tests, 2e-5 of the largest entry, in full precision, and 32 roundings of the operands otherwise (the gradient of the scale is a
sum over all queries).

The masks of the matrix are data, which the kernel of cuDNN does not take. On an NVIDIA GPU it runs in bfloat16 under masks that
are known: causal, full, and a causal window, over as many keys as queries at the default positions.

Every record is in records.jsonl before the next program is compiled, and the same command goes on where it was stopped. The
exit status is 1 where an error is above its bound. Beside such an error in products of shortened operands the page has what
the oracle itself changes by, in float64, where q, k and v are rounded as these operands are: the gradient of CoPE jumps where a
counted position passes a whole number, and there no implementation can do better.
"""

import argparse
import collections
import functools
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import attnjax
from attnjax import Mask, Trait
from attnjax.attention import dispatch
from attnjax.attention.blockwise import blockwise
from attnjax.records import jsonl
from attnjax.report import formatting
from experiments import recorded
from tests.attention.matrix import (
    AXES,
    CAUSAL_ONLY,
    ENCODINGS,
    LAYOUTS,
    PER_HEAD,
    TILE,
    B,
    allowed_by,
    as_precise,
    attention,
    cases_of,
    draw,
    outcome,
    positions_of,
    truth,
    with_gradients,
)

LAYOUT = "gqa"
T = LAYOUTS[LAYOUT][1]
"""Queries, and under known masks also keys."""
KNOWN = {"causal": Mask(causal=True), "full": Mask(), "causal window": Mask(causal=True, window=(4, 0))}
PROTOCOL = {
    "kind": "protocol",
    "masks": "4 masks x 4 rules; 3 known masks",
    "layout": LAYOUT,
    "compared": "output and all gradients",
}


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
TABLES = ("dense", "chunked", "xla")
"""Implementations that serve masks that are data, on every device."""
IMPLEMENTATIONS = (*TABLES, "cudnn")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare what has no record yet, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.on_device", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("encodings", nargs="*", metavar="ENCODING", help="names of the matrix; default: all")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/on_device"), help="folder of results")
    text = "compare nothing: take the records of these folders into --out, and write the page of all that are there"
    parser.add_argument("--merge", type=pathlib.Path, nargs="+", metavar="DIR", help=text)
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.encodings) - set(ENCODINGS)):
        parser.error(f"the matrix has no encoding {', '.join(unknown)}; it has {', '.join(ENCODINGS)}")
    path = chosen.out / recorded.RECORDS
    if chosen.merge:
        merge(path, [folder / recorded.RECORDS for folder in chosen.merge])
    else:
        compare(path, chosen.encodings or list(ENCODINGS))
    found = rows(path)
    (chosen.out / "README.md").write_text(page(recorded.about(jsonl.read(path).tables), found), encoding="utf-8")
    return int(any(failed(row) for row in found))


def compare(path: pathlib.Path, names: Sequence[str]) -> None:
    """Compare what has no record yet."""
    device, known = jax.devices()[0], {key_of(row) for row in rows(path)}
    for name in names:
        for way in WAYS:
            for implementation in IMPLEMENTATIONS:
                key = (device.device_kind, name, way.name, implementation)
                if key not in known and served(name, implementation, way) != (False, ()):
                    recorded.begin(path, PROTOCOL)
                    record = dict(zip(KEY, key, strict=True))
                    record |= {"kind": "compared", "jax": jax.__version__, "bound": way.bound}
                    jsonl.append(path, record | compared(name, implementation, way))
                    print(*key, f"{rows(path)[-1]['error']:.1e}", flush=True)


def merge(path: pathlib.Path, parts: Sequence[pathlib.Path]) -> None:
    """Take in records of other files, in the order of the matrix; the file begins with the place of the first and all dates.

    Raises ValueError where a file is missing, where protocol or place differ, or where one program has two records that are not
    the same.
    """
    if missing := [str(file) for file in parts if not file.exists()]:
        raise ValueError(f"there are no records in {', '.join(missing)}")
    files = [jsonl.read(file).tables for file in (*([path] if path.exists() else []), *parts)]
    heads = [[row for row in file if row["kind"] in ("protocol", "made")] for file in files]
    undated = [[{**row, "date": None} for row in head] for head in heads]
    for file, head in zip(parts, undated[-len(parts) :], strict=True):
        if head != undated[0]:
            raise ValueError(
                f"{file} has another protocol or was made elsewhere than {path if path.exists() else parts[0]}"
            )
    found: dict[tuple, dict] = {}
    for row in (row for file in files for row in file if row["kind"] == "compared"):
        if found.setdefault(key_of(row), row) != row:
            raise ValueError(f"{' '.join(key_of(row))} has two records that differ")
    order = [list(ENCODINGS), [way.name for way in WAYS], list(IMPLEMENTATIONS)]
    place = lambda row: [of.index(part) for of, part in zip(order, key_of(row)[1:], strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    dates = sorted({date for head in heads for row in head if "date" in row for date in row["date"].split(" and ")})
    heads[0] = [row | {"date": " and ".join(dates)} if "date" in row else row for row in heads[0]]
    jsonl.replace(path, [*heads[0], *sorted(found.values(), key=place)])


KEY = ("device", "encoding", "way", "implementation")


def key_of(row: dict) -> tuple[str, ...]:
    """What a record is of."""
    return tuple(row[name] for name in KEY)


def rows(path: pathlib.Path) -> list[dict]:
    """What has been compared."""
    return [row for row in jsonl.read(path).tables if row.get("kind") == "compared"] if path.exists() else []


def failed(row: dict) -> bool:
    """Also where the error is not a number."""
    return not row["error"] <= row["bound"]


def served(name: str, implementation: str, way: Way) -> tuple[bool, tuple[str, ...]]:
    """Whether an implementation serves an encoding under the masks of the matrix on this device, and under which known ones."""
    if implementation in TABLES:
        return implementation != "xla" or Trait.SCORE not in ENCODINGS[name].traits, ()
    return False, tuple(mask for mask in known_masks(name) if _serves(name, implementation, way, mask))


def known_masks(name: str) -> list[str]:
    """Those that the encoding can have."""
    return [mask for mask in KNOWN if KNOWN[mask].causal or name not in CAUSAL_ONLY]


def _serves(name: str, implementation: str, way: Way, mask: str) -> bool:
    (q, k, v, params, _), pos = known_inputs(name), own_positions(name)
    of = lambda x: jax.ShapeDtypeStruct(x.shape, way.dtype)
    pos = jax.tree.map(jnp.asarray, pos)
    options = {"encoding": ENCODINGS[name], "params": params, "q_pos": pos, "k_pos": pos, "mask": KNOWN[mask]}
    try:
        attnjax.explain(of(q), of(k), of(v), implementation=implementation, **options)
    except NotImplementedError:
        return False
    return True


def known_inputs(name: str) -> tuple:
    """Inputs with as many keys as queries."""
    q, k, v, *rest = draw(ENCODINGS[name], LAYOUT)
    return q, k[:, :T], v[:, :T], *rest


def own_positions(name: str) -> Any:
    """Positions of encodings that have rows per head or coordinates, which are data; None for others."""
    return positions_of(name, "random", LAYOUT)[0] if name in PER_HEAD or name in AXES else None


def under_known_mask(name: str, implementation: str, mask: str) -> Callable[..., Any]:
    """Attention under a mask that is known, and its gradients."""

    def run(q: Any, k: Any, v: Any, params: Any, scale: Any, *pos: Any) -> Any:
        where = {"q_pos": pos[0], "k_pos": pos[0]} if pos else {}
        given = {"encoding": ENCODINGS[name], "params": params, "mask": KNOWN[mask], "scale": scale} | where
        return attnjax.attend(q, k, v, implementation=implementation, **given)

    return with_gradients(run, {})


def compared(name: str, implementation: str, way: Way) -> dict:
    """The largest error of all cases, how many there were, and the array in which it was found."""
    with jax.default_matmul_precision(way.precision):
        worst, where, count = 0.0, "", 0
        for run, (q, k, v, *rest), expected in _cases(name, implementation, way):
            arrays = (jnp.asarray(np.asarray(jnp.asarray(x, way.dtype), np.float32), way.dtype) for x in (q, k, v))
            (_, out), gradients = run(*arrays, *rest)
            got = {"out": out} | dict(zip(("q", "k", "v", "params", "scale"), gradients, strict=True))
            count += 1
            error, at = error_of(got, expected)
            if not error <= worst:
                worst, where = error, at
    return {"error": worst, "where": where, "cases": count}


def error_of(got: dict, expected: dict) -> tuple[float, str]:
    """The largest error relative to the largest entry of its array, and which array that is."""
    worst, where = 0.0, ""
    for (at, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(expected), strict=True):
        # Sums over the batch may cancel: of parameters and scale, errors are relative to its order at least.
        unit = max(1.0 if at[0].key in ("params", "scale") else 0.0, np.abs(b).max())
        error = float(np.abs(np.asarray(a, np.float64) - b).max() / unit)
        if not error <= worst:
            worst, where = error, jax.tree_util.keystr(at)
    return worst, where


def _cases(name: str, implementation: str, way: Way) -> Iterator[tuple]:
    """Programs with their arguments, and what they should give."""
    whole, masks = served(name, implementation, way)
    if whole:
        inputs, run = draw(ENCODINGS[name], LAYOUT), attention(name, implementation, {})
        for (_, data), expected in zip(cases_of(name, LAYOUT), truths(name, way.dtype), strict=True):
            yield run, (*inputs, *as_precise(data, "float32")), expected
    if masks:
        inputs, pos = known_inputs(name), own_positions(name)
        data = () if pos is None else (as_precise(pos, "float32"),)
        expected = dict(zip(known_masks(name), known_truths(name, way.dtype), strict=True))
        for mask in masks:
            yield under_known_mask(name, implementation, mask), (*inputs, *data), expected[mask]


@functools.lru_cache(maxsize=2)
def known_truths(name: str, dtype: str) -> list:
    """What the known masks give in float64, of inputs rounded to this type, on the CPU."""
    q, k, v, *rest = known_inputs(name)
    inputs = (*(np.asarray(jnp.asarray(x, dtype), np.float32) for x in (q, k, v)), *rest)
    pos, i = own_positions(name), np.arange(T)
    pos = np.broadcast_to(i.astype(np.int32), (B, T)) if pos is None else pos
    seen = {"causal": i[:, None] >= i, "full": np.ones((T, T), bool), "causal window": abs(i[:, None] - 2 - i) <= 2}
    with jax.default_device(jax.devices("cpu")[0]):
        program, valid = truth(name), np.ones((B, T), bool)
        given = ((pos, pos, np.broadcast_to(seen[mask], (B, T, T)), valid) for mask in known_masks(name))
        return [outcome(program, inputs, data, "float64") for data in given]


@functools.lru_cache(maxsize=2)
def truths(name: str, dtype: str) -> list:
    """What the cases give in float64, of inputs rounded to this type, on the CPU."""
    return _in_float64(name, lambda x: np.asarray(jnp.asarray(x, dtype), np.float32))


@functools.lru_cache
def moved_by_rounding(name: str) -> float:
    """The largest change of what the oracle gives in float64 where q, k and v have 11 significant bits."""
    rounded = _in_float64(name, lambda x: np.asarray(jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10)))
    return max(error_of(got, exact)[0] for got, exact in zip(rounded, truths(name, "float32"), strict=True))


def _in_float64(name: str, rounding: Callable[[Any], np.ndarray]) -> list:
    q, k, v, *rest = draw(ENCODINGS[name], LAYOUT)
    with jax.default_device(jax.devices("cpu")[0]):
        inputs, program = (*map(rounding, (q, k, v)), *rest), truth(name)
        given = ((*data[:2], allowed_by(*data[2:]), data[-1]) for _, data in cases_of(name, LAYOUT))
        return [outcome(program, inputs, data, "float64") for data in given]


def page(about: dict, found: list[dict]) -> str:
    """The largest error of each encoding, over implementations, as a table."""
    devices = ", ".join(dict.fromkeys(row["device"] for row in found))
    ways = [way for way in WAYS if any(row["way"] == way.name for row in found)]
    bad = [row for row in found if failed(row)]
    names = list(dict.fromkeys(row["implementation"] for row in found))
    text = [
        f"# The agreement matrix, run on: {devices}",
        "",
        f"Run on {about['date']} with jax {found[0]['jax']} by `python -m tests.on_device`. Outputs and the gradients of q, k, "
        f"v, the scale and all that is learned, beside the float64 oracle: {sum(row['cases'] for row in found):,} cases in "
        f"{len(names)} implementations ({', '.join(names)}). Errors are relative to the largest entry of an array.",
        "",
        f"{len(found) - len(bad)} of {len(found)} programs are within their bound.",
        *(
            f"* {row['encoding']}, {row['implementation']}, {row['way']}: {row['error']:.1e} in {row['where']}{_rounded(row)}"
            for row in bad
        ),
        "",
    ]
    whole = {name: len(WAYS) * sum(served(name, one, WAYS[0])[0] for one in TABLES) for name in ENCODINGS}
    count = collections.Counter(row["encoding"] for row in found if row["implementation"] in TABLES)
    none = [name for name in ENCODINGS if not count[name]]
    part = [name for name in ENCODINGS if 0 < count[name] < whole[name]]
    text += [f"Not compared, {len(none)} of {len(ENCODINGS)} configurations: {', '.join(none)}.", ""] if none else []
    text += [f"Compared in part: {', '.join(part)}.", ""] if part else []
    header = ("encoding", *(f"{way.name} (bound {way.bound:.1e})" for way in ways))
    largest = lambda name, way: max(
        (row["error"] for row in found if (row["encoding"], row["way"]) == (name, way.name)), default=None
    )
    cell = lambda error: formatting.NONE if error is None else f"{error:.1e}"
    encodings = dict.fromkeys(row["encoding"] for row in found)
    table = [(name, *(cell(largest(name, way)) for way in ways)) for name in encodings]
    return "\n".join(text) + "\n" + formatting.markdown_table(header, table)


def _rounded(row: dict) -> str:
    """By how much rounded inputs move the oracle, where a device has shortened the operands of products."""
    if row["way"] != WAYS[1].name:
        return ""
    return f"; q, k and v of 11 bits alone move the oracle by {moved_by_rounding(row['encoding']):.1e}"


if __name__ == "__main__":
    dispatch.WITH_LSE["chunked"] = functools.partial(blockwise, tiling=TILE)  # several tiles, as in the tests
    sys.exit(main())
