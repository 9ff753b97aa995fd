"""The page of the records: a table for each kind of case, a program a row and a topology a column."""

import collections
import pathlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from attnjax.report import formatting
from experiments import recorded
from experiments.devices.attention import DISTANCES, HEAD_DIM, HEADS, POSITIONS, learned
from experiments.devices.cases import DEVICES, TARGETS, Case
from experiments.devices.compiling import READER, budget, faults, total
from experiments.recorded import Record

MIB = 2**20
SHORT = {"collective-permute": "permute", "all-reduce": "reduce", "all-gather": "GATHER", "all-to-all": "ALL-TO-ALL"}
CELL = (
    "Cells of the tables: temporary MiB / all MiB of a device; collectives, those in a loop of unknown length once; products "
    "with a 16-bit operand made float32 before; seconds to compile. **Bold**: over the budget."
)


class Results(NamedTuple):
    """Where and with what it was compiled, and the last record of each (topology, case)."""

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
    rows = found.rows
    parts = [
        _opening(found),
        _faults(rows),
        _widened(rows),
        _training(rows),
        _evaluation(rows),
        _configs(rows),
        _masks(rows),
    ]
    parts += [_attention(rows), _sums(rows), _elsewhere(rows)]
    parts.append(["Made by `python -m experiments.devices`; all numbers are in [records.jsonl](records.jsonl)."])
    return "\n".join("\n".join(part) + "\n" for part in parts if part)


def _opening(found: Results) -> list[str]:
    about, rows = found
    named = lambda field: sorted({row[field] for row in rows.values() if row.get(field)})
    sources = collections.Counter(row.get("source") for row in rows.values())
    unnamed = sources.pop(None, 0)
    told = [f"{count} with sources `{source}`" for source, count in sources.most_common()]
    told += [f"{unnamed} with earlier ones that were not named"] if unnamed else []
    refused = sum(case.refused and "error" in row for (_, case), row in rows.items())
    meant = (
        f"; {refused} that {'is' if refused == 1 else 'are'} meant to be refused {'was' if refused == 1 else 'were'}"
        if refused
        else ""
    )
    compiled = [row for row in rows.values() if "error" not in row]
    return [
        "# What compiles for accelerators that are not here",
        "",
        "Gradients of attention, training steps, an evaluation and every config of the project, each for eight devices. "
        f"Compiled from {about['date']} on with jax {', '.join(named('jax'))}; {'; '.join(named('compiler'))}, "
        f"on a machine without accelerators ({about['processor']}).",
        "",
        "**Compiled, not run.** The programs lower, partition over the mesh and pass the compiler. This says nothing about "
        "numbers or speed, and for a GPU memory is counted and not tried. Seconds are those of a busy machine.",
        "",
        f"{len(compiled)} of {len(rows)} programs compiled ({', '.join(told)}){meant}. `python -m experiments.devices "
        "--again` compiles those again whose sources differ from the present ones.",
        "",
        CELL,
    ]


def _widened(rows: dict[tuple[str, Case], Record]) -> list[str]:
    compiled = [row for row in rows.values() if "error" not in row]
    wide = [(target, case) for (target, case), row in rows.items() if row.get("widened")]
    text = f"{len(wide)} of {len(compiled)} programs have a product with a 16-bit operand that was found to be made float32"
    if wide:
        named = ", ".join(dict.fromkeys(case.name for _, case in wide))
        text += f": those of {named}, for {', '.join(dict.fromkeys(target for target, _ in wide))}"
    text += "."
    early = [target for (target, _), row in rows.items() if "error" not in row and row.get("reader", 1) < READER]
    if early:
        told = ", ".join(f"{early.count(target)} for {target}" for target in dict.fromkeys(early))
        text += (
            f" {len(early)} ({told}) were read by an earlier reader, which lost an operand in the state of a loop and in a "
            "tuple, and did not know calls of cuBLAS as products: of them this says less."
        )
    text += (
        " Before the compiler has changed them, 3 products of Transformer-XL, 4 of CoPE and 11 of PaTH are in float32: scores "
        "that multiply queries or keys, which are float32 there, by other numbers; those of the other encodings have none "
        "(`tests/attention/test_sixteen_bit_products.py` counts them). RoPE at remapped positions turns queries and keys in "
        "float32 and multiplies them as they are then, which does not count here."
    )
    return [text]


def _faults(rows: dict[tuple[str, Case], Record]) -> list[str]:
    wrong = [fault for row in rows.values() for fault in faults(row)]
    if not wrong:
        return ["No program is refused, or takes more temporary memory than its budget, or gathers what is spread."]
    over = [(target, case) for (target, case), row in rows.items() if row.get("temporary", 0) > budget(row)]
    text = [
        f"{len(wrong)} of them are refused or take more temporary memory than the budget that their section names:",
        "",
    ]
    text += [f"* {fault}" for fault in wrong if " are over the budget of " not in fault]
    by_case = collections.defaultdict(list)
    for target, case in over:
        by_case[case].append(f"{target} ({rows[target, case]['temporary'] / budget(rows[target, case]):.2f}x)")
    text += [f"* over budget: {case}: {', '.join(targets)}" for case, targets in by_case.items()]
    if any(case.ring and case.name == "path" for case in by_case):
        kept = (DEVICES - 1) * HEADS * HEAD_DIM * 4 / 2**10
        text += [
            "",
            f"PaTH has in a ring what the budget does not count: the queries as they were before each of {DEVICES - 1} rounds, "
            f"{kept:.0f} KiB a token. This is a part of what it is over; the rest was not looked into.",
        ]
    return text


