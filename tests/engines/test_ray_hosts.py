"""One model over two nodes of a real Ray: a process on each, one of which is killed or lost with its node on the way."""

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


def profile(folder, **fields):
    """A profile of two processes, with a device each."""
    ours = {name: value for name, value in hosts.environment(folder, devices=1).items() if name in GIVEN}
    table = {"processes": 2, **fields}
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    variables = [f"{name} = {json.dumps(value)}" for name, value in ours.items()]
    (folder / "cluster.toml").write_text("\n".join(["[ray]", *lines, "[ray.environment]", *variables]))
    return ["--executor", "ray", "--profile", "cluster.toml", "--mesh", "data=2", "--patience", str(hosts.DEAD)]


def of_process(root, number):
    """The process of this number among those that train together, or None while there is none."""
    found = [one for one in workers(root) if one.cmdline()[-3] == str(number)]
    return found[0] if found else None


@pytest.mark.parametrize("way", ["kill", pytest.param("node", marks=pytest.mark.nightly)])
def test_a_model_over_two_nodes_one_of_which_is_lost_has_the_bits_of_one_process(tmp_path, way):
    """Process 1 is killed, or the node that is not the head is lost; both are started again, and go on together."""
    alone = hosts.attnjax(tmp_path, "run", "tiny.json", "--mesh", "data=2", "--out", "alone", devices=2)
    assert hosts.ends([alone])[0][0] == 0
    out = tmp_path / "out"
    with Nodes(cpus=1) as nodes:
        options = profile(tmp_path, address=nodes.address)
        driver = hosts.attnjax(tmp_path, "sweep", "tiny.json", "--out", str(out), *options)
        try:
            until(lambda: len(hosts.checkpoints(out)) > 1 or driver.poll() is not None, 180)
            assert driver.poll() is None, driver.communicate()
            (of_process(out, 1).kill if way == "kill" else nodes.lose)()
            output, errors = driver.communicate(timeout=300)
        finally:
            driver.kill()
            driver.communicate()
    assert driver.returncode == 0, (output, errors)
    assert "1 runs: 1 done" in output
    assert "and is started again" in errors, errors
    if way == "kill":
        assert "process 1 ended with exit status -9, and is started again" in errors
    table = read_manifest(killing.the_run(out))
    assert (table["state"], table["process_count"], table["changed_on_resume"]) == ("done", 2, [])
    assert table["resumed_from"] > 0
    assert hosts.digest(out) == hosts.digest(tmp_path / "alone")
    until(lambda: not workers(out))
