"""The committed records of `python -m tests.engines.run`: what the page on clusters says of it, and that it compares lines."""

import json
import pathlib
import re

import fake_training
import pytest

from attnjax.config import parse
from attnjax.sweep import ExecutionConfig, plan, prepare, run_here, seeds
from attnjax.sweep.stop import Stop
from tests.engines.run import compared

HERE = pathlib.Path(__file__).parent


def checked(engine):
    """The record of an engine, whose every run ended once with the bits of the undisturbed one."""
    record = json.loads((HERE / "records" / f"{engine}.json").read_text())
    assert record["runs"] == record["done"] == 24
    assert record["differ"] == []
    assert record["resumed"] > 0
    page = " ".join((HERE.parents[1] / "docs" / "clusters.md").read_text().split())
    assert record["ends"] == [1] * 24
    assert len(record["leases"]) == 24
    assert record["trainings_met"] >= 0.3 * record["runs"]
    assert f"{record['trainings_met']} trainings were interrupted after their first step" in page
    return record, record["disturbed"], page


def test_the_disturbed_sweep_on_slurm_had_the_bits_of_the_undisturbed_one():
    record, disturbed, page = checked("slurm")
    assert sum(disturbed[way] for way in ("requeue", "warn", "cancel")) >= 0.3 * record["runs"]
    assert (
        f"{disturbed['requeue']} requeues, {disturbed['warn']} warnings and {disturbed['cancel']} cancellation" in page
    )
    assert re.fullmatch(r"slurm-wlm [\d.]+, auth/munge", record["slurm"])
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


def test_a_sweep_on_slurm_and_ray_at_once_had_the_bits_of_the_undisturbed_one():
    _, disturbed, page = checked("both")
    assert disturbed["ended_by"].keys() == {"slurm", "ray"}
    assert sum(disturbed["ended_by"].values()) == 24
    assert disturbed["passed_on"] >= 1
    killed, warned = (disturbed[f"{way}_slurm"] + disturbed[f"{way}_ray"] for way in ("kill", "warn"))
    ended = "workers of SLURM ended {slurm} and those of Ray {ray}".format(**disturbed["ended_by"])
    assert f"{killed} killed workers and {warned} warnings; {ended}, {disturbed['passed_on']} passed from one" in page


def with_digest(configs, directories, context):
    """The training of hashes, whose manifest has the digest of its last state as that of its parameters."""
    fake_training.train(configs, directories, context)
    for directory in directories:
        context.log_manifest(directory, parameters_sha256=fake_training.load(directory)[1])


@pytest.fixture
def pair(tmp_path):
    """Two folders of three runs: one undisturbed, the other stopped at the fourth step of the second run, and gone on with."""
    train = {"steps": 10, "checkpoint_every": 2}
    planned = plan(parse({"name": "small", "train": train, "evaluate": {"lengths": [10]}}), seeds(3))
    alone, disturbed = (prepare(tmp_path / name, "small", planned) for name in ("alone", "disturbed"))
    execution, stop = ExecutionConfig(population=1), Stop()
    run_here(alone, with_digest, execution)
    second = disturbed.runs[1].run

    def progress(event):
        if event.run == second and event.step == 4:
            stop.set("SIGUSR1")

    run_here(disturbed, with_digest, execution, progress=progress, stop=stop)
    (disturbed.directory(second) / "checkpoints" / "4").mkdir()  # as the checkpoints of a model are named
    run_here(disturbed, with_digest, execution)
    return alone, disturbed, disturbed.directory(second)


def test_a_comparison_counts_leases_ends_and_the_trainings_that_were_met(pair):
    alone, disturbed, _ = pair
    assert compared(alone.root, disturbed.root) == {
        **{"runs": 3, "done": 3, "resumed": 1, "differ": []},
        **{"leases": [1, 2, 1], "ends": [1, 1, 1], "trainings_met": 1},
    }


@pytest.mark.parametrize(("name", "ends"), [("results.jsonl", 2), ("metrics.jsonl", 1)])
def test_a_line_that_is_there_twice_is_a_difference(pair, name, ends):
    """Readers drop an evaluation that is there twice, which is how a second end of a run would look."""
    alone, disturbed, directory = pair
    lines = (directory / name).read_text().splitlines(keepends=True)
    (directory / name).write_text("".join([*lines, lines[-1]]))
    found = compared(alone.root, disturbed.root)
    assert found["differ"] == [directory.name]
    assert sorted(found["ends"]) == [1, 1, ends]
