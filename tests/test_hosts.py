"""Several processes train one model through the command line: as one process would, whatever is lost on the way."""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from attnjax.cli import argument_types as types, main
from attnjax.train import processes
from tests.runs import runs_in
from tests.train import killing

COORDINATOR = ["--coordinator", "10.0.0.1:1234"]
COMMAND = ("run", "tiny.json")
CONFIG = {
    "name": "tiny",
    "task": {"name": "copy", "form": "decoder", "length_max": 4},
    "model": {"layers": 1, "model": 8, "heads": 2, "hidden": 8, "encoding": {"name": "t5"}},
    "train": {"steps": 96, "batch": 4, "log_every": 4, "checkpoint_every": 4},
    "evaluate": {"lengths": [4], "validation_lengths": [], "count": 4, "batch": 4},
}
DEAD = 5
"""Seconds without a sign of life after which a process is lost; Gloo notices one that was killed sooner."""


# What is refused


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--processes", "2"], "--coordinator"),
        ([*COORDINATOR, "--process-id", "1"], "--processes"),
        ([*COORDINATOR, "--processes", "1", "--process-id", "0"], "got 1 and 0"),
        ([*COORDINATOR, "--processes", "2", "--process-id", "2"], "got 2 and 2"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_joined(options, named, capsys):
    assert main(["run", "rope_vs_sinusoidal", *options]) == 2
    assert named in capsys.readouterr().err


def test_coordinators_are_a_host_and_a_port():
    for text in ("10.0.0.1:1234", "node-1.cluster:65535", "[fe80::1]:80"):
        assert types.coordinator(text) == text
    for text in ("", "10.0.0.1", ":80", "host:", "fe80::1:80", "[host]:80", "h:1/x", "-h:1"):
        with pytest.raises(argparse.ArgumentTypeError, match="HOST:PORT"):
            types.coordinator(text)


def test_a_port_that_is_taken_is_told_in_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} .*Address already"):
            processes.join(f"127.0.0.1:{port}", 2, 0)


# Two processes, which compute together over Gloo


def attnjax(folder, *words, devices=1):
    """A command in `folder` as a process with so many devices; its programs are kept for all tests of this file."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.json").write_text(json.dumps(CONFIG))
    environment = killing.environment(folder.parent / "programs") | {"JAX_NUM_CPU_DEVICES": str(devices)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "attnjax", *words, "--out", "out"]
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def ends(processes):
    """Exit status, output and errors of each."""
    told = [process.communicate(timeout=killing.PATIENCE) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, told, strict=True)]


@contextlib.contextmanager
def started(folder, *words, mesh="data=2"):
    """The command as two processes with a device each. None outlives the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    joined = ["--mesh", mesh, "--coordinator", coordinator, "--processes", "2", "--patience", str(DEAD)]
    both = []
    try:
        for i in range(2):
            both.append(attnjax(folder, *COMMAND, *words, *joined, "--process-id", str(i)))
        yield both
    finally:
        for process in both:
            process.kill()
            process.communicate()


def together(folder, *words, mesh="data=2"):
    """What two processes say that end by themselves."""
    with started(folder, *words, mesh=mesh) as both:
        return ends(both)


def alone(folder, *words, mesh="data=2"):
    """The same command as one process on two devices, which ends well."""
    ((code, _, errors),) = ends([attnjax(folder, *COMMAND, *words, "--mesh", mesh, devices=2)])
    assert code == 0, errors


def the_run(folder):
    return runs_in(folder / "out")[0]


def digests(folder):
    """The sha256 of the parameters of every run, and its results."""
    return {run.run: (run.manifest()["parameters_sha256"], run.results()) for run in runs_in(folder / "out")}


def until_step(folder, step, both):
    """Wait until a checkpoint of this step or a later one is there."""
    deadline = time.monotonic() + killing.PATIENCE
    while not any(path.name.isdecimal() and int(path.name) >= step for path in folder.glob("out/*/*/checkpoints/*")):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in both), ends(both)
        time.sleep(0.02)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture
def folder(root, tmp_path):
    return root / tmp_path.name


@pytest.fixture(scope="module")
def undisturbed(root):
    """What one process ends with."""
    alone(root / "alone")
    return digests(root / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data=2", "sequence=2", "population=2"])
def test_two_processes_have_the_bits_of_one_and_the_second_start_does_nothing(folder, mesh):
    """Of two addends the order does not matter."""
    few = ["--seeds", "2", "train.steps=6", "evaluate.lengths=[4,6]"]
    for trained in (True, False):
        (first, output, _), (second, follower, errors) = together(folder, *few, mesh=mesh)
        assert (first, second) == (0, 0), errors
        assert ("2 runs: 2 done  " in output) == trained
        assert [line for line in follower.splitlines() if not line.startswith("[Gloo]")] == []
    alone(folder / "alone", *few, mesh=mesh)
    assert digests(folder) == digests(folder / "alone")
    assert the_run(folder).manifest()["process_count"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_fails_no_run_and_the_next_start_goes_on(folder, undisturbed, victim):
    with started(folder) as both:
        until_step(folder, 12, both)
        both[victim].kill()
        found = ends(both)
    assert found[victim][0] == -signal.SIGKILL
    assert found[1 - victim][0] in (1, -signal.SIGABRT), found
    assert the_run(folder).status.state in ("running", "preempted")
    assert [code for code, _, _ in together(folder)] == [0, 0]
    assert digests(folder) == undisturbed
    assert the_run(folder).manifest()["resumed_from"] >= 12


@pytest.mark.slow
def test_a_process_that_hangs_is_lost_after_some_seconds(folder):
    """Its connections stay: JAX misses its sign of life, and ends the other process itself."""
    with started(folder) as both:
        until_step(folder, 12, both)
        both[1].send_signal(signal.SIGSTOP)
        assert both[0].wait(timeout=120) in (1, -signal.SIGABRT)
    assert the_run(folder).status.state == "running"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("SIGTERM", 1), ("SIGUSR1", 0)])
def test_a_warning_of_one_process_stops_all_after_saving(folder, undisturbed, name, number):
    with started(folder) as both:
        until_step(folder, 12, both)
        both[number].send_signal(getattr(signal, name))
        found = ends(both)
    first, second = (code for code, _, _ in found)
    assert first == second != 0, found
    now = the_run(folder)
    assert now.status.state == "preempted"
    assert (now.folder / "checkpoints" / str(now.status.step)).is_dir()
    alone(folder)
    assert digests(folder) == undisturbed


def check_mesh(mesh, run):
    """Takes every mesh, since a trainer needs this function."""


def train(configs, directories, context):
    """A trainer that fails in the processes that `FAILING` names, while the others wait for them."""
    if str(jax.process_index()) in os.environ["FAILING"]:
        raise RuntimeError("no such luck")
    multihost_utils.process_allgather(np.arange(3))


@pytest.mark.slow
@pytest.mark.parametrize(("failing", "after"), [("0", ["failed"]), ("1", ["running", "preempted"]), ("01", ["failed"])])
def test_an_error_of_one_process_ends_all(folder, monkeypatch, failing, after):
    """The others lose a process; only process 0 can say that the run has failed."""
    monkeypatch.setenv("FAILING", failing)
    found = together(folder, "--trainer", "tests.test_hosts:train")
    assert all(code in (1, -signal.SIGABRT) for code, _, _ in found), found
    assert any("no such luck" in errors + output for _, output, errors in found)
    assert the_run(folder).status.state in after
