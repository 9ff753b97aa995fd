"""What compiles for devices that are not here: the same programs on virtual CPU devices."""

import jax
import pytest

from attnjax.aot import Topology
from experiments.devices import __main__ as devices
from experiments.devices.__main__ import NAMES, Case
from tests.cases import slow_except

THERE = Topology("virtual:8", "cpu", tuple(jax.devices()[:8]), 2**40)
ROW = {"device": "v5e:2x4", "case": ["data", "t5", 512, ""], "temporary": 2**20, "collectives": {"all-reduce": [2, 64]}}


@pytest.mark.parametrize("name", slow_except(NAMES, "t5"))
def test_a_batch_over_devices_is_computed_by_each_for_itself(name):
    """No collective but sums of gradients: eight devices do not do the work of one eight times."""
    found = devices.attention(THERE, Case("data", name, 512))
    assert found["collectives"].keys() <= {"all-reduce"}


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["", "window"])
@pytest.mark.parametrize("name", ["t5", "fox"])
def test_a_ring_gathers_nothing(name, variant):
    found = devices.attention(THERE, Case("ring", name, 512, variant))
    assert found["collectives"].keys() == {"all-reduce", "collective-permute"}


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "moved"), [("data=8", {"all-reduce"}), ("population=8", set())])
def test_a_training_step_adds_gradients_alone(mesh, moved, monkeypatch):
    monkeypatch.setattr(devices, "MODEL", devices.MODEL | {"model": 32, "hidden": 64, "layers": 2})
    found = devices.training(THERE, Case("train", "decoder", 64, mesh))
    assert found["collectives"].keys() == moved
    assert found["memory"] > found["temporary"] > 0


@pytest.mark.parametrize(
    ("change", "before", "told"),
    [
        ({}, ROW, ""),
        ({}, None, ""),
        ({"temporary": 2**22}, ROW, "temporary memory was 1048576 bytes and is 4194304"),
        ({"temporary": 2**22}, {"error": "no memory"}, ""),
        ({"collectives": {"all-gather": [1, 4]}}, ROW, "all-gather among the collectives"),
        ({"error": "no memory"}, ROW, "refused: no memory"),
    ],
)
def test_what_is_worse_than_its_record_is_told(change, before, told):
    assert devices.wrong(ROW | change, before) == told
