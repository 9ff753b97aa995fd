"""Loading 200 MB of weights: the largest memory of a process of its own, as the system counts it."""

import pathlib
import subprocess
import sys

import pytest

from tests.models.folders import LLAMA, folder, tensors

STATUS = pathlib.Path("/proc/self/status")
LARGE = {"vocab_size": 32_768, "hidden_size": 512, "num_hidden_layers": 10, "num_attention_heads": 8}
LARGE |= {"intermediate_size": 2048, "tie_word_embeddings": True}
CODE = """
import sys
from attnjax.models import load

def kilobytes(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

load(sys.argv[1])
before = kilobytes("VmRSS:")
loaded = load(sys.argv[2], dtype=None if sys.argv[3] == "-" else sys.argv[3])
print(1024 * (kilobytes("VmHWM:") - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="the memory of a process is read where Linux says it")
@pytest.mark.parametrize(("dtype", "share"), [("-", 1.0), ("bfloat16", 0.5)])
def test_the_peak_is_at_most_a_fifth_above_the_weights(tmp_path, dtype, share):
    held = tensors(LLAMA | LARGE)
    folder(tmp_path / "small", LLAMA)
    folder(tmp_path / "large", LLAMA | LARGE, held)
    total = sum(value.nbytes for value in held.values())
    assert total > 200e6
    command = [sys.executable, "-c", CODE, str(tmp_path / "small"), str(tmp_path / "large"), dtype]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert share * total <= int(done.stdout) <= 1.2 * share * total