def _training(rows: dict[tuple[str, Case], Record]) -> list[str]:
    chosen = [one for one in rows if one[1].kind == "train" and one[0] in TARGETS]
    if not chosen:
        return []
    return [
        "## A training step of each family",
        "",
        "Four scanned layers, in the encoder-decoder two and two that are not scanned; D = 512, F = 2,048, 8 heads, RoPE, "
        "AdamW, bfloat16. Each device has 4 examples of T tokens, in a ring of eight 4 examples of T / 8 tokens, in a "
        "population of eight a model with 4 examples. The budget of temporary memory is 1.5 times a count by hand of what the "
        "backward pass keeps (12 D + 4 F numbers a token and layer), four tables of logits and three copies of the "
        "parameters, and 32 MiB (`runs.py`). A table of scores of every layer would be over it.",
        "",
        *_table(rows, chosen, ("model, mesh, T",), lambda case: (f"{case.name}, {case.variant}, {case.length:,}",)),
    ]


def _evaluation(rows: dict[tuple[str, Case], Record]) -> list[str]:
    chosen = [one for one in rows if one[1].kind == "evaluate"]
    if not chosen:
        return []
    length = chosen[0][1].length
    text = [
        "## An evaluation at a length that one chip cannot hold",
        "",
        f"One example of {length:,} tokens, two scanned layers, D = 4,096, F = 16,384, bfloat16. With `population=8` each "
        "device measures a model of its own, with the whole example; with `sequence=8` all share one example in a ring. The "
        "budget is 1.5 times 6 D + 2 F numbers a token, the logits and a copy of the parameters.",
        "",
    ]
    for target, case in chosen:
        row = rows[target, case]
        told = f"refused: {row['error']}" if "error" in row else _cell(row)
        text.append(f"* {target}, {case.variant}: {told}")
    return text


def _configs(rows: dict[tuple[str, Case], Record]) -> list[str]:
    chosen = [one for one in rows if one[1].kind == "config"]
    if not chosen:
        return []
    most: dict[str, tuple[str, Case]] = {}
    for one in chosen:
        most[one[1].name] = max(most.get(one[1].name, one), one, key=lambda one: rows[one]["runs"])
    largest = [one for one in chosen if one[1] == most[one[1].name][1]]
    label = lambda case: _label(next(rows[target, case] for target in TARGETS if (target, case) in rows), case)
    text = [
        "## Every config",
        "",
        "What `attnjax compile CONFIG --topology NAME` says, of the program that trains the most runs of each config: examples "
        "over eight devices where batches allow it, otherwise the runs (`--mesh population=8`). A config without a row has no "
        "record yet. The budget is that of training steps, with three tables of scores a layer where they are so small that "
        "attention computes them whole.",
        "",
        *_table(rows, largest, ("config", "runs, mesh, task, encoding"), label),
    ]
    every = collections.defaultdict(list)
    for target, case in chosen:
        if "error" not in rows[target, case]:
            every[target, case.name].append(rows[target, case])
    many = {one: found for one, found in every.items() if len(found) > 1}
    if many:
        text += ["", "More programs of a config, where more than one was compiled:", ""]
        text += ["| config | topology | programs | most temporary MiB | most MiB | collectives | seconds |"]
        text += ["| --- | --- | ---: | ---: | ---: | --- | ---: |"]
    for (target, name), found in many.items():
        kinds = sorted({SHORT.get(kind, kind) for row in found for kind, *_ in row["collectives"]})
        peaks = [f"{max(row[field] for row in found) / MIB:,.0f}" for field in ("temporary", "memory")]
        seconds = sum(row["seconds"] for row in found)
        text.append(
            f"| {name} | {target} | {len(found)} | {peaks[0]} | {peaks[1]} | {', '.join(kinds) or 'none'} | {seconds:.0f} |"
        )
    return text


def _label(row: Record, case: Case) -> tuple[str, str]:
    return case.name, f"{row['runs']}, {row['mesh']}, {row['subject']}"


def _masks(rows: dict[tuple[str, Case], Record]) -> list[str]:
    chosen = [one for one in rows if one[1].kind == "ring" and one[1].variant]
    if not chosen:
        return []
    return [
        "## A ring under other masks",
        "",
        f"Causal, T = {chosen[0][1].length:,} over eight devices: with a window of 1,024 keys, packed segments, a ragged "
        "length, and in zigzag order. The budget is that of attention, below.",
        "",
        *_table(rows, chosen, ("encoding", "mask"), lambda case: (case.name, case.variant)),
    ]


