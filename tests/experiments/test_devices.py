"""What compiles for devices that are not here: the same programs on virtual CPU devices."""

import jax
import pytest

from attnjax.aot import Topology
from experiments.devices import __main__ as devices
from experiments.devices.__main__ import NAMES, Case
from tests.cases import slow_except

THERE = Topology("virtual:8", "cpu", tuple(jax.devices()[:8]), 2**40)


@pytest.mark.parametrize("name", slow_except(NAMES, "t5"))
def test_a_batch_over_devices_is_computed_by_each_for_itself(name):
    """No collective but sums of gradients: eight devices do not do the work of one eight times."""
    found = devices.attention(THERE, Case("data", name, 512))
    assert found["collectives"].keys() <= {"all-reduce"}
