"""The suite of a GPU on a CPU: all sides compute the same attention, and the goals are of the right rows."""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.speed.harness import Settings, difference
from experiments.speed.peers.torch_process import TorchPeer
from experiments.speed.suites import gpu
from experiments.speed.suites.gpu import CUDNN, FLEX, NO_BIAS, SDPA, XLA, problem, wide

FAKE = pathlib.Path(__file__).with_name("fake_worker.py")
SIZES = {"tokens": 48, "channels": 8}


@pytest.fixture
def told():
    """Settings of a smoke run, and the rows and lines that it makes."""
    rows, lines = [], []
    return Settings(rows.append, lines.append, smoke=True, rounds=3, seconds=0.1, refuse=lines.append), rows, lines


@pytest.mark.parametrize("name", gpu.CASES)
def test_peers_with_a_bias_array_compute_the_same(name):
    """In float32, with all gradients: of T5's table, and of FoX's sums of gates."""
    given = problem(name, 24, 4, **SIZES)
    args = wide(given.args)
    ours = gpu.program(functools.partial(given.ours, implementation="dense"), args, backward=True)(*args)
    theirs = gpu.program(functools.partial(given.of_peer, XLA), args, backward=True)(*args)
    assert difference(ours, theirs) < 1e-5
    assert args[1].shape == (2, 24, 2, 4)


@pytest.mark.parametrize("name", gpu.CASES)
def test_pytorch_gets_and_returns_the_same(name, told):
    """The kernel of the peer is done by NumPy in float64: what is checked is what is sent, received and made of it."""
    settings, rows, lines = told
    given = problem(name, 24, 4, **SIZES)
    found = gpu.program(given.ours, given.args, backward=True)(*given.args)
    with TorchPeer(pathlib.Path(sys.executable), worker=FAKE, timeout=30.0) as peer:
        gpu._beside_torch(settings, given, peer, "flex", FLEX, found, f"{name}, both", backward=True)
    assert lines == []
    (row,) = rows
    assert (row.suite, row.peer, row.goal) == ("gpu", FLEX, 0.97 if name == "nope" else None)
    assert 1e-4 < row.error < gpu.TOLERANCE


def test_a_peer_that_differs_gets_no_row(told):
    settings, rows, lines = told
    given = problem("nope", 24, 4, **SIZES)
    wrong = jax.tree.map(lambda x: 1.1 * x, given.ours(*given.args[:4]).astype(jnp.float32))
    with TorchPeer(pathlib.Path(sys.executable), worker=FAKE, timeout=30.0) as peer:
        gpu._beside_torch(settings, given, peer, "sdpa", SDPA, np.asarray(wrong), "nope, forward", backward=False)
    assert rows == []
    assert lines == [f"gpu: nope, forward, T = 24: {SDPA} differs by 1.0e-01, not measured"]


def test_goals_are_of_the_best_library_of_no_bias_and_of_cudnn():
    assert [gpu.goal_of("nope", name, best=CUDNN) for name in (XLA, CUDNN)] == [None, 0.97]
    assert [gpu.goal_of("alibi", name, best=XLA) for name in (XLA, CUDNN, NO_BIAS)] == [None, None, 0.85]
    assert [gpu.goal_of("t5", name, best=XLA) for name in (XLA, CUDNN)] == [None, 3.0]


def test_a_machine_without_a_gpu_is_told():
    rows, lines = [], []
    gpu.gpu(Settings(rows.append, lines.append))
    assert (rows, lines) == ([], ["gpu: left out, because this process sees no GPU"])
