"""Compiles cases anew and compares them with their records: what CI runs of this experiment."""

import pathlib
from collections.abc import Iterable, Iterator

from experiments.devices import page
from experiments.devices.cases import Case
from experiments.devices.compiling import compiled, faults
from experiments.recorded import Record

MORE = 1.1
"""How much more temporary memory than in its record a program may take."""


def check_all(path: pathlib.Path, wanted: Iterable[tuple[str, Case]]) -> list[str]:
    """Compile all of them, and return what is worse than in the records of the file, a line each.

    Raises ValueError without the compilers, and where the file is damaged.
    """
    rows, wrong = page.read(path).rows, list[str]()
    for name, case in wanted:
        found = compiled(name, case)
        worse = list(compared(found, rows.get((name, case))))
        told = "refused" if "error" in found else f"{found['temporary'] / 2**20:.1f} MiB in {found['seconds']} s"
        print(f"{name}, {case}: {told}; {'as recorded' if not worse else 'NOT as recorded'}", flush=True)
        wrong += worse
    return wrong


def compared(found: Record, record: Record | None) -> Iterator[str]:
    """What is worse in a program than in the record of it.

    What the record had already, as too much memory, is no news. Collectives must be the same ones, and as many where the
    version of JAX is that of the record.
    """
    where = f"{found['target']}, {Case(*found['case'])}"
    if record is None:
        yield f"{where}: there is no record to compare with"
        return
    yield from (fault for fault in faults(found) if not any(faults(record)))
    if "error" in found or "error" in record:
        if "error" in record and "error" not in found and not Case(*found["case"]).refused:
            yield f"{where}: compiles now; record it"
        return
    count = (lambda one: (one[0], one[1])) if found["jax"] == record["jax"] else (lambda one: one[0])
    before, now = ([count(one) for one in row["collectives"]] for row in (record, found))
    if before != now:
        yield f"{where}: collectives were {_list(before)} and are {_list(now)}"
    if found["temporary"] > MORE * record["temporary"] + 2**20:
        yield f"{where}: temporary memory was {record['temporary']} bytes and is {found['temporary']}"
    if found["widened"] and not record["widened"]:
        yield f"{where}: 16-bit operands are made float32 before a product: {', '.join(found['widened'][:3])}"


def _list(collectives: list) -> str:
    return ", ".join(one if isinstance(one, str) else f"{one[1]} {one[0]}" for one in collectives) or "none"
