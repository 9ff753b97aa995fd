"""Names of topologies, and what is said of those that cannot be, or whose compiler is not here."""

import pytest

from attnjax import aot


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("v5e", "topology 'v5e' must be KIND:SIZES such as v5e:4x4 or h100:8, of v5e, v5p, v6e, h100"),
        ("v9:4", "topology 'v9:4' must be KIND:SIZES such as v5e:4x4 or h100:8, of v5e, v5p, v6e, h100"),
        ("h100:0", "topology 'h100:0' has no devices"),
        ("h100:2x2x2", "topology 'h100:2x2x2' must be GPUs, or hosts x GPUs of each"),
        ("v5e:2x2x2", "topology 'v5e:2x2x2' must be AxB chips"),
        ("v5p:2x4", "topology 'v5p:2x4' must be AxBxC chips"),
        ("v6e:8", "topology 'v6e:8' must be AxB chips"),
    ],
)
def test_a_topology_that_cannot_be_is_refused(name, error):
    with pytest.raises(ValueError, match=f"^{error}$"):
        aot.topology(name)


def test_a_compiler_that_is_not_installed_is_named(monkeypatch):
    def missing(*arguments, **options):
        raise RuntimeError("Unknown platform tpu")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", missing)
    with pytest.raises(
        ValueError, match=r"^the compiler for v5e:2x2 is not here \(Unknown platform tpu\): pip install 'attnjax"
    ):
        aot.topology("v5e:2x2")


def test_a_topology_that_the_compiler_does_not_know_is_refused(monkeypatch):
    def refused(*arguments, **options):
        raise RuntimeError("INVALID_ARGUMENT: Topology layout is not divisible\nand more")

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", refused)
    error = r"^topology 'v5e:3x5' does not exist: INVALID_ARGUMENT: Topology layout is not divisible$"
    with pytest.raises(ValueError, match=error):
        aot.topology("v5e:3x5")
