"""The table beside published numbers: each cell once, what differs, the order of encodings, and the committed files."""

import csv
import io
import itertools
import math
import pathlib

import numpy as np
import pytest

from attnjax.report.comparisons import pairs_of
from attnjax.report.published import cells
from attnjax.report.records import read
from attnjax.report.significance import sign_flip
from attnjax.report.summarise import summarise
from experiments.published.__main__ import main
from experiments.published.collecting import SOURCES, Source, collect
from experiments.published.page import draw, files, in_markdown
from tests.report.synthetic import config, lines, run_id, write_run

HERE = pathlib.Path(__file__).parents[2] / "experiments"


def sweep(folder: pathlib.Path, scores: dict[str, tuple[float, float]], seeds: int = 1, **changes) -> pathlib.Path:
    """Records of copying, trained on up to 20 tokens: of each encoding exact match at 20 and at 30."""
    task = {"name": "copy", "options": {"variant": "rsc"}, "form": "decoder", "length_min": 1, "length_max": 20}
    for name, (within, past) in scores.items():
        for seed in range(seeds):
            fields = config("copy", name, seed, **({"task": task} | changes))
            row = {"run": run_id(fields), "step": 4, "metric": "exact_match"}
            rows = [row | {"length": 20, "value": within, "split": "train"}]
            rows += [row | {"length": 30, "value": past, "split": "test"}]
            write_run(folder, fields, results=lines(rows))
    return folder


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def two(tmp_path: pathlib.Path) -> pathlib.Path:
    """A first sweep with four encodings, one of which did not fit, and a second with three, one of them new."""
    sweep(
        tmp_path / "first" / "records", {"nope": (1.0, 0.9), "alibi": (1.0, 0.1), "t5": (0.5, 0.4), "rope": (1.0, 0.2)}
    )
    sweep(tmp_path / "second" / "records", {"nope": (1.0, 0.3), "alibi": (1.0, 0.3), "sinusoidal": (1.0, 0.6)})
    return tmp_path


ASKED = (Source("first", "make first"), Source("second", "make second"), Source("third", "make third"))


def test_every_published_number_stands_once_and_the_first_sweep_comes_first(two: pathlib.Path):
    found = collect(two, ASKED)
    assert [(one.source.name, len(one.pairs)) for one in found.found] == [("first", 4), ("second", 1)]
    assert len({pair.cell for pair in found.pairs}) == len(found.pairs) == 5
    assert found.repeated == 2
    assert [one.name for one in found.absent] == ["third"]
    assert len(found.missing) + 5 == sum(cell.low > cell.trained for cell in cells())
    told = in_markdown(found)
    assert "- third: `make third`" in told
    assert "| published numbers with one of ours beside them | 5, of 1 papers |" in told
    rows = read_csv(files(found)["table.csv"])
    assert [row["sweep"] for row in rows] == ["first"] * 4 + ["second"]
    assert {row["encoding"]: row["value"] for row in rows}["nope"] == "0.9"


def test_the_order_of_encodings_by_hand(two: pathlib.Path):
    """First sweep, without T5, which has not fitted: NoPE .9, RoPE .2, ALiBi .1; published .986, 0, .289.

    NoPE before both is as published, RoPE before ALiBi is not: (2 - 1) / 3. One encoding alone has no order.
    """
    found = collect(two, ASKED)
    (row,) = read_csv(files(found)["agreement.csv"])
    assert (row["sweep"], row["pairs"], row["concordant"], row["discordant"]) == ("first", "3", "2", "1")
    assert float(row["tau_b"]) == pytest.approx(1 / 3)
    assert "T5" not in row["encodings"]
    assert "3: 2 in the published order, 1 the other way round, 0 tied" in in_markdown(found)
    assert "| not fitted; " in in_markdown(found)
    assert {row["encoding"]: row["fitted"] for row in read_csv(files(found)["table.csv"])}["t5"] == "0"


def test_differences_of_all_cells_are_told_once_and_those_of_one_beside_it(two: pathlib.Path):
    told = in_markdown(collect(two, ASKED))
    first = told.partition("## first")[2].partition("## second")[0]
    assert first.count("layers ") == 1, "of all cells"
    (rotary,) = [line for line in first.splitlines() if "rotary (partial" in line]
    assert "encoding: fraction 1 (0.25), layout half (interleaved)" in rotary
    assert first.count("fraction 1 (0.25)") == 1


