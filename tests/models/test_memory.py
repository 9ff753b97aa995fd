"""Loading 200 MB of weights: the largest memory of a process of its own, as the system counts it."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.models.toys import TOYS, folder

ROOT = pathlib.Path(__file__).parents[2]
STATUS = pathlib.Path("/proc/self/status")
LARGE = {"vocab": 32_768, "width": 512, "layers": 11, "heads": 8, "hidden": 2048}
SMALL = {"vocab": 8, "width": 8, "layers": 1, "heads": 2, "hidden": 8}
CODE = """
import sys
from attnjax.models import load
from tests.models.toys import TOYS

def kilobytes(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

load(sys.argv[1], models=TOYS)
before = kilobytes("VmRSS:")
loaded = load(sys.argv[2], models=TOYS, dtype=None if sys.argv[3] == "-" else sys.argv[3])
print(1024 * (kilobytes("VmHWM:") - before))
"""


def weights(path: pathlib.Path, sizes: dict[str, int]) -> int:
    """A folder of such a model, and the bytes of its parameters."""
    spec = TOYS["fused"].config(sizes)
    tensors = {weight.names[0]: np.ones(weight.shape, np.float32) for weight in TOYS["fused"].weights(spec)}
    folder(path, "fused", tensors, **sizes)
    return sum(value.nbytes for value in tensors.values())


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="the memory of a process is read where Linux says it")
@pytest.mark.parametrize(("dtype", "share"), [("-", 1.0), ("bfloat16", 0.5)])
def test_the_peak_is_at_most_a_fifth_above_the_weights(tmp_path, dtype, share):
    weights(tmp_path / "small", SMALL)
    total = weights(tmp_path / "large", LARGE)
    assert total > 200e6
    command = [sys.executable, "-c", CODE, str(tmp_path / "small"), str(tmp_path / "large"), dtype]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert share * total <= int(done.stdout) <= 1.2 * share * total
