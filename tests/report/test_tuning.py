"""What a report says about the tuning of a sweep, from choices that are written by hand."""

import csv
import importlib
import io
import json
import os
import re
from pathlib import Path

import pytest

from attnjax.config import cell_id
from attnjax.report import build
from attnjax.report.records import read
from attnjax.report.summarise import summarise
from attnjax.report.tuning import choices_in, tuned
from attnjax.sweep.choices import FILE, Choice, Choices, Trial, keep, ranked
from tests.report.payloads import PAYLOADS
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


def files(root: Path) -> dict[str, str]:
    return {
        path.name: path.read_text(encoding="utf-8") for path in build(root) if path.suffix in (".md", ".csv", ".html")
    }


def test_a_report_shows_what_was_tried_and_chosen(swept: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.import_module("attnjax.report.build"), "write_figures", lambda target, summary: [])
    keep(swept, choices(swept, BOTH))
    made = files(swept)
    assert (
        "1. train.learning_rate=0.001\n2. train.learning_rate=0.003\n3. train.learning_rate=0.01\n" in made["table.md"]
    )
    assert "| RoPE | exact match, free running | 0.600 | **0.850** | 0.100 | 2 |  |" in made["table.md"]
    tie = "2 of 3 candidates have the best score; the first of them was chosen"
    assert f"| ALiBi | exact match, free running | 0.200 | **0.400** | 0.400 | 2 | {tie} |" in made["table.md"]
    assert (
        "on the tuning seeds 7, 8. Of the candidates, the one with the best mean validation score" in made["table.md"]
    )
    assert '<a href="#tuning">Tuning</a>' in made["report.html"]
    assert '<td class="yes">0.850</td>' in made["report.html"]
    rows = list(csv.DictReader(io.StringIO(made["tuning.csv"])))
    assert len(rows) == 12
    chosen = [(row["family"], row["changes"], row["seed"], row["score"]) for row in rows if row["chosen"] == "1"]
    assert chosen[:2] == [
        ("RoPE", '{"train.learning_rate": 0.003}', seed, x) for seed, x in (("7", "0.9"), ("8", "0.8"))
    ]
    assert {row["cells"] for row in rows} == {run.cell for run in read(swept).runs}
    assert files(swept) == made, "the same records give the same bytes"
    assert not [one for one in read(swept, [swept / "report"]).skipped if "tuning" in one.path]


def notes(root: Path) -> list[str]:
    found, remarks = choices_in(root)
    if found is None:
        return list(remarks)
    summary = summarise(read(root))
    return list(tuned(summary, found)[0].notes[len(summary.notes) :])


def test_edges_and_ties_are_at_the_beginning(swept: Path):
    keep(swept, choices(swept, {**BOTH, "rope": [(0.5, 0.7), (0.2, 0.2), (0.9, 0.8)]}))
    assert notes(swept) == [
        "At the edge of the range that was tried, in 1 of 2 families: what RoPE chose (see Tuning).",
        "First of equal candidates, in 1 of 2 families: what ALiBi chose (see Tuning).",
    ]


def test_cells_that_were_not_tuned_are_named(swept: Path):
    keep(swept, choices(swept, {"rope": BOTH["rope"]}))
    assert notes(swept) == ["Not tuned, beside cells that were: ALiBi."]


def test_a_sweep_that_could_have_been_tuned_says_that_it_was_not(swept: Path):
    assert notes(swept) == []
    keep(swept, Choices("Two seeds.", CANDIDATES, ()))
    assert notes(swept) == [
        "Not tuned: the config lists candidates in tune(), and its runs were trained with the values as they are written "
        "(--no-tune)."
    ]


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
    assert (
        note
        == "How these runs were tuned is not known: tuning.json is a link; in a folder of results links are not followed"
    )


def test_texts_of_others_are_shown_and_do_nothing(swept: Path):
    keep(swept, choices(swept, BOTH))
    table, summary = json.loads((swept / FILE).read_text()), summarise(read(swept))
    for payload in PAYLOADS:
        table["candidates"] = [{payload: one} for one in (1, 2, 3)]
        table["families"][0] |= {"changes": {payload: payload}, "cells": []}
        (swept / FILE).write_text(json.dumps(table))
        chosen, _ = choices_in(swept)
        assert chosen is not None
        _, found = tuned(summary, chosen)
        section = found.section()
        assert set(re.findall(r"<(\w+)", section)) <= {
            "section",
            "h2",
            "p",
            "div",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        }
        assert not re.search(r"<[^>]*\son\w+=", section)
        assert found.markdown().count("\n") == 12, "each row has one line"
        for cell in (cell for row in csv.reader(io.StringIO(found.csv())) for cell in row):
            assert not cell.startswith(("=", "@"))
