"""The page of the records: a table for each kind of case, an encoding a row and a topology a column."""

import pathlib
from typing import NamedTuple

from experiments import recorded
from experiments.devices.cases import Case
from experiments.recorded import Record

MIB = 2**20


class Results(NamedTuple):
    """Where and with what it was compiled, and the record of each (topology, case)."""

    about: Record
    rows: dict[tuple[str, Case], Record]


def read(path: pathlib.Path) -> Results:
    """The results in a file of records. Raises ValueError where they are damaged."""
    return recorded.read(path, "compiled programs", results)


def results(tables: list[Record]) -> Results:
    """The results among these records."""
    compiled = [row for row in tables if row["kind"] == "compiled"]
    return Results(recorded.about(tables), {(row["target"], Case(*row["case"])): row for row in compiled})


def readme(found: Results) -> str:
    """The page."""
    about, rows = found
    targets = list(dict.fromkeys(target for target, _ in rows))
    kinds = list(dict.fromkeys((case.kind, case.length) for _, case in rows))
    versions = ", ".join(sorted({f"jax {row['jax']}" for row in rows.values()}))
    failed = [(target, case, row["error"]) for (target, case), row in rows.items() if "error" in row]
    over = [(target, case) for (target, case), row in rows.items() if row.get("temporary", 0) > case.budget]
    text = [
        "# What compiles for accelerators that are not here",
        "",
        "Gradients of causal attention with respect to q, k, v, the content and everything learned, in bfloat16, with "
        f"{about['heads']} query heads, {about['kv_heads']} key heads and {about['head_dim']} channels a head, for eight "
        f"devices. Compiled on {about['date']} with {versions} on a machine without accelerators ({about['processor']}).",
        "",
        "**Compiled, not run.** The programs lower, partition over the mesh and pass the compiler. This says nothing about "
        "numbers or speed, and for a GPU memory is counted and not tried.",
        "",
        f"{len(rows) - len(failed)} of {len(rows)} programs compiled; {len(over)} need more temporary memory than their budget "
        "(64 KiB for each token of a device, 32 times its queries).",
        "",
    ]
    text += [f"* {target}, {_name(case)}: {error}" for target, case, error in failed]
    text += [f"* {target}, {_name(case)}: over its budget of {case.budget // MIB} MiB" for target, case in over]
    widened = list(dict.fromkeys(case.encoding for (_, case), row in rows.items() if row.get("widened")))
    if widened:
        text += [
            "",
            f"A 16-bit operand is made float32 before a product under {', '.join(widened)}; under no other encoding.",
        ]
    for kind, length in kinds:
        title = "A batch over devices" if kind == "data" else "A ring: one sequence over devices"
        text += ["", f"## {title}, T = {length:,}", ""]
        text += ["Temporary MiB of a device, and its collectives, those in a loop of unknown length once.", ""]
        text += ["| encoding | " + " | ".join(targets) + " |", "| --- |" + " ---: |" * len(targets)]
        for encoding in dict.fromkeys(case.encoding for _, case in rows if (case.kind, case.length) == (kind, length)):
            cells = [_cell(rows.get((target, Case(kind, encoding, length)))) for target in targets]
            text.append(f"| {encoding} | " + " | ".join(cells) + " |")
    text += ["", "Made by `python -m experiments.devices`; all numbers are in [records.jsonl](records.jsonl).", ""]
    return "\n".join(text)


def _name(case: Case) -> str:
    return f"{case.encoding}, {case.kind}, T = {case.length:,}"


def _cell(row: Record | None) -> str:
    if row is None:
        return "not compiled"
    if "error" in row:
        return "refused"
    short = {
        "collective-permute": "permute",
        "all-reduce": "reduce",
        "all-gather": "GATHER",
        "all-to-all": "ALL-TO-ALL",
    }
    told = ", ".join(f"{count} {short.get(kind, kind)}" for kind, count, _, _ in row["collectives"])
    return f"{row['temporary'] / MIB:.0f}" + (f" ({told})" if told else "")
