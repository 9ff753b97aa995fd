"""Sweeps on a real Ray: two nodes whose workers, tasks and raylet are lost, and a cluster of a single command."""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys

import psutil
import pytest
from checks import check_complete, check_populations, until

from attnjax.sweep import ExecutionConfig, load, seeds
from attnjax.sweep.executors import attend, worker_command
from attnjax.sweep.profiles import Profile
from attnjax.sweep.ray_tasks import RayTasks, connected
from attnjax.sweep.stop import Stop
from tests.engines.ray_nodes import Nodes, missing, workers

SWEEP = pathlib.Path(__file__).parents[1] / "sweep"
PATHS = os.pathsep.join([str(SWEEP), str(SWEEP.parents[1])])
TRAINER = "fake_training:train"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"NOT RUN: needs {missing()}: pip install 'attnjax[ray]'"),
    pytest.mark.filterwarnings("default"),  # those of the library
]


@pytest.fixture
def make(tmp_path):
    """Plans a sweep."""
    from attnjax.config import parse
    from attnjax.sweep import plan, prepare

    def made(sweep, **options):
        train, evaluate = {"steps": 10, "checkpoint_every": 2}, {"lengths": [10, 20]}
        task = {"options": options}
        config = parse({"name": "small", "train": train, "evaluate": evaluate, "task": task})
        return prepare(tmp_path / "out", config.name, plan(config, sweep))

    return made


def test_a_sweep_whose_tasks_processes_and_raylet_are_lost_trains_each_run_once(make, tmp_path):
    """24 runs in pairs by three workers on two nodes of a CPU: one waits at first. They are disturbed as training proceeds.

    A lost worker is back after seconds, in which the others may train all that is left: runs are slow until all was lost.
    """
    handler, disturbed = signal.getsignal(signal.SIGTERM), tmp_path / "disturbed"
    store = make(seeds(24), work=200_000, slow_until=str(disturbed))
    told, draw, seen = [], random.Random(0), []
    with Nodes(cpus=1) as nodes, connected(profile := Profile(address=nodes.address)):
        command = worker_command(store.root, TRAINER, ExecutionConfig(population=2))
        executor = RayTasks(
            store, command, 3, Profile(**vars(profile) | {"environment": {"PYTHONPATH": PATHS}}), told.append
        )
        ways = [
            lambda: draw.choice(workers(store.root)).kill(),
            nodes.lose,
            lambda: executor.stop(f"{executor.name}_1"),
            lambda: draw.choice(workers(store.root)).send_signal(signal.SIGUSR1),
            lambda: draw.choice(workers(store.root)).terminate(),
        ]

        def disturb(event):
            seen.append(event)
            # Both nodes train, so that each has something to lose.
            if (
                ways
                and len(workers(store.root)) >= 2
                and sum(one.state == "done" for one in seen) >= 2 * (6 - len(ways))
            ):
                ways.pop(0)()
            if not ways:
                disturbed.touch()

        attend(executor, store, disturb, Stop())
    assert not ways
    assert signal.getsignal(signal.SIGTERM) is handler
    check_complete(store)
    assert check_populations(store, 2) >= 12
    assert sum("was lost (" in one for one in told) >= 1, told
    assert sum("ended with exit status -9, and is started again" in one for one in told) == 1, told
    assert sum("ended with exit status 75, and is started again" in one for one in told) >= 1, told
    until(lambda: not workers(store.root))


@pytest.fixture
def sweep():
    """`attnjax sweep --executor ray` with a cluster of its own; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def started(root, *options):
            process = command(root, *options)
            stack.callback(process.kill)
            return process

        yield started


def command(root, *options):
    config = root.parent / "small.py"
    config.write_text(
        '''"""Hashes."""


def get_config():
    task = {"options": {"work": 500_000}}
    train = {"steps": 10, "checkpoint_every": 2}
    return {"name": "small", "task": task, "train": train, "evaluate": {"lengths": [10, 20]}}


def sweep():
    for batch in range(1, 5):
        yield {"train.batch": batch}
'''
    )
    words = [sys.executable, "-m", "attnjax", "sweep", str(config), "--out", str(root), "--trainer", TRAINER]
    words += ["--executor", "ray", "--population", "1", *options]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def listening(pid, name=""):
    """The addresses on which the processes under one listen, or those with a name."""
    found = []
    for one in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            if one.name().startswith(name):
                found += [port.laddr for port in one.net_connections("inet") if port.status == "LISTEN"]
    return found


INTRUDER = """
import ray
try:
    ray.init(address="127.0.0.1:{port}")
    print("connected")
except ConnectionError:
    print("refused")
"""


def connecting(port):
    """Somebody else of this machine, who does not know the token, and does not try long."""
    known = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64, "RAY_NUM_REDIS_GET_RETRIES": "2"}
    environment = {**os.environ, **known, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", INTRUDER.format(port=port)], env=environment, text=True, **pipes)


@pytest.mark.slow
def test_a_cluster_of_one_command_is_on_this_machine_alone_and_its_workers_save_when_it_is_stopped(sweep, tmp_path):
    root = tmp_path / "out"
    process = sweep(root, "--workers", "2")
    until(lambda: listening(process.pid, "gcs_server"), 120)
    intruder = connecting(listening(process.pid, "gcs_server")[0].port)
    until(lambda: list(root.glob("*/checkpoints/last")), 120)
    ports = listening(process.pid)
    assert len(ports) > 4
    assert {one.ip.removeprefix("::ffff:") for one in ports} == {"127.0.0.1"}
    told, errors = intruder.communicate(timeout=60)
    assert (told, "InvalidAuthToken" in errors) == ("refused\n", True)
    process.terminate()
    told, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert "stopped: SIGTERM; the same command continues" in told
    states = [load(root).status(entry.run) for entry in load(root).runs]
    assert {one.state for one in states} <= {"preempted", "pending", "done"}
    assert any((one.state, one.reason) == ("preempted", "SIGTERM") for one in states)
    assert not workers(root)
    process = sweep(root, "--workers", "2")
    until(lambda: workers(root), 120)
    until(lambda: any(load(root).status(entry.run).state == "running" for entry in load(root).runs))
    workers(root)[0].send_signal(signal.SIGUSR1)
    told, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "4 runs: 4 done" in told
    assert "ended with exit status 75, and is started again" in errors
    check_complete(load(root))


def test_what_a_cluster_lacks_is_one_sentence(sweep, tmp_path):
    profile = tmp_path / "cluster.toml"
    profile.write_text("[ray]\ngpus = 64\n")
    _, errors = sweep(tmp_path / "out", "--profile", str(profile)).communicate(timeout=120)
    assert errors == "attnjax: error: no worker can be started: no node has what each takes (CPU 1, GPU 64)\n"