def test_of_several_variants_that_which_differs_least_stands(tmp_path: pathlib.Path):
    folder = sweep(tmp_path / "first" / "records", {"rope": (1.0, 0.2)})
    near = {"encoding": {"name": "rope", "options": {"fraction": 0.25, "layout": "interleaved"}}}
    plain = config("copy", "rope", 0)["model"]
    sweep(folder, {"rope": (1.0, 0.7)}, model=plain | near)
    (pair,) = collect(tmp_path, ASKED[:1]).pairs
    assert pair.ours
    assert pair.ours.value == 0.7


def test_folders_that_a_person_names_come_first(two: pathlib.Path, tmp_path: pathlib.Path):
    newer = sweep(tmp_path / "newer", {"nope": (1.0, 0.5)})
    found = collect(two, ASKED, more=[newer])
    assert [(one.source.name, len(one.pairs)) for one in found.found] == [("newer", 1), ("first", 3), ("second", 1)]
    assert found.repeated == 3


@pytest.mark.slow
def test_the_figure_is_drawn_with_cells_of_both_kinds_and_with_none(two: pathlib.Path, tmp_path: pathlib.Path):
    for name, found in (("none", collect(two, ASKED)), ("both", collect(HERE))):
        (tmp_path / name).mkdir()
        made = draw(found, tmp_path / name)
        assert sorted(path.name for path in made) == ["figure.png", "figure.svg"]
        assert all(path.stat().st_size > 1000 for path in made)


@pytest.mark.parametrize("missing", ["nothing", "file"])
def test_a_folder_without_records_is_one_sentence(missing: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture):
    out = ["--out", str(tmp_path / "out"), "--no-figure", "--experiments", str(tmp_path)]
    more = [str(tmp_path / "away")] if missing == "file" else []
    assert main([*more, *out]) == 2
    told = capsys.readouterr().err
    assert told.startswith("published: error: ")
    assert ("there is no folder" in told) == (missing == "file")
    assert told.count("\n") == 1


def test_the_committed_tables_are_what_the_records_say():
    found = collect(HERE)
    for name, text in files(found).items():
        assert (HERE / "published" / name).read_text(encoding="utf-8") == text, (
            f"python -m experiments.published writes {name}"
        )
    replaced = {"rope_vs_sinusoidal_paper"}  # all of its cells are those of kazemnejad, which comes before it
    shown, absent = {one.source.name for one in found.found}, {one.name for one in found.absent}
    assert shown | absent | replaced == {source.name for source in SOURCES}
    assert not replaced & (shown | absent)
    readme = (HERE / "published" / "README.md").read_text(encoding="utf-8")
    assert f"**{len(found.pairs)} cells**" in readme
    orders = [one for sweep in found.found for one in sweep.agreements]
    compared = sum(math.comb(len(one.encodings), 2) for one in orders)
    assert f"{sum(one.concordant for one in orders)} of {compared} pairs" in readme


def test_the_pairs_that_medians_alone_order_are_those_of_the_records():
    """Of the copying tasks that all encodings fit: which pairs have a p above 0.05, and that the page prints it."""
    found = {}
    for task in summarise(read(HERE / "kazemnejad" / "records")).tasks:
        if task.unfitted:
            continue
        for one, other in itertools.combinations([row.scored for row in task.rows["exact_match"]], 2):
            p = sign_flip(np.array([one.past[i] - other.past[j] for i, j in pairs_of(one, other)]))
            variant = task.panel.label.rpartition("=")[2]
            found[variant, frozenset((one.variant.encoding, other.variant.encoding))] = p
    assert len(found) == 20
    assert {key: 32 * p for key, p in found.items() if p > 0.05} == {
        ("rsc", frozenset(("nope", "rope"))): 2,
        ("rsc", frozenset(("t5", "sinusoidal"))): 3,
        ("rdc", frozenset(("t5", "alibi"))): 4,
    }
    text = " ".join((HERE / "published" / "README.md").read_text().split())
    assert "NoPE and RoPE (p = 0.063), and T5's bias and sinusoidal positions (p = 0.094)" in text
    assert "with p of 0.031 but for T5's bias and ALiBi on `rdc` (p = 0.125)" in text
