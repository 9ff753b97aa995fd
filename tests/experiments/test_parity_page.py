"""The record of parity: its page is made from it alone, it has every case, and what is out of tolerance is said."""

import copy
import json
import pathlib
import re

import pytest

from experiments.parity import page
from experiments.parity.__main__ import main
from experiments.parity.cases import CASES

FOLDER = pathlib.Path(__file__).parents[2] / "experiments" / "parity"
GOOD = {"output": 1e-15, "caches": None, "loss": 0.0, "gradients": 1e-12, "tensors": 3}
RECORD = {"case": "A_1", "class": "B", "tokens": 40, "float64": GOOD, "float32": {**GOOD, "caches": 9.9e-5}}
RECORD |= {"round_trip": True, "transformers_reads_it": True, "generated": {"equal": 24, "tokens": 24}}


def changed(**fields):
    """The record with fields of float64, or of itself, replaced."""
    record = copy.deepcopy(RECORD)
    for name, value in fields.items():
        (record["float64"] if name in GOOD else record)[name] = value
    return record


def test_what_is_out_of_tolerance_is_said():
    assert page.failures(RECORD) == []
    assert page.failures(changed(loss=1.1e-9)) == ["loss in float64 differs by 1.1e-09"]
    assert page.failures(changed(gradients=float("nan"))) == ["gradients in float64 differs by nan"]
    assert page.failures(changed(generated={"equal": 23, "tokens": 24})) == ["other tokens"]
    assert page.failures(changed(round_trip=False)) == ["does not come back"]
    assert page.failures(changed(transformers_reads_it=False)) == ["does not come back"]
    assert page.failures(changed(caches=1.0, generated=None)) == ["caches in float64 differs by 1.0e+00"]


def test_the_row_of_a_case():
    row = page.table([RECORD]).splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:8] == ["A_1", "B", "40", "1e-15", "\N{EN DASH}", "0", "1e-12", "1e-15"]
    assert cells[-2:] == ["24 of 24", "yes"]


def test_the_page_is_made_anew_from_the_record(tmp_path, capsys):
    (tmp_path / page.RECORDS).write_bytes((FOLDER / page.RECORDS).read_bytes())
    assert main(["--render", str(tmp_path)]) == 0
    assert (tmp_path / page.PAGE).read_bytes() == (FOLDER / page.PAGE).read_bytes()


def test_the_record_has_every_case_within_tolerance():
    about, records = page.read(FOLDER)
    assert [one["case"] for one in records] == ["Transformer (2017)", *(case.name for case in CASES)]
    assert [what for one in records for what in page.failures(one)] == []
    assert {"date", "jax", "torch", "transformers"} <= about.keys()
    texts = [path.read_text() for path in FOLDER.iterdir() if path.suffix in (".md", ".jsonl")]
    assert not [text[:80] for text in texts if re.search("/(home|root|tmp|Users)/", text)]
    with_caches = [one for one in records if one["float64"]["caches"] is not None]
    assert len(with_caches) > 15
    assert all(one["generated"]["different"] > 1 for one in records if one.get("generated"))


@pytest.mark.parametrize("text", [None, "", "{", '{"date": 1}\n['])
def test_no_record_is_one_line_and_2(tmp_path, capsys, text):
    if text is not None:
        (tmp_path / page.RECORDS).write_text(text)
    assert main(["--render", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("parity: error: ")
    assert "holds no record of parity" in error


def test_records_are_json_on_every_line():
    for line in (FOLDER / page.RECORDS).read_text().splitlines():
        assert isinstance(json.loads(line), dict)


def test_the_table_of_the_page_on_models_is_of_the_record():
    """A row for BLOOM, and one with the largest numbers of all models of the other architectures."""
    cells = lambda text: [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    known = {row[0]: row for row in cells((FOLDER / "parity.md").read_text(encoding="utf-8")) if len(row) == 13}
    shown = (FOLDER.parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    title, _, bloom, others = cells(shown.partition("| architecture | output, float64")[2].partition("\n\n")[0])
    assert title == ["", "gradients, float64", "output, float32", "gradients, float32", "same tokens"]
    columns, tokens = (3, 6, 7, 10), 11
    assert bloom == ["BLOOM (ALiBi)", *(known["BLOOM (ALiBi)"][i] for i in (*columns, tokens))]
    rest = [row for name, row in known.items() if row[0][0] not in "a-" and name != "BLOOM (ALiBi)"]
    largest = [max((row[i] for row in rest), key=float) for i in columns]
    assert others == ["all others, the largest of them", *largest, "24 of 24"]
    assert {row[tokens] for row in rest} == {"24 of 24", "\u2013"}
