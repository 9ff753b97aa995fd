"""The command line with real training: what fails is recorded, what cannot work is told before anything is compiled."""

import json
import resource

import jax
import jax.numpy as jnp
import pytest

from attnjax.cli import main
from attnjax.config import parse
from attnjax.sweep import Stop, plan, prepare, run_here, scan, seeds
from attnjax.train import checkpoint, train
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


@pytest.mark.slow
def test_a_loss_that_is_not_finite_fails_its_run_and_no_other(folder, capsys):
    command = ["sweep", "tiny.json", "--over", "train.learning_rate=1e-3,1e30", "--out", "out"]
    (folder / "out").mkdir()
    (folder / "out" / "junk").write_text("of somebody else")
    assert main(command) == 1
    told = capsys.readouterr().out
    good, bad = sorted(scan(folder / "out").runs, key=lambda run: run.config.train.learning_rate)
    assert (good.status.state, bad.status.state) == ("done", "failed")
    assert bad.status.reason.startswith(f"nan at step {bad.status.step}: the loss was ")
    assert 1 <= bad.status.step <= 8
    assert f"failed   {bad.run}: nan at step" in told
    assert "2 runs: 1 done, 1 failed" in told
    assert {one["length"] for one in good.results().tables} == {2, 4, 6}
    assert not bad.results().tables
    assert max([0, *checkpoint.steps(bad.folder / "checkpoints")]) < bad.status.step
    assert main(command) == 1, "it is not tried again, and counts"
    assert (folder / "out" / "junk").read_text() == "of somebody else"


def test_one_command_trains_and_reports(folder, capsys):
    command = ["sweep", "tiny.json", "--over", "model.encoding=rope,nope", "--seeds", "2", "--out", "out", "--report"]
    assert main(command) == 0
    assert "4 runs: 4 done" in capsys.readouterr().out
    table = (folder / "out" / "report" / "table.md").read_text()
    assert "| *RoPE (not fitted)* |" in table, "so few steps are not enough to learn the task"
    assert "| *NoPE (not fitted)* |" in table
    assert (folder / "out" / "report" / "figure.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "out" / "report" / "report.html").read_bytes()
    assert main(command) == 0, "again: nothing is trained, and the report is the same"
    assert "4 of them before" in capsys.readouterr().out
    assert (folder / "out" / "report" / "report.html").read_bytes() == page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("task.name=bucket_sor", "(did you mean 'bucket_sort'?)"),
        ("model.encoding=alibbi", "(did you mean 'alibi'?)"),
        ("train.learning_rat=1", "(did you mean 'train.learning_rate'?)"),
        ("train.learning_rate=nan", "train.learning_rate must be a finite number above 0"),
        ("train.weight_decay=-1", "train.weight_decay must be"),
        ("train.steps=0", "train.steps must be"),
        ("task.options.colour=3", "colour"),
        ("model.encoding.options.thetta=3", "thetta"),
        ("task.name=text task.options.path=nowhere", "nowhere"),
        ("task.name=text task.options.path=empty", "empty"),
        ("--out=file", "results cannot be written to file"),
        ("--out=file/below", "results cannot be written to file/below"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_compiled_or_made(folder, capsys, monkeypatch, changes, message):
    def compiled(*_):
        raise AssertionError("a program was compiled")

    monkeypatch.setattr("attnjax.train.loop.train", compiled)
    monkeypatch.setattr("attnjax.train.train", compiled)
    assert main(["run", "tiny.json", *changes.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnjax: error: ")
    assert message in error
    assert "Traceback" not in error
    assert sorted(path.name for path in folder.iterdir()) == ["empty", "file", "tiny.json"]


@pytest.fixture
def small_files():
    """No file may grow beyond 64 KiB: writing more is refused as by a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_does_not_fit_fails_its_run_and_leaves_the_one_before(folder, small_files):
    def train(configs, directories, context):
        context.truncate_after(directories[0], 0)
        here = directories[0] / "checkpoints"
        checkpoint.save(here, 1, {"w": jnp.arange(2.0**10)})
        context.step(directories[0], 1)
        checkpoint.save(here, 2, {"w": jax.random.normal(jax.random.key(0), (2**16,))})

    store = prepare(folder / "out", "tiny", plan(parse(json.loads((folder / "tiny.json").read_text())), seeds(1)))
    (bad,) = run_here(store, train).of("failed")
    assert store.status(bad).reason.startswith("disk full: OSError: checkpoint of step 2 could not be saved")
    here = store.folder(bad) / "checkpoints"
    assert [path.name for path in here.iterdir()] == ["1"], "nothing half-written stays"
    found = checkpoint.restore(here, {"w": jnp.zeros(2**10)})
    assert (found.step, found.state["w"].tolist()) == (1, list(range(2**10)))


@pytest.mark.slow
def test_a_run_that_is_added_to_a_sweep_throws_no_other_back_and_keeps_its_checkpoints(folder):
    config = parse(json.loads((folder / "tiny.json").read_text()))
    store, stop = prepare(folder / "out", "tiny", plan(config, seeds(1))), Stop()
    run_here(store, train, progress=lambda event: stop.set("a test") if event.step >= 4 else None, stop=stop)
    (first,) = scan(store.root).runs
    reached, kept = first.status.step, []
    assert (first.status.state, reached in checkpoint.steps(first.folder / "checkpoints"), reached < 8) == (
        "preempted",
        True,
        True,
    )

    def watched(configs, directories, context):
        train(configs, directories, context)
        kept.append(checkpoint.steps(first.folder / "checkpoints"))

    more = prepare(folder / "out", "tiny", plan(config, seeds(2)), extend=True)
    assert str(run_here(more, watched)) == "2 runs: 2 done"
    manifests = [run.manifest() for run in scan(store.root).runs]
    assert [(one["resumed_from"], one["population_size"], one["determinism"]) for one in manifests] == [
        (reached, 1, "bitwise"),
        (0, 1, "bitwise"),
    ]
    assert kept == [[reached, 8], [reached, 8]]
    assert [[one["step"] for one in run.metrics().tables] for run in scan(store.root).runs] == [[2, 4, 6, 8]] * 2
