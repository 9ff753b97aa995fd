"""One model over two nodes of a real Ray: a process on each, one of which is killed or lost with its node on the way."""

import contextlib
import json

import pytest
from checks import until

from attnjax.records.runs import read_manifest
from tests import hosts
from tests.engines.ray_nodes import Nodes, missing, workers
from tests.train import killing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"NOT RUN: needs {missing()}: pip install 'attnjax[ray]'"),
]
GIVEN = ("JAX_PLATFORMS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_COMPILATION_CACHE_DIR", "JAX_NUM_CPU_DEVICES")


@contextlib.contextmanager
def sweep(folder, processes=2, **fields):
    """`attnjax sweep --executor ray` of one run over two devices, divided among processes; it ends with the block."""
    given = hosts.environment(folder, devices=2 // processes)
    table = {"processes": processes, "environment": {name: given[name] for name in GIVEN}, **fields}
    (folder / "cluster.toml").write_text(f"[ray]\n{toml(table)}")
    options = ["--executor", "ray", "--profile", "cluster.toml", "--mesh", "data=2", "--patience", str(hosts.DEAD)]
    driver = hosts.attnjax(folder, "sweep", "tiny.json", "--out", str(folder / "out"), *options)
    try:
        yield driver
    finally:
        driver.kill()
        driver.communicate()


def toml(table):
    """Words and numbers, and one table of them, whose dotted names TOML takes."""
    flat = {f"environment.{name}": value for name, value in table.pop("environment").items()}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in {**table, **flat}.items())


def of_process(root, number):
    """The process of this number among those that train together, or None while there is none."""
    found = [one for one in workers(root) if one.cmdline()[-3] == str(number)]
    return found[0] if found else None


WAYS = {
    "kill": "process 1 ended with exit status -9, and is started again",
    "task": "process 0 ended with exit status 75, process 1 was lost (",
    "node": "and is started again",
}


def disturb(way, nodes, out):
    """Kill process 1, or the process of Ray that runs its task, or lose the node that is not the head."""
    process = of_process(out, 1)
    {"kill": process.kill, "task": process.parent().kill, "node": nodes.lose}[way]()


@pytest.mark.parametrize("way", ["kill", "task", "node"])
@pytest.mark.slow
def test_a_model_over_two_nodes_one_of_which_is_lost_has_the_bits_of_one_process(tmp_path, way):
    """Both processes are started again, and go on together."""
    alone = hosts.attnjax(tmp_path, "run", "tiny.json", "--mesh", "data=2", "--out", "alone", devices=2)
    assert hosts.ends([alone])[0][0] == 0
    out = tmp_path / "out"
    with Nodes(cpus=1) as nodes, sweep(tmp_path, address=nodes.address) as driver:
        until(lambda: len(hosts.checkpoints(out)) > 1 or driver.poll() is not None, 180)
        assert driver.poll() is None, driver.communicate()
        disturb(way, nodes, out)
        output, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, (output, errors)
    assert "1 runs: 1 done" in output
    assert WAYS[way] in errors
    table = read_manifest(killing.the_run(out))
    assert (table["state"], table["process_count"], table["changed_on_resume"]) == ("done", 2, [])
    assert table["resumed_from"] > 0
    assert hosts.digest(out) == hosts.digest(tmp_path / "alone")
    until(lambda: not workers(out))


@pytest.mark.slow
def test_two_processes_on_one_node_save_when_their_driver_is_stopped_and_one_process_goes_on(tmp_path):
    """The cluster is that of the command alone."""
    out = tmp_path / "out"
    with sweep(tmp_path, placement="STRICT_PACK") as driver:
        until(lambda: len(hosts.checkpoints(out)) > 1 or driver.poll() is not None, 180)
        driver.terminate()
        output, errors = driver.communicate(timeout=120)
    assert driver.returncode == 143, (output, errors)
    assert hosts.state(out).state == "preempted"
    with sweep(tmp_path, processes=1) as driver:
        output, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, (output, errors)
    assert read_manifest(killing.the_run(out))["changed_on_resume"] == ["process_count"]


def test_nodes_that_are_too_few_are_one_sentence(tmp_path):
    with sweep(tmp_path) as driver:
        _, errors = driver.communicate(timeout=120)
    lack = "each takes 2 nodes with CPU 1 on each of them; nodes that have it: 1"
    assert errors == f"attnjax: error: no worker can be started: {lack}\n"
