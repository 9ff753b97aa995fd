"""Committed records of speed: the tables are what the records say, byte for byte, and name nothing of the machine's folders."""

import pathlib
import re

import pytest

from experiments.speed import records, table
from experiments.speed.suites import SUITES

ROOT = pathlib.Path(__file__).parents[3]
RECORDS = sorted((ROOT / "experiments" / "speed").glob("*/speed.jsonl"))


def test_there_is_a_record():
    assert RECORDS


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_table_is_made_anew_from_its_record(path):
    machine, found = records.read(path)
    assert path.with_suffix(".md").read_text() == table.markdown(machine, found)
    assert machine["smoke"] is False
    assert {"date", "processor", "cores", "commit", "command"} <= {key for key, value in machine.items() if value}
    assert not re.search("/(home|root|Users|tmp)/", path.read_text())


def length_of(row):
    """The length of a row: of sequences, of a cache, or the last of those that are tested."""
    return next(row.sizes[name] for name in ("T", "slots", "cache", "lengths") if name in row.sizes)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_what_was_measured_is_what_the_list_says(path):
    machine, found = records.read(path)
    assert [row.peer for row in found if row.peer not in SUITES[row.suite].peers] == []
    for suite in records.suites(found):
        lengths = {length_of(row) for row in found if row.suite == suite}
        assert lengths <= set(SUITES[suite].lengths)
        chosen = "--lengths" in machine["command"]
        assert chosen or lengths == set(SUITES[suite].lengths) or isinstance(SUITES[suite].lengths, range)


def test_the_page_on_speed_quotes_the_records():
    """Each ratio in docs/speed.md is in one of the tables."""
    ratios = re.findall(r"\d+\.\d+x", (ROOT / "docs" / "speed.md").read_text())
    tables = "".join(path.with_suffix(".md").read_text() for path in RECORDS)
    assert len(ratios) > 10
    assert [ratio for ratio in ratios if ratio not in tables] == []
