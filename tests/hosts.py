"""`attnjax run` and `attnjax work` as several processes of one machine, which compute together over Gloo."""

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from attnjax.records import status
from attnjax.records.runs import folder_of, read_manifest, status_of
from tests.train import killing

CONFIG = {
    "name": "tiny",
    "task": {"name": "copy", "form": "decoder", "length_max": 4},
    "model": {"layers": 1, "model": 8, "heads": 2, "hidden": 8, "encoding": {"name": "t5"}},
    "train": {"steps": 96, "batch": 4, "log_every": 4, "checkpoint_every": 4},
    "evaluate": {"lengths": [4], "validation_lengths": [], "count": 4, "batch": 4},
}
DEAD = 5
"""Seconds without a sign of life after which a process is lost; Gloo notices one that was killed sooner."""


def environment(folder: pathlib.Path, devices: int) -> dict[str, str]:
    """Programs are optimised little and kept for all tests of a session, and each process has so many devices."""
    session = next((parent for parent in folder.parents if re.fullmatch(r"pytest-\d+", parent.name)), folder)
    return {**killing.environment(session / "programs"), "JAX_NUM_CPU_DEVICES": str(devices)}


def attnjax(folder: pathlib.Path, *words: str, devices: int = 1) -> subprocess.Popen[str]:
    """A command in `folder`, which gets the config as `tiny.json`. Its standard input lasts until it is closed."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.json").write_text(json.dumps(CONFIG))
    command = [sys.executable, "-m", "attnjax", *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment(folder, devices), **pipes)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def started(folder: pathlib.Path, *words: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The command as two processes with a device each, whose runs are in `folder/out`. None outlives the block."""
    coordinator = f"127.0.0.1:{free_port()}"
    joined = ["--mesh", "data=2", "--coordinator", coordinator, "--processes", "2", "--patience", str(DEAD)]
    processes = []
    try:
        for i in range(2):
            processes.append(attnjax(folder, *words, "--out", "out", *joined, "--process-id", str(i)))
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ends(processes: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit status, output and errors of each."""
    told = [process.communicate(timeout=killing.PATIENCE) for process in processes]
    return [(process.returncode, *texts) for process, texts in zip(processes, told, strict=True)]


def together(folder: pathlib.Path, *words: str) -> list[tuple[int, str, str]]:
    """The same of processes that end by themselves."""
    with started(folder, *words) as processes:
        return ends(processes)


def the_run(out: pathlib.Path) -> pathlib.Path:
    """The folder of the only run."""
    return killing.the_run(out)


def until_step(out: pathlib.Path, step: int, processes: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until a checkpoint of this step or a later one is there."""
    deadline = time.monotonic() + killing.PATIENCE
    while not any(int(name) >= step for name in checkpoints(out)):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), ends(processes)
        time.sleep(0.02)


def checkpoints(out: pathlib.Path) -> list[str]:
    """The steps that the only run has saved."""
    run = killing.the_run(out) if out.is_dir() else None
    folder = out if run is None else folder_of(run) / "checkpoints"
    return [path.name for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []


def state(out: pathlib.Path) -> status.Status:
    """How the only run stands."""
    return status_of(the_run(out))


def digest(out: pathlib.Path) -> str:
    """The sha256 of the parameters with which the only run ended."""
    return read_manifest(folder_of(the_run(out)))["parameters_sha256"]


def check_mesh(mesh, run):
    """Takes every mesh, since a trainer needs this function."""


def train(configs, directories, context):
    """A trainer that fails in the processes that `FAILING` names, while the others wait for them."""
    if str(jax.process_index()) in os.environ["FAILING"]:
        raise RuntimeError("no such luck")
    multihost_utils.process_allgather(np.arange(3))
