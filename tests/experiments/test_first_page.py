"""The numbers of the first page, and of the study's own page, are those of the committed report."""

import csv
import json
import pathlib
import re

import numpy as np
import pytest

from attnjax.report.intervals import of_mean
from attnjax.report.significance import sign_flip

ROOT = pathlib.Path(__file__).parents[2]
STUDY = ROOT / "experiments" / "rope_vs_sinusoidal_paper"
METRIC = {"copy": "exact_match", "markov": "loss_sliding", "text": "loss_sliding"}
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


def row(name: str, task: str, variant: str, **more: str) -> dict[str, str]:
    """The one row of a table of the report that has the metric of the task, and these cells."""
    wanted = {"task": task, "metric": METRIC[task], "variant": variant, **more}
    (found,) = [one for one in report(name) if wanted.items() <= one.items()]
    return found


def at(task: str, variant: str, length: str) -> dict[str, str]:
    return row("lengths.csv", task, variant, length=length)


def overall(task: str, variant: str) -> dict[str, str]:
    return row("table.csv", task, variant)


def is_unfitted(task: str, variant: str) -> bool:
    return overall(task, variant)["not_fitted"] == "yes"


@pytest.mark.parametrize("name", FIRST)
def test_the_table_of_the_first_page(name):
    header, rows = table(ROOT / "README.md", "past the training length")
    lengths = [re.findall(r"at (\d+)$", cell) for cell in header[1:]]
    assert lengths == [["17"], ["20"], [], ["128"], ["512"], ["128"], ["512"]]
    variant = FIRST[name]
    percent = lambda text: f"{float(text):.0%}".replace("%", " %")
    assert rows[name][:2] == [percent(at("copy", variant, length)["median"]) for length in ("17", "20")]
    found = overall("copy", variant)
    median, low, high = (100 * float(found[f"median_past{end}"]) for end in ("", "_low", "_high"))
    assert rows[name][2] == f"{median:.1f} % [{low:.1f}, {high:.1f}]"
    assert found["median_past_interval"] == "95 %"
    for task, cells in (("markov", rows[name][3:5]), ("text", rows[name][5:])):
        losses = [f"{float(at(task, variant, length)['median']):.3f}" for length in ("128", "512")]
        assert cells == (["not fitted"] * 2 if is_unfitted(task, variant) else losses)


def test_the_predictions_that_the_first_page_sets_beside():
    page = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    best = [f"{float(at('markov', 'RoPE', length)['bigram']):.3f}" for length in ("128", "512")]
    assert f"the best prediction has {best[0]} at 128 and {best[1]} at 512" in page
    unigram = [f"{float(at('text', 'RoPE', length)['unigram']):.2f}" for length in ("128", "512")]
    trigram = {f"{float(at('text', 'RoPE', length)['trigram']):.2f}" for length in ("128", "512")}
    assert f"the unigram model has {unigram[0]} at 128 and {unigram[1]} at 512" in page
    assert f"the trigram model {trigram.pop()} at both" in page
    assert not trigram
    assert float(at("text", "NoPE", "64")["median"]) > float(at("text", "NoPE", "64")["trigram"])


HEADS = {
    "copy": "encoding | at 16",
    "markov": "encoding | at 64 | at 72 | at 128",
    "text": "encoding | at 64 | at 72 | at 96",
}


@pytest.mark.parametrize("task", HEADS)
def test_the_tables_of_the_study(task):
    digits = 2 if task == "copy" else 3
    header, rows = table(STUDY / "README.md", HEADS[task])
    known = {name for name in rows if not name.startswith("*")}
    assert len(known) == len(OWN)
    for name in known:
        variant = OWN[name.removesuffix(" (not fitted)")]
        assert is_unfitted(task, variant) == name.endswith("(not fitted)")
        lengths = [cell.removeprefix("at ") for cell in header[1:-1]]
        for length, cell in zip(lengths, rows[name][:-1], strict=True):
            found = at(task, variant, length)
            ends = f" [{float(found['low']):.{digits}f}, {float(found['high']):.{digits}f}]" if found["low"] else ""
            assert cell == f"{float(found['median']):.{digits}f}{ends}", (name, length)
        found = overall(task, variant)
        ends = [f"{float(found[f'median_past_{end}']):.3f}" for end in ("low", "high") if found[f"median_past_{end}"]]
        assert rows[name][-1] == f"{float(found['median_past']):.3f}" + (f" [{', '.join(ends)}]" if ends else "")


def test_the_differences_of_the_sentence_below_the_table():
    page = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    copied = "points over the tested lengths, 95 % interval"
    for task, factor, digits, unit, over in (
        ("copy", 100, 1, copied, ""),
        ("text", 1, 2, "nats,", ", over runs and files of the test"),
    ):
        pair = row("paired.csv", task, "Sinusoidal embed_scale=yes", less="RoPE")
        ends = [abs(factor * float(pair[f"mean_difference{end}"])) for end in ("", "_low", "_high")]
        low, mean, high = (f"{end:.{digits}f}" for end in sorted(ends))
        assert f"(by {mean} {unit} {low} to {high}{over})" in page
        assert (int(pair["documents"]) > 20) == (task == "text")
        assert (pair["pairs"], float(pair["p"])) == ("10", pytest.approx(2 / 2**10))


def paired(task: str, length: int) -> np.ndarray:
    """RoPE less sinusoidal positions by seed, at a tested length, from the records."""
    losses: dict[tuple[str, int], float] = {}
    for run in report("runs.csv"):
        if run["task"] == task and run["variant"] in ("RoPE", "Sinusoidal embed_scale=yes"):
            lines = (STUDY / "records" / run["run"] / "results.jsonl").read_text(encoding="utf-8").splitlines()
            found = [json.loads(line) for line in lines]
            (value,) = [
                one["value"]
                for one in found
                if (one["metric"], one["length"]) == (METRIC[task], length) and one["split"] == "test"
            ]
            losses[run["variant"], int(run["seed"])] = value
    return np.array([losses["RoPE", seed] - losses["Sinusoidal embed_scale=yes", seed] for seed in range(10)])


def test_no_difference_is_shown_at_any_length_on_markov_chains_and_at_the_longest_on_text():
    """What the first page says of single lengths; p of all sign flips, uncorrected."""
    beyond = [int(one) for one in overall("markov", "RoPE")["tested_past"].split()]
    assert min(sign_flip(paired("markov", length)) for length in beyond) > 0.05
    assert min(sign_flip(paired("text", length)) for length in (256, 512)) > 0.05
    assert max(sign_flip(paired("text", length)) for length in (65, 72, 96, 128)) < 0.01
    page = (STUDY / "README.md").read_text(encoding="utf-8")
    for task, length in (("text", 256), ("text", 512), ("markov", 128), ("markov", 512)):
        found = of_mean(paired(task, length))
        digits = 2 if task == "text" else 3
        for end in (found.value, found.low, found.high):
            assert f"{end:.{digits}f}" in page
