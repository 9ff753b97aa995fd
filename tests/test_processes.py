"""Two processes on one machine, which send to each other with Gloo, beside one: the same numbers."""

import numpy as np
import pytest

from attnjax.config.mesh import parse_mesh
from attnjax.train import checkpoint
from attnjax.train.loop import CHECKPOINTS, train
from tests import spread
from tests.train.conftest import Recorder


def assert_near(found, expected, atol):
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_allclose(
            found[name], expected[name], atol=atol * max(1, np.abs(expected[name]).max()), err_msg=name
        )


def assert_same_bits(found, expected, names):
    assert set(names) <= found.keys()
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", spread.ENCODINGS)
def test_a_ring_over_two_processes_equals_one_device(tmp_path, name):
    """Two devices of each. What no sum over all devices is part of has the bits of four devices of one process."""
    first, second = spread.in_processes(tmp_path, name, processes=2, devices=2)
    assert_same_bits(first, second, first)
    assert_near(first, spread.ring(name, 1), 1e-5)
    assert_same_bits(first, spread.ring(name, 4), [one for one in first if "params" not in one])


@pytest.mark.slow
def test_training_over_two_processes_equals_one_device(tmp_path):
    """Of two addends the order does not matter: two devices of one process have the same bits."""
    first, second = spread.in_processes(tmp_path, "training", processes=2, devices=1)
    assert_same_bits(first, second, first)
    alone, together = spread.training(("",)), spread.training(spread.MESHES)
    for mesh in spread.MESHES:
        own = {name.removeprefix(mesh): leaf for name, leaf in first.items() if name.startswith(mesh)}
        assert_near(own, alone, 1e-5)
    assert_same_bits(first, together, first)


@pytest.mark.slow
def test_runs_over_two_processes_are_stopped_and_resumed_as_in_one(tmp_path):
    """The first process alone writes records and checkpoints; the second is asked to stop, and restores as the first says."""
    first, second = spread.in_processes(tmp_path, "runs", processes=2, devices=1)
    assert second == {}
    alone = spread.runs(tmp_path / "alone")
    assert_same_bits(first, alone, alone)


@pytest.mark.slow
def test_a_lost_process_ends_the_others_and_the_runs_go_on_from_their_checkpoint(tmp_path):
    """The first process must not wait for ever; in one process the runs then end with the bits of undisturbed ones."""
    (first, told), (second, _) = spread.ends(tmp_path, "lost", processes=2, devices=1)
    assert second == spread.GONE
    assert first not in (0, spread.GONE), told
    folders = [tmp_path / "runs" / name for name in "01"]
    assert [checkpoint.steps(folder / CHECKPOINTS) for folder in folders] == [[4], [4]]
    undisturbed = spread.runs(tmp_path / "alone")
    last = Recorder(mesh=parse_mesh("population=2"))
    train(spread.two_runs(), folders, last)
    assert [last.notes[name]["parameters_sha256"] for name in "01"] == undisturbed["sha"].tolist()
