"""The command line with real training: what fails is recorded, and the others of its sweep end done."""

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from attnjax.cli import main
from attnjax.config import parse
from attnjax.sweep import plan, prepare, run_here, seeds
from attnjax.train import checkpoint
from tests.cases import slow_except
from tests.runs import runs_in
from tests.train.killing import CONFIG, ROOT

SMALL = {**CONFIG, "train": {**CONFIG["train"], "steps": 8, "checkpoint_every": 4}}
LIMIT = 6000 * 2**20
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from attnjax.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with the config `tiny.json`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(SMALL))
    return tmp_path


@pytest.mark.parametrize("report", slow_except([[], ["--report"]], []))
def test_one_command_trains_and_reports(folder, capsys, report):
    command, pages = ["run", "tiny.json", "--seeds", "2", "--out", "out", *report], []
    for trained in (True, False):
        assert main(command) == 0
        assert ("2 runs: 2 done  " in capsys.readouterr().out) == trained
        pages.append([page.read_bytes() for page in (folder / "out").glob("report/report.html")])
    assert pages[0] == pages[1], "again: nothing is trained, and the report is the same"
    assert len(pages[0]) == len(report)


def test_a_checkpoint_that_does_not_fit_fails_its_run_and_leaves_the_one_before(folder):
    """No file may grow beyond 64 KiB: writing more is refused as by a full disk."""
    first, second = {"w": np.arange(2.0**10)}, {"w": np.random.default_rng(0).normal(size=2**16)}

    def train(configs, directories, context):
        context.truncate_after(directories[0], 0)
        checkpoint.save(directories[0] / "checkpoints", 1, first)
        context.step(directories[0], 1)
        checkpoint.save(directories[0] / "checkpoints", 2, second)

    store = prepare(folder / "out", "tiny", plan(parse(SMALL), seeds(1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        (bad,) = run_here(store, train).of("failed")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.status(bad).reason.startswith("disk full: OSError: checkpoint of step 2 could not be saved")
    here = store.folder(bad) / "checkpoints"
    assert [path.name for path in here.iterdir()] == ["1"], "nothing half-written stays"
    assert checkpoint.restore(here, first).step == 1


@pytest.mark.slow
def test_a_run_out_of_memory_says_so_and_the_next_one_trains(folder):
    """Two matrices of 1.3 GB each, three times: as parameters, and as what Adam keeps of them."""
    command = ["run", "tiny.json", "model.model=320", "--over", "model.hidden=1000000,8", "--out", "out"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(LIMIT), *command],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 runs: 1 failed, 1 done" in done.stdout
    large, small = runs_in(folder / "out")
    assert (large.status.state, small.status.state) == ("failed", "done")
    assert large.status.reason.startswith("oom: ")
    assert small.results()
