"""Tables of README.md, from records.jsonl."""

from pathlib import Path

import pandas as pd

from experiments.study import markdown

RECORDS = Path(__file__).with_name("records.jsonl")
TARGETS = ["h100:8", "v5e:2x4", "v6e:2x4"]


def read() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the compiled programs, and the comparisons that ran on a device."""
    rows = pd.read_json(RECORDS, lines=True)
    compiled = rows.loc[rows.kind == "compiled", ["device", "case", "temporary", "error"]].rename(
        columns={"error": "refused"}
    )
    cases = pd.DataFrame(compiled.case.to_list(), compiled.index, ["sort", "name", "length", "variant"])
    return compiled.join(cases), rows[rows.kind == "compared"]


def tables() -> dict[str, str]:
    """Returns the tables of the README by name."""
    compiled, compared = read()
    return {
        "counts": counts(compiled),
        "training": training(compiled),
        "attention": attention(compiled),
        "refused": refused(compiled),
        "h200": h200(compared),
        "above": above(compared),
        "compared": str(compared.encoding.nunique()),
    }


def counts(rows: pd.DataFrame) -> str:
    """How many programs of each kind compiled on each topology."""
    found = rows[rows.refused.isna()].pivot_table(
        index="device", columns="sort", values="length", aggfunc="count", fill_value=0
    )
    names = {"data": "attention over a batch", "ring": "attention in a ring", "train": "training steps"}
    names |= {"config": "programs of configs", "evaluate": "evaluations"}
    return markdown(found[[*names]].rename(columns=names).rename_axis(None, axis=1).reset_index())


def training(rows: pd.DataFrame) -> str:
    """Temporary memory of training steps."""
    found = rows[(rows.sort == "train") & rows.device.isin(TARGETS)]
    return memory(found, {"name": "model", "variant": "mesh", "length": "T"})


def attention(rows: pd.DataFrame) -> str:
    """Temporary memory of a gradient under each encoding."""
    found = rows[rows.length.isin([4096, 8192]) & (rows.variant == "") & rows.device.isin(TARGETS)]
    found = found.assign(
        device=found.sort.map({"data": "batch", "ring": "ring"}) + ", " + found.device.str.partition(":")[0]
    )
    return memory(found, {"name": "encoding"})


def memory(rows: pd.DataFrame, names: dict[str, str]) -> str:
    """MiB by the columns named and by device, in the order of the records."""
    table = rows.assign(MiB=rows.temporary / 2**20).rename(columns=names)
    found = table.pivot_table(index=[*names.values()], columns="device", values="MiB", sort=False)
    return markdown(found.rename_axis(None, axis=1).reset_index(), "{:,.0f}".format)


def refused(rows: pd.DataFrame) -> str:
    """Programs that the compiler refuses."""
    bad = rows[rows.refused.notna()]
    return "; ".join(f"{row.device}, {row.sort} of {row.length:,} tokens, {row.variant}" for row in bad.itertuples())


def h200(rows: pd.DataFrame) -> str:
    """The largest error of each way to multiply, and how many programs are within their bound."""
    lines = []
    for (device, way, bound), found in rows.groupby(["device", "way", "bound"], sort=False):
        worst = found.sort_values("error").iloc[-1]
        within = f"{(found.error <= found.bound).sum()} of {len(found)}"
        lines.append(
            [device, way, within, f"{found.cases.sum():,.0f}", f"{bound:.1e}", f"{worst.error:.1e}", worst.encoding]
        )
    return markdown(
        pd.DataFrame(lines, columns=["device", "products", "within", "cases", "bound", "largest error", "under"])
    )


def above(rows: pd.DataFrame) -> str:
    """Programs above their bound."""
    bad = rows[~(rows.error <= rows.bound)]
    return ", ".join(f"{row.encoding} ({row.implementation}, {row.error:.2f})" for row in bad.itertuples())
