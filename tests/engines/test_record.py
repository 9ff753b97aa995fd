"""The committed record of `python -m tests.engines.run`: what the page on clusters says of it."""

import json
import pathlib

HERE = pathlib.Path(__file__).parent


def test_the_disturbed_sweep_had_the_bits_of_the_undisturbed_one():
    record = json.loads((HERE / "records" / "slurm.json").read_text())
    assert record["runs"] == record["done"] == 24
    assert record["differ"] == []
    assert record["resumed"] > 0
    disturbed = record["disturbed"]
    assert sum(disturbed[way] for way in ("requeue", "warn", "cancel")) >= 0.3 * record["runs"]
    page = (HERE.parents[1] / "docs" / "clusters.md").read_text()
    assert (
        f"{disturbed['requeue']} requeues, {disturbed['warn']} warnings and {disturbed['cancel']} cancellation" in page
    )
    assert f"SLURM {record['slurm'].split()[1]}" in page
