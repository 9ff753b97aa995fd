"""The committed records of `python -m tests.engines.run`: what the page on clusters says of it."""

import json
import pathlib

HERE = pathlib.Path(__file__).parent


def checked(engine):
    """The record of an engine, whose every run ended once with the bits of the undisturbed one."""
    record = json.loads((HERE / "records" / f"{engine}.json").read_text())
    assert record["runs"] == record["done"] == 24
    assert record["differ"] == []
    assert record["resumed"] > 0
    return record, record["disturbed"], (HERE.parents[1] / "docs" / "clusters.md").read_text()


def test_the_disturbed_sweep_on_slurm_had_the_bits_of_the_undisturbed_one():
    record, disturbed, page = checked("slurm")
    assert sum(disturbed[way] for way in ("requeue", "warn", "cancel")) >= 0.3 * record["runs"]
    assert (
        f"{disturbed['requeue']} requeues, {disturbed['warn']} warnings and {disturbed['cancel']} cancellation" in page
    )
    assert f"SLURM {record['slurm'].split()[1]}" in page


def test_the_disturbed_sweep_on_ray_had_the_bits_of_the_undisturbed_one():
    record, disturbed, page = checked("ray")
    assert sum(disturbed[way] for way in ("node", "kill", "warn", "cancel")) >= 0.3 * record["runs"]
    assert disturbed["workers_lost"] >= 1
    assert (
        f"{disturbed['node']} killed raylets, {disturbed['kill']} killed workers, {disturbed['warn']} warnings and "
        f"{disturbed['cancel']} cancellation; {disturbed['workers_started_again']} workers were started again" in page
    )
    assert f"Ray {record['ray']}" in page
