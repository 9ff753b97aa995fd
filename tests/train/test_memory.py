"""A run too large for the memory there is: it fails by name, and the others of its sweep end done."""

import json
import os
import subprocess
import sys

import pytest

from attnjax.sweep import scan
from tests.train.killing import CONFIG, ROOT

LIMIT = 6000 * 2**20
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from attnjax.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
def test_a_run_out_of_memory_says_so_and_the_next_one_trains(tmp_path):
    """Two matrices of 1.3 GB each, three times: as parameters, and as what Adam keeps of them."""
    train = {**CONFIG["train"], "steps": 4}
    (tmp_path / "tiny.json").write_text(json.dumps({**CONFIG, "train": train}))
    command = ["sweep", "tiny.json", "model.model=320", "--over", "model.hidden=1000000,8", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(LIMIT), *command],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "1", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 runs: 1 failed, 1 done" in done.stdout
    large, small = scan(tmp_path / "out").runs
    assert (large.status.state, small.status.state) == ("failed", "done")
    assert large.status.reason.startswith("oom: ")
    assert small.results().tables
