"""Loading 200 MB of weights: the largest memory of a process of its own, as the system counts it."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.models.toys import TOYS, folder, sharded

ROOT = pathlib.Path(__file__).parents[2]
STATUS = pathlib.Path("/proc/self/status")
LARGE = {"vocab": 32_768, "width": 512, "layers": 11, "heads": 8, "hidden": 2048}
SMALL = {"vocab": 8, "width": 8, "layers": 1, "heads": 2, "hidden": 8}
CODE = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
from attnjax.models.folder import load
from tests.models.toys import TOYS

def kilobytes(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

load(sys.argv[1], models=TOYS)
before = kilobytes("VmRSS:")
sharding = None
if sys.argv[4] == "sharding":
    mesh = jax.make_mesh((2,), ("x",))
    # Every parameter is split along its largest axis: what lies on both devices would count twice.
    spread = lambda path, shape: jax.sharding.PartitionSpec(*[None] * shape.index(max(shape)), "x")
    sharding = lambda path, shape: jax.sharding.NamedSharding(mesh, spread(path, shape))
loaded = load(sys.argv[2], models=TOYS, dtype=None if sys.argv[3] == "-" else sys.argv[3], sharding=sharding)
print(1024 * (kilobytes("VmHWM:") - before))
"""


def weights(path: pathlib.Path, sizes: dict[str, int], write=folder) -> int:
    """A folder of such a model, and the bytes of its parameters."""
    spec = TOYS["fused"].config(sizes)
    tensors = {weight.names[0]: np.ones(weight.shape, np.float32) for weight in TOYS["fused"].weights(spec)}
    write(path, "fused", tensors, **sizes)
    return sum(value.nbytes for value in tensors.values())


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="the memory of a process is read where Linux says it")
@pytest.mark.parametrize(
    ("dtype", "share", "how"),
    [("-", 1.0, "file"), ("bfloat16", 0.5, "file"), ("-", 1.0, "files"), ("-", 1.0, "sharding")],
)
def test_the_peak_is_at_most_a_fifth_above_the_weights(tmp_path, dtype, share, how):
    weights(tmp_path / "small", SMALL)
    total = weights(tmp_path / "large", LARGE, sharded if how == "files" else folder)
    assert total > 200e6
    command = [sys.executable, "-c", CODE, str(tmp_path / "small"), str(tmp_path / "large"), dtype, how]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert share * total <= int(done.stdout) <= 1.2 * share * total
