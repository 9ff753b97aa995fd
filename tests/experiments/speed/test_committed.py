"""Committed records of speed: the tables are what the records say, byte for byte, and name nothing of the machine's folders."""

import pathlib
import re

import pytest

from experiments.speed import rows, table

ROOT = pathlib.Path(__file__).parents[3]
RECORDS = sorted((ROOT / "experiments" / "speed").glob("*/speed.jsonl"))


def test_there_is_a_record():
    assert RECORDS


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_a_table_is_made_anew_from_its_record(path):
    machine, found = rows.read(path)
    assert path.with_suffix(".md").read_text() == table.markdown(machine, found)
    assert machine["smoke"] is False
    assert {"date", "processor", "cores", "commit", "command"} <= {key for key, value in machine.items() if value}
    assert not re.search("/(home|root|Users|tmp)/", path.read_text())


def test_the_front_page_quotes_the_records():
    """Each ratio in the table of README's section on speed is in one of the tables."""
    section = (ROOT / "README.md").read_text().split("\n## Speed\n")[1].split("\n## ")[0]
    ratios = re.findall(r"\d+\.\d+x", section)
    tables = "".join(path.with_suffix(".md").read_text() for path in RECORDS)
    assert len(ratios) > 10
    assert [ratio for ratio in ratios if ratio not in tables] == []
