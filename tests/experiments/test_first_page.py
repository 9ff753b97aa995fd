"""The numbers of the first page, and of the study's own page, are those of the committed report."""

import csv
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
STUDY = ROOT / "experiments" / "rope_vs_sinusoidal_paper"
FIRST = {"no encoding": "NoPE", "ALiBi": "ALiBi", "RoPE": "RoPE", "sinusoidal": "Sinusoidal embed_scale=yes"}
OWN = {
    **{name: name for name in ("NoPE", "T5 bias", "ALiBi", "RoPE", "Learned")},
    "Sinusoidal, scaled embeddings": "Sinusoidal embed_scale=yes",
    "Sinusoidal, embeddings as they are": "Sinusoidal embed_scale=no",
}


def report(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((STUDY / "report" / name).read_text(encoding="utf-8").splitlines()))


def table(page: pathlib.Path, head: str) -> tuple[list[str], dict[str, list[str]]]:
    """The header, and the cells of each row by its first one, of the table of a page whose first line begins so."""
    lines = page.read_text(encoding="utf-8").partition(f"\n| {head}")[2].partition("\n\n")[0].splitlines()
    cells = lambda line: [cell.strip() for cell in line.strip("| ").split("|")]
    return cells(f"| {head}{lines[0]}"), {row[0]: row[1:] for row in map(cells, lines[2:])}


def at(variant: str, length: str) -> dict[str, str]:
    rows = [row for row in report("lengths.csv") if (row["metric"], row["length"]) == ("exact_match", length)]
    (found,) = [row for row in rows if row["variant"] == variant]
    return found


@pytest.mark.parametrize("row", FIRST)
def test_the_table_of_the_first_page(row):
    header, rows = table(ROOT / "README.md", "past the training length")
    *medians, mean = rows[row]
    lengths = [cell.removeprefix("at ") for cell in header[1:-1]]
    assert medians == [f"{float(at(FIRST[row], length)['median']):.0%}".replace("%", " %") for length in lengths]
    (found,) = [one for one in report("table.csv") if (one["variant"], one["metric"]) == (FIRST[row], "exact_match")]
    median, low, high = (100 * float(found[f"median_past{end}"]) for end in ("", "_low", "_high"))
    assert mean == f"{median:.1f} % [{low:.1f}, {high:.1f}]"
    assert found["median_past_interval"] == "95 %"


@pytest.mark.parametrize("row", OWN)
def test_the_table_of_the_study(row):
    header, rows = table(STUDY / "README.md", "encoding |")
    for length, cell in zip((name.removeprefix("at ") for name in header[1:-1]), rows[row][:-1], strict=True):
        found = at(OWN[row], length)
        ends = f" [{float(found['low']):.2f}, {float(found['high']):.2f}]" if found["low"] else ""
        assert cell == f"{float(found['median']):.2f}{ends}", (row, length)


def test_the_difference_of_the_sentence_below_the_table():
    (pair,) = [
        row
        for row in report("paired.csv")
        if {row["variant"], row["less"]} == {"RoPE", "Sinusoidal embed_scale=yes"} and row["metric"] == "exact_match"
    ]
    ends = sorted(abs(100 * float(pair[f"mean_difference{end}"])) for end in ("", "_low", "_high"))
    page = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert f"(by {ends[1]:.1f} points, 95 % interval {ends[0]:.1f} to {ends[2]:.1f})" in page
    assert (pair["pairs"], float(pair["p"])) == ("10", pytest.approx(2 / 2**10))
