"""The table of README.md, from records.csv."""

from pathlib import Path

import pandas as pd

from experiments.study import markdown

RECORDS = Path(__file__).with_name("records.csv")
BOUNDS = {"float64": 1e-9, "float32": 1e-4}


def tables() -> dict[str, str]:
    """Returns the tables of the README by name."""
    rows = pd.read_csv(RECORDS, keep_default_na=False, na_values=[""])
    columns = [f"{part}, {dtype}" for dtype in BOUNDS for part in ("output", "caches", "loss", "gradients")]
    within = all((rows[name].dropna() <= BOUNDS[name.split(", ")[1]]).all() for name in columns)
    shown = rows[["architecture", *columns, "same tokens"]]
    bounds = " and ".join(f"{bound:.0e} in {dtype}" for dtype, bound in BOUNDS.items())
    return {
        "table": markdown(shown, lambda x: f"{x:.0e}" if x else "0"),
        "within": f"{'All' if within else 'Not all'} are within {bounds}",
    }
