"""What a page says of the weights it shows is true of them, and no file is shown that the run's manifest does not vouch for."""

import hashlib
import json
import os
import pathlib
import shutil

import pytest

from attnjax.analysis.loaded_model import load
from attnjax.cli import main
from attnjax.config import canonical_json, parse, run_id
from attnjax.explore.contents import Loss
from attnjax.explore.data import explore
from attnjax.sweep import Stop, load as load_sweep, prepare, run_here
from attnjax.sweep.plan import plan
from attnjax.train import train
from attnjax.train.checkpoint import restore, save
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer
from tests.trees import tree

pytestmark = pytest.mark.slow

FROZEN = pathlib.Path(__file__).parents[1] / "frozen" / "format_1"
SECRET = b"the password of somebody is swordfish; " * 200
CONFIG = {
    "name": "long",
    "task": {"name": "text", "length_min": 8, "length_max": 8},
    "model": {"layers": 1, "model": 8, "heads": 1, "hidden": 8, "encoding": "nope"},
    "train": {"steps": 20_000, "batch": 2, "log_every": 2, "checkpoint_every": 2},
    "evaluate": {"lengths": [8], "validation_lengths": [8], "count": 4, "batch": 4, "bucket_sizes": [8]},
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a text run of 20,000 steps that was stopped at step 12; the one before its newest checkpoint is 10."""
    root = tmp_path_factory.mktemp("stopped")
    (root / "text.bin").write_bytes(bytes(range(256)) * 40)
    task = {**CONFIG["task"], "options": {"path": str(root / "text.bin")}}
    stop = Stop()
    store = prepare(root / "runs", "long", plan(parse({**CONFIG, "task": task})))
    run_here(store, train, stop=stop, progress=lambda event: event.step >= 12 and stop.set("SIGTERM"))
    run, attempt = store.directory(store.runs[0].run), store.folder(store.runs[0].run)
    for path in attempt.iterdir():  # as earlier versions had it, so that tests find the files of a run in one folder
        path.rename(run / path.name)
    attempt.rmdir()
    return run


@pytest.fixture
def copy(stopped, tmp_path):
    return pathlib.Path(shutil.copytree(stopped, tmp_path / stopped.name))


@pytest.fixture
def no_loss(monkeypatch):
    monkeypatch.setattr("attnjax.explore.data.loss_by_position", lambda *_: Loss("", 1, (), (), ()))


def test_the_step_is_that_of_the_weights_and_not_that_of_the_config(stopped, no_loss):
    about = dict(explore(stopped).about)
    assert about["training"] == "length 8, 12 of 20,000 steps"
    assert about["parameters"].startswith("of step 12, sha256 ")
    assert len(about["parameters"].rpartition(" ")[2]) == 64
    assert not [name for name in about if name.startswith("step ")]


def test_a_fallback_is_told_on_the_page(copy, no_loss, tmp_path, capsys):
    newest = copy / "checkpoints" / "12"
    for path in newest.rglob("d/*"):
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="checkpoint of step 12 is damaged"):
        about = dict(explore(copy).about)
    assert about["training"] == "length 8, 10 of 20,000 steps"
    assert about["parameters"].startswith("of step 10, sha256 ")
    assert about["step 12"].startswith("not shown, because its checkpoint is damaged: SHA256SUMS disagrees with state/")
    with pytest.warns(UserWarning, match="checkpoint of step 12 is damaged"):
        assert main(["explore", str(copy), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "12 of 20,000" not in page
    assert "not shown, because its checkpoint is damaged" in page


def test_the_digest_is_that_of_the_manifest_of_a_run_that_ended(no_loss, monkeypatch):
    (done,) = (path for path in FROZEN.iterdir() if path.is_dir() and (path / "checkpoints" / "60").is_dir())
    manifest = json.loads((done / "manifest.json").read_text())
    about = dict(explore(done).about)
    assert about["parameters"] == f"of step 60, sha256 {manifest['parameters_sha256']}"
    assert "manifest" not in about
    monkeypatch.setattr("attnjax.explore.data.read_manifest", lambda _: {**manifest, "parameters_sha256": "0" * 64})
    assert dict(explore(done).about)["manifest"] == f"names other parameters than these: sha256 {'0' * 64}"


def test_looking_changes_nothing_even_where_a_checkpoint_is_damaged_and_nothing_may_be_written(copy, tmp_path):
    (copy / "checkpoints" / "12" / "SHA256SUMS").write_text("nonsense")
    (copy / "checkpoints" / "partial-9-00000000").mkdir()
    before = tree(copy)
    folders = [copy, *(path for path in copy.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        with pytest.warns(UserWarning, match="has a line that is no digest"):
            assert load(copy).step == 10
        with pytest.warns(UserWarning, match="has a line that is no digest"):
            assert main(["explore", str(copy), "--out", str(tmp_path / "page.html")]) == 0
    finally:
        for path in folders:
            path.chmod(0o755)
    assert tree(copy) == before


@pytest.fixture
def planted(stopped, tmp_path):
    """Somebody's folder of a run with this one's checkpoints, whose config names a file of ours as its text."""
    (tmp_path / "secret.txt").write_bytes(SECRET)
    config = parse({**CONFIG, "task": {**CONFIG["task"], "options": {"path": str(tmp_path / "secret.txt")}}})
    folder = tmp_path / run_id(config)
    folder.mkdir()
    (folder / "config.json").write_text(canonical_json(config))
    state = restore(stopped / "checkpoints", Trainer(config, make_task(config)).shapes()).state
    save(folder / "checkpoints", 12, state)
    return folder


TEST_PART = hashlib.sha256(SECRET[len(SECRET) * 95 // 100 :]).hexdigest()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "The manifest of the run has no digest of its text"),
        ({}, "The manifest of the run has no digest of its text"),
        ({"data_sha256": None}, "The manifest of the run has no digest of its text"),
        ({"data_sha256": {"test": 5}}, "The manifest of the run has no digest of its text"),
        ({"data_sha256": {"train": TEST_PART}}, "The manifest of the run has no digest of its text"),
        ({"data_sha256": {"test": "0" * 64}}, "is another here: its sha256 is not that of the manifest"),
        ({"data_sha256": {"test": TEST_PART}, "data_path": "elsewhere"}, "has no digest of its text"),
    ],
)
def test_a_file_that_the_manifest_does_not_vouch_for_is_not_shown(planted, tmp_path, capsys, manifest, message):
    if manifest is not None:
        (planted / "manifest.json").write_text(json.dumps({"schema": 1, **manifest}))
    page = tmp_path / "page.html"
    assert main(["explore", str(planted), "--out", str(page)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.endswith("give a text to show with --text or --file\n")
    assert "swordfish" not in error
    assert not page.exists()
    assert main(["explore", str(planted), "--out", str(page), "--text", "for i in"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "swordfish" not in text
    assert "not measured. The " in text
    assert "no scores. The " in text
    assert '"grids":[]' in text


def test_a_file_that_the_manifest_vouches_for_is_shown(planted, no_loss):
    (planted / "manifest.json").write_text(json.dumps({"schema": 1, "data_sha256": {"test": TEST_PART}}))
    assert len(explore(planted).texts) == 3


def test_a_text_that_is_gone_is_asked_for(planted, tmp_path):
    (planted / "manifest.json").write_text(json.dumps({"schema": 1, "data_sha256": {"test": TEST_PART}}))
    (tmp_path / "secret.txt").unlink()
    with pytest.raises(ValueError, match="cannot be read: Text: no file or folder at .*; give a text to show"):
        explore(planted)


def test_a_run_records_the_path_and_the_digests_of_its_text(stopped):
    manifest = json.loads((stopped / "manifest.json").read_text())
    data = (stopped.parents[1] / "text.bin").read_bytes()
    assert manifest["data_path"] == str(stopped.parents[1] / "text.bin")
    assert manifest["data_sha256"]["test"] == hashlib.sha256(data[len(data) * 95 // 100 :]).hexdigest()


@pytest.mark.parametrize("command", [["explore"], ["list", "runs"], ["report"]])
def test_reading_commands_follow_no_link_in_a_folder_of_runs(copy, tmp_path, command, capsys):
    """What `ln -s victim R/checkpoints; attnjax explore R` did before: it moved what lay in victim."""
    victim = tmp_path / "victim"
    for name in ("2024", "2025", "60"):
        (victim / name).mkdir(parents=True)
        (victim / name / "photo").write_text(name)
    before = tree(victim)
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints").symlink_to(victim)
    (copy / "checkpoints_damaged").symlink_to(victim)
    place = copy if command == ["explore"] else copy.parent
    code = main([*command, str(place), *(["--out", str(tmp_path / "out")] if command != ["list", "runs"] else [])])
    assert code in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert tree(victim) == before
    assert os.readlink(copy / "checkpoints") == str(victim)


def test_resuming_follows_no_link_either(copy, tmp_path):
    victim = tmp_path / "victim"
    (victim / "2024").mkdir(parents=True)
    (victim / "7.orbax-checkpoint-tmp").mkdir()
    before = tree(victim)
    shutil.copyfile(copy.parent / copy.name / "config.json", tmp_path / "config.json")
    shutil.rmtree(copy / "checkpoints")
    (copy / "checkpoints").symlink_to(victim)
    store = prepare(tmp_path, "long", plan(parse(json.loads((copy / "config.json").read_text()))))
    events = []
    assert run_here(load_sweep(tmp_path), train, progress=events.append).of("done") == []
    assert store.status(copy.name).state != "done"
    assert "checkpoints is a link" in events[-1].reason
    assert tree(victim) == before
