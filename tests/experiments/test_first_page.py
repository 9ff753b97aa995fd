"""The numbers of the first page, and of the study's own page, are those of the committed report."""

import csv
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
STUDY = ROOT / "experiments" / "rope_vs_sinusoidal_paper"
FIRST = {
    "no encoding": "NoPE",
    "ALiBi": "ALiBi",
    "T5's bias": "T5 bias",
    "RoPE": "RoPE",
    "sinusoidal": "Sinusoidal embed_scale=yes",
}
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


def at(variant: str, length: str, metric: str = "exact_match") -> dict[str, str]:
    rows = [row for row in report("lengths.csv") if (row["metric"], row["length"]) == (metric, length)]
    (found,) = [row for row in rows if row["variant"] == variant]
    return found


def overall(variant: str, metric: str) -> dict[str, str]:
    (found,) = [one for one in report("table.csv") if (one["variant"], one["metric"]) == (variant, metric)]
    return found


@pytest.mark.parametrize("row", FIRST)
def test_the_table_of_the_first_page(row):
    header, rows = table(ROOT / "README.md", "past the training length")
    lengths = [re.findall(r"at (\d+)$", cell) for cell in header[1:]]
    assert lengths == [["17"], ["20"], [], ["128"], ["512"]]
    *medians, mean = rows[row][:3]
    variant = FIRST[row]
    percent = lambda text: f"{float(text):.0%}".replace("%", " %")
    assert medians == [percent(at(variant, length)["median"]) for length in ("17", "20")]
    found = overall(variant, "exact_match")
    median, low, high = (100 * float(found[f"median_past{end}"]) for end in ("", "_low", "_high"))
    assert mean == f"{median:.1f} % [{low:.1f}, {high:.1f}]"
    assert found["median_past_interval"] == "95 %"
    losses = [f"{float(at(variant, length, 'loss_sliding')['median']):.3f}" for length in ("128", "512")]
    unfitted = overall(variant, "loss_sliding")["not_fitted"] == "yes"
    assert rows[row][3:] == (["not fitted"] * 2 if unfitted else losses)


def test_the_best_prediction_of_the_first_page():
    best = [f"{float(at('RoPE', length, 'loss_sliding')['bigram']):.3f}" for length in ("128", "512")]
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"the best prediction has {best[0]} at 128 and {best[1]} at 512" in page


@pytest.mark.parametrize("head", ["encoding | at 16", "encoding | at 64"])
def test_the_tables_of_the_study(head):
    metric, digits = ("exact_match", 2) if head.endswith("16") else ("loss_sliding", 3)
    header, rows = table(STUDY / "README.md", head)
    known = rows.keys() - {"*best prediction*"}
    assert len(known) == len(OWN)
    for name in known:
        variant = OWN[name.removesuffix(" (not fitted)")]
        assert (overall(variant, metric)["not_fitted"] == "yes") == name.endswith("(not fitted)")
        lengths = [cell.removeprefix("at ") for cell in header[1:-1]]
        for length, cell in zip(lengths, rows[name][:-1], strict=True):
            found = at(variant, length, metric)
            ends = f" [{float(found['low']):.{digits}f}, {float(found['high']):.{digits}f}]" if found["low"] else ""
            assert cell == f"{float(found['median']):.{digits}f}{ends}", (name, length)


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
