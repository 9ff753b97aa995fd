"""The committed record of `python -m tests.engines.scale`, what the page on clusters says of it, and that it can be made."""

import json
import pathlib

import pytest

from tests.engines import scale

HERE = pathlib.Path(__file__).parent
RECORD = json.loads((HERE / "records" / "scale.json").read_text())
PAGE = (HERE.parents[1] / "docs" / "clusters.md").read_text()


def test_every_operation_is_linear_up_to_a_hundred_thousand_runs():
    growth = RECORD["growth"]
    assert growth["sizes"] == [1_000, 10_000, 100_000]
    slow = {name: found for name, found in growth["seconds"].items() if found[-1] > 1}
    assert {"prepare", "states", "list", "claim"} <= slow.keys()
    assert {name: slope for name in slow if not 0.8 < (slope := growth["slope"][name]) < 1.2} == {}
    assert growth["seconds"]["only"][-1] < 1 < RECORD["before"]["growth"]["seconds"]["only"][-1]


def test_the_page_has_the_figures_of_the_record():
    growth, workers = RECORD["growth"], RECORD["workers"]
    for name in ("prepare", "load", "states", "list", "claim"):
        figures = " | ".join(f"{one:.2f}" for one in growth["seconds"][name])
        files = growth["file_operations_per_run"].get(name)
        assert f"| {figures} | {growth['slope'][name]:.2f} | {files if files else ''}".rstrip() in PAGE, name
    told = f"{workers['runs']:,} trainings of one step by {workers['workers']} workers took {workers['seconds']:.1f} s"
    assert told in " ".join(PAGE.split())
    assert f"{workers['leases'] / workers['seconds']:.0f} leases a second" in PAGE
    assert f"{workers['worker_seconds_per_run'] * 1000:.0f} ms of a worker" in " ".join(PAGE.split())
    assert "There is no index: each listing reads the folders" in PAGE


@pytest.mark.slow
def test_it_can_be_made_and_counts_the_same_files_at_every_size(tmp_path):
    assert scale.main(["--sizes", "20", "40", "--runs", "6", "--workers", "2", "--out", str(tmp_path)]) == 0
    made = json.loads((tmp_path / "scale.json").read_text())
    assert made["workers"]["leases"] >= made["workers"]["runs"] == 6
    assert made["growth"]["sizes"] == [20, 40]
    assert made.keys() == RECORD.keys() - {"before"}
