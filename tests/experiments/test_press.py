"""Numbers of the page about the text of Press et al., against the table of cells that is made from the records."""

import csv
import json
import pathlib

import numpy as np
import pytest

from attnjax.report.intervals import of_runs
from attnjax.report.significance import sign_flip

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"
TESTS = {"separate windows": "perplexity_nonoverlapping", "sliding window": "perplexity_sliding"}
TRAINED = 64


def rows(table: str, **wanted: str) -> list[dict[str, str]]:
    """The rows of a committed table that have these cells."""
    found = csv.DictReader((EXPERIMENTS / table).read_text(encoding="utf-8").splitlines())
    return [row for row in found if wanted.items() <= row.items()]


def of_the_table() -> dict[tuple[str, int, str], dict[str, str]]:
    """The committed cells, by metric, multiple of the trained length and encoding."""
    cells = rows("published/table.csv", sweep="press")
    return {(row["metric"], int(row["our_lengths"]) // TRAINED, row["encoding"]): row for row in cells}


def of_the_page() -> list[tuple[tuple[str, int, str], str, str]]:
    """Key, ours and theirs of every cell of the page."""
    text = (EXPERIMENTS / "press/README.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    found, test = [], ""
    for line in lines:
        name, multiple, *values = (cell.strip() for cell in line.strip("|").split("|"))
        test = name or test
        for encoding, ours, theirs in zip(
            ("alibi", "t5", "rope", "sinusoidal"), values[::2], values[1::2], strict=True
        ):
            found.append(((TESTS[test], int(multiple), encoding), ours, theirs))
    return found


def rises(key: tuple[str, int, str]) -> np.ndarray:
    """The rise of the loss at a multiple of the trained length, of each of six runs, from the records."""
    metric, multiple, encoding = key
    metric, found = metric.replace("perplexity", "loss"), {}
    for run in rows("press/report/runs.csv"):
        folder = EXPERIMENTS / "press/records" / run["run"]
        if json.loads((folder / "config.json").read_text())["model"]["encoding"]["name"] == encoding:
            lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
            loss = {
                one["length"]: one["value"] for one in lines if one["metric"] == metric and one["split"] != "validation"
            }
            found[run["seed"]] = loss[multiple * TRAINED] - loss[TRAINED]
    return np.array([found[seed] for seed in sorted(found)])


def test_rope_in_sliding_windows_where_the_paper_has_none():
    """Above sinusoidal positions in each of six runs from five times the trained length on, and far below at twice."""
    for multiple in (5, 6, 7, 9, 24):
        key = ("perplexity_sliding", multiple)
        assert (rises((*key, "rope")) > rises((*key, "sinusoidal"))).all()
    key = ("perplexity_sliding", 2)
    assert (rises((*key, "rope")) < rises((*key, "sinusoidal"))).all()
    for multiple, p in ((7, 0.25), (9, 1.0)):
        key = ("perplexity_nonoverlapping", multiple)
        assert sign_flip(rises((*key, "rope")) - rises((*key, "sinusoidal"))) == p


def test_every_number_of_the_page_is_that_of_the_records():
    table, page = of_the_table(), of_the_page()
    assert len(page) == 5 * 4
    for key, ours, theirs in page:
        if key not in table:
            found = of_runs(rises(key))
            assert (ours, theirs) == (f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]", "not published")
            continue
        row = table[key]
        value, low, high, published = (
            float(row[name]) for name in ("value", "interval_low", "interval_high", "published")
        )
        assert (ours, theirs) == (f"{value:z.3f} [{low:z.3f}, {high:z.3f}]", f"{published:z.3f}")
        assert (row["kind"], row["runs"]) == ("95 %", "6")


@pytest.mark.parametrize(
    ("encoding", "loss"), [("ALiBi", "1.466"), ("Sinusoidal", "1.407"), ("RoPE", "1.369"), ("T5 bias", "1.347")]
)
def test_losses_at_the_trained_length(encoding, loss):
    found = rows("press/report/lengths.csv", variant=encoding, metric="loss_sliding")
    median = {int(row["length"]): float(row["median"]) for row in found}
    assert f"{median[TRAINED]:.3f}" == loss
    assert encoding == "ALiBi" or median[2 * TRAINED] > 1.5 > median[TRAINED]


def test_the_order_of_encodings():
    found = rows("published/agreement.csv", sweep="press")
    assert [sum(int(row[name]) for row in found) for name in ("pairs", "concordant", "discordant")] == [48, 47, 1]
    (other,) = [row["lengths"] for row in found if row["discordant"] != "0"]
    assert other == "12512 of 512"
    text = (EXPERIMENTS / "press/README.md").read_text(encoding="utf-8")
    assert "Of 48 pairs of encodings at the same multiple of the trained length 47 stand as in the" in " ".join(
        text.split()
    )
