"""What a report says about the tuning of a sweep, from choices that are written by hand."""

import csv
import io
import os
from pathlib import Path

import pytest

from attnjax.config import cell_id
from attnjax.records.stored import read
from attnjax.report import build
from attnjax.report.tables import summarise
from attnjax.report.tuning import choices_in, tuning
from attnjax.sweep.choices import FILE, Choice, Choices, Trial, keep, ranked
from tests.report.synthetic import write_sweep

CANDIDATES = ({"train.learning_rate": 0.001}, {"train.learning_rate": 0.003}, {"train.learning_rate": 0.01})


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    write_sweep(tmp_path / "records", ("copy",), ("rope", "alibi"), 2)
    return tmp_path / "records"


def choices(root: Path, scores: dict[str, list[tuple[float, float]]]) -> Choices:
    """The choices of these encodings, with two tuning seeds."""
    cells = {}
    for run in read(root).runs:
        cells[run.config["model"]["encoding"]["name"]] = cell_id(run.config)
    families = []
    for number, (name, rows) in enumerate(scores.items()):
        trials = tuple(
            tuple(Trial(f"{number}{c}{s}" + "0" * 13, "done", score) for s, score in enumerate(row))
            for c, row in enumerate(rows)
        )
        ranks = ranked("exact_match", trials)
        best = ranks.index(min(ranks))
        families.append(Choice(f"{number:016x}", {"model.encoding": name}, "exact_match", trials, best, (cells[name],)))
    return Choices("Two seeds.", CANDIDATES, (7, 8), tuple(families))


BOTH = {"rope": [(0.5, 0.7), (0.9, 0.8), (0.1, 0.1)], "alibi": [(0.2, 0.2), (0.4, 0.4), (0.4, 0.4)]}


def test_a_report_shows_what_was_tried_and_chosen(swept: Path):
    keep(swept, choices(swept, BOTH))
    found = tuning(summarise(read(swept)), choices_in(swept)[0])
    assert "on the tuning seeds 7, 8." in found.text
    table = found.table
    assert table.candidate.tolist() == [f"train.learning_rate={x}" for x in (0.001, 0.003, 0.01)] * 2
    chosen = table[table.chosen].set_index("family")
    assert chosen["mean"].to_dict() == {"RoPE": pytest.approx(0.85), "ALiBi": pytest.approx(0.4)}
    assert chosen.warnings["ALiBi"].startswith("2 of 3 candidates have the best score; ")
    assert set(table.cells) == {run.cell for run in read(swept).runs}
    made = {path.name: path.read_text(encoding="utf-8") for path in build(swept) if path.suffix in (".csv", ".html")}
    assert '<td class="yes">0.850</td>' in made["report.html"]
    assert len(list(csv.DictReader(io.StringIO(made["tuning.csv"])))) == 6
    assert not [one for one in read(swept).skipped if "tuning" in str(one.path)]


def notes(root: Path) -> list[str]:
    found, remarks = choices_in(root)
    if found is None:
        return list(remarks)
    return list(tuning(summarise(read(root)), found).notes)


def test_edges_and_ties_are_at_the_beginning(swept: Path):
    keep(swept, choices(swept, {**BOTH, "rope": [(0.5, 0.7), (0.2, 0.2), (0.9, 0.8)]}))
    assert notes(swept) == [
        "At the edge of the range that was tried is the choice of 1 of 2 tuned families (see Tuning).",
        "The first of equal candidates is the choice of 1 of 2 tuned families (see Tuning).",
    ]


def test_cells_that_were_not_tuned_are_named(swept: Path):
    keep(swept, choices(swept, {"rope": BOTH["rope"]}))
    assert notes(swept) == ["Not tuned, beside cells that were: ALiBi."]


def test_a_sweep_that_could_have_been_tuned_says_that_it_was_not(swept: Path):
    assert notes(swept) == []
    keep(swept, Choices("Two seeds.", CANDIDATES, ()))
    (note,) = notes(swept)
    assert note.startswith("Not tuned: the config lists candidates in tune()")


@pytest.mark.parametrize("damage", ["{", "[]", '{"schema": 1}', '{"schema": 99}', '{"schema": 1, "candidates": 3}'])
def test_a_file_that_cannot_be_used_is_a_note(swept: Path, damage: str):
    (swept / FILE).write_text(damage)
    (note,) = notes(swept)
    assert note.startswith("How these runs were tuned is not known: tuning.json ")
    assert str(swept) not in note


def test_a_link_in_its_place_is_not_followed(swept: Path):
    keep(swept, choices(swept, BOTH))
    os.rename(swept / FILE, swept.parent / FILE)
    (swept / FILE).symlink_to(swept.parent / FILE)
    (note,) = notes(swept)
    assert "tuning.json is a link" in note
