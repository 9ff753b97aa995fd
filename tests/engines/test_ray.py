"""Sweeps on a real Ray: two nodes whose workers and raylet are lost, and a cluster of a single command."""

import signal

import psutil
import pytest
from checks import check_complete, check_populations, command, until

from attnjax.sweep import load
from tests.engines.interruptions import in_training
from tests.engines.ray_nodes import Nodes, missing
from tests.engines.test_slurm import written

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"NOT RUN: needs {missing()}: pip install 'attnjax[ray]'"),
    pytest.mark.filterwarnings("default"),  # those of the library
]


def sweep(config, root, *options):
    """`attnjax run --executor ray`."""
    return command("run", config, "--out", root, "--executor", "ray", *options)


def test_a_sweep_whose_workers_and_raylet_are_lost_has_one_result_for_each_run(tmp_path):
    """Runs are slow until a worker was killed, another one was warned, and a node was lost."""
    root, disturbed = tmp_path / "out", tmp_path / "disturbed"
    config = written(tmp_path, runs=12, work=100_000, slow_until=str(disturbed))
    with Nodes(cpus=1) as nodes:
        process = sweep(config, root, "--workers", "2", "--population", "2", "--cluster", f"address={nodes.address}")
        try:
            until(lambda: (root / "sweep.json").exists() and len(in_training(load(root))) == 2, 180)
            store = load(root)
            first, second = in_training(store)
            first.kill()
            until(
                lambda: first.pid not in {one.pid for one in in_training(store)} and len(in_training(store)) == 2, 180
            )
            second.send_signal(signal.SIGUSR1)
            until(lambda: second.pid not in {one.pid for one in in_training(store)}, 60)
            nodes.lose()
            disturbed.touch()
            told, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, (told, errors[-2000:])
    assert "12 runs: 12 done" in told
    check_complete(store)
    assert check_populations(store, 2) >= 4


def test_a_cluster_of_one_command_is_on_this_machine_alone_and_its_workers_save_when_it_is_stopped(tmp_path):
    root, config = tmp_path / "out", written(tmp_path, runs=4, work=500_000)
    process = sweep(config, root, "--workers", "2", "--population", "1")
    until(lambda: list(root.glob("*/attempt-*/checkpoints/2")), 180)
    ours = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    ports = [port.laddr for one in ours for port in one.net_connections("inet") if port.status == "LISTEN"]
    assert {one.ip.removeprefix("::ffff:") for one in ports} == {"127.0.0.1"}
    process.terminate()
    told, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "stopped: SIGTERM; the same command continues" in told
    states = [load(root).status(entry.run) for entry in load(root).runs]
    assert {one.state for one in states} <= {"preempted", "pending", "done"}
    assert any(one.state == "preempted" for one in states)
    told, errors = sweep(config, root, "--workers", "2").communicate(timeout=240)
    assert "4 runs: 4 done" in told, errors
    check_complete(load(root))


def test_a_cluster_that_cannot_be_reached_is_one_sentence(tmp_path):
    process = sweep(written(tmp_path, runs=1), tmp_path / "out", "--cluster", "address=127.0.0.1:1")
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith("attnjax: error: Ray: ")
