"""The command line with real training: what fails is recorded, what cannot work is told before anything is compiled."""

import contextlib
import json
import resource

import jax
import jax.numpy as jnp
import pytest

from attnjax.cli import main
from attnjax.config import parse
from attnjax.sweep import plan, prepare, run_here, seeds
from attnjax.train import checkpoint
from tests.train.killing import CONFIG


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A place with the config `tiny.json`."""
    monkeypatch.chdir(tmp_path)
    small = {**CONFIG, "train": {**CONFIG["train"], "steps": 8, "checkpoint_every": 4}}
    (tmp_path / "tiny.json").write_text(json.dumps(small))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("not a folder")
    return tmp_path


def test_one_command_trains_and_reports(folder, capsys):
    command = ["run", "tiny.json", "--over", "model.encoding=rope,nope", "--seeds", "2", "--out", "out", "--report"]
    assert main(command) == 0
    assert "4 runs: 4 done" in capsys.readouterr().out
    page = (folder / "out" / "report" / "report.html").read_bytes()
    assert main(command) == 0, "again: nothing is trained, and the report is the same"
    assert "4 of them before" in capsys.readouterr().out
    assert (folder / "out" / "report" / "report.html").read_bytes() == page


@contextlib.contextmanager
def small_files():
    """No file may grow beyond 64 KiB: writing more is refused as by a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_does_not_fit_fails_its_run_and_leaves_the_one_before(folder):
    def train(configs, directories, context):
        context.truncate_after(directories[0], 0)
        here = directories[0] / "checkpoints"
        checkpoint.save(here, 1, {"w": jnp.arange(2.0**10)})
        context.step(directories[0], 1)
        checkpoint.save(here, 2, {"w": jax.random.normal(jax.random.key(0), (2**16,))})

    store = prepare(folder / "out", "tiny", plan(parse(json.loads((folder / "tiny.json").read_text())), seeds(1)))
    with small_files():
        (bad,) = run_here(store, train).of("failed")
    assert store.status(bad).reason.startswith("disk full: OSError: checkpoint of step 2 could not be saved")
    here = store.folder(bad) / "checkpoints"
    assert [path.name for path in here.iterdir()] == ["1"], "nothing half-written stays"
    assert checkpoint.restore(here, {"w": jnp.zeros(2**10)}).step == 1