TITLES = (
    ("data", "A batch over devices"),
    ("ring", "A ring: one sequence over devices"),
)


def _attention(rows: dict[tuple[str, Case], Record]) -> list[str]:
    chosen = [one for one in rows if one[1].kind in ("data", "ring") and not one[1].variant and one[0] in TARGETS]
    if not chosen:
        return []
    about = (
        "Gradients of causal attention with respect to q, k, v, the content and everything learned, in bfloat16, with 8 query "
        "heads, 2 key heads and 128 channels a head. The budget of temporary memory is 64 KiB for each token of a device, 32 "
        "times its mapped queries (twice as much under PoPE, which maps them to twice as many channels)."
    )
    text = ["## Attention under every encoding", "", about]
    for kind, length in dict.fromkeys((case.kind, case.length) for _, case in chosen):
        these = [one for one in chosen if (one[1].kind, one[1].length) == (kind, length)]
        text += ["", f"### {dict(TITLES)[kind]}, T = {length:,}", ""]
        text += _table(rows, these, ("encoding",), lambda case: (case.name,))
    return text


def _sums(rows: dict[tuple[str, Case], Record]) -> list[str]:
    """What devices add up where a batch is over them, for every encoding that learns."""
    columns = {"T = 512": ("data", 512), "T = 4,096": ("data", 4096)}
    names = dict.fromkeys(case.name for _, case in rows if case.kind == "data" and learned(case.name))

    def most(name: str, kind: str, length: int) -> int | None:
        case = Case(kind, name, length)
        return max((total(rows[target, case]) for target in TARGETS if (target, case) in rows), default=None)

    found = {name: [most(name, *of) for of in columns.values()] for name in names}
    if not found:
        return []
    early = [name for name in names if name in DISTANCES or name in POSITIONS]
    halves = [name for name in names if name not in early and max(n or 0 for n in found[name][:2]) < learned(name)]
    kib = lambda size: formatting.NONE if size is None else f"{size / 2**10:,.1f}"
    table = formatting.markdown_table(
        ("encoding, KiB", "learned, in float32", *columns),
        [(name, kib(learned(name)), *map(kib, sizes)) for name, sizes in found.items()],
    )
    return [
        "## What devices add up",
        "",
        "Bytes that each device hands to all-reduces where a batch is over devices, the most of the topologies, beside those "
        f"of what is learned. For comparison, its queries have {4096 * HEADS * HEAD_DIM * 2 / 2**10:,.0f} KiB at T = 4,096.",
        "",
        table.rstrip(),
        "",
        f"What {', '.join(early)} add grows with T: a number or a vector for each distance, or for each position. These do not "
        "depend on the example, and XLA adds over examples, and so over devices, before it adds over distances or positions.",
        "",
        f"What {', '.join(halves)} add is less than what they learn, because their matrices meet the tokens in bfloat16: the "
        "gradients of these are added over devices in bfloat16, 2 bytes a number.",
        "",
        "Neither is so in training: inside `jax.shard_map`, where parameters were made varying before they meet anything "
        "(`varying_over_batch` in `attnjax/train/mesh.py`), devices add the gradients of parameters alone, in float32 "
        "(`tests/attention/test_batch_over_devices.py`, `tests/train/test_precision.py`).",
    ]


def _elsewhere(rows: dict[tuple[str, Case], Record]) -> list[str]:
    chosen = [one for one in rows if one[0] not in TARGETS and not one[1].refused]
    if not chosen:
        return []
    return ["## Other topologies", "", *_table(rows, chosen, ("program",), lambda case: (str(case),))]


def _table(
    rows: dict[tuple[str, Case], Record],
    chosen: Iterable[tuple[str, Case]],
    heading: tuple[str, ...],
    label: Callable[[Case], tuple[str, ...]],
) -> list[str]:
    """A row for each case, a column for each topology that one of them was compiled for."""
    chosen = list(chosen)
    targets = list(dict.fromkeys(target for target, _ in chosen))
    text = ["| " + " | ".join([*heading, *targets]) + " |", "| --- " * (len(heading) + len(targets)) + "|"]
    for case in dict.fromkeys(case for _, case in chosen):
        cells = [_cell(rows.get((target, case))) for target in targets]
        text.append("| " + " | ".join([*label(case), *cells]) + " |")
    return text


def _cell(row: Record | None) -> str:
    if row is None:
        return "not compiled"
    if "error" in row:
        return "refused"
    temporary = f"{row['temporary'] / MIB:,.0f}"
    told = [f"{f'**{temporary}**' if row['temporary'] > budget(row) else temporary} / {row['memory'] / MIB:,.0f}"]
    told += [", ".join(f"{count} {SHORT.get(kind, kind)}" for kind, count, _, _ in row["collectives"])]
    told += [f"{len(row['widened'])} float32"] if row["widened"] else []
    return "; ".join(part for part in [*told, f"{row['seconds']:.0f} s"] if part)
