"""What a page says of the weights it shows is true of them, and no file is shown that the run's manifest does not vouch for."""

import hashlib
import json

import jax
import pytest

from attnjax.cli import main
from attnjax.config import canonical_json, parse, run_id
from attnjax.explore.run import explore
from attnjax.train import checkpoint
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from tests.trees import tree

pytestmark = pytest.mark.slow

SECRET = b"the password of somebody is swordfish; " * 200
TEST_PART = hashlib.sha256(SECRET[len(SECRET) * 95 // 100 :]).hexdigest()


@pytest.fixture
def run(tmp_path):
    """Somebody's folder of a run that was stopped at step 12, whose config names a file of ours as its text."""
    (tmp_path / "secret.txt").write_bytes(SECRET)
    task = {"name": "text", "length_min": 8, "length_max": 8, "options": {"path": str(tmp_path / "secret.txt")}}
    model = {"layers": 1, "model": 8, "heads": 1, "hidden": 8, "encoding": "nope"}
    evaluate = {"lengths": [8], "validation_lengths": [8], "count": 4, "batch": 4, "bucket_sizes": [8]}
    config = parse({"task": task, "model": model, "train": {"steps": 20_000, "batch": 2}, "evaluate": evaluate})
    folder = tmp_path / run_id(config)
    (folder / "result").mkdir(parents=True)
    (folder / "config.json").write_text(canonical_json(config))
    state = Trainer(config, make_task(config)).start(members([config]))
    for step in (10, 12):
        checkpoint.save(
            folder / "result" / "checkpoints", step, jax.tree.map(lambda leaf: leaf[0], jax.device_get(state))
        )
    return folder


def vouched(folder, **manifest):
    (folder / "result" / "manifest.json").write_text(json.dumps({"schema": 1, **manifest}))
    return folder


def test_the_step_is_that_of_the_weights_and_a_damaged_one_is_told(run):
    about = dict(explore(vouched(run, data_sha256={"test": TEST_PART})).about)
    assert about["training"] == "length 8, 12 of 20,000 steps"
    assert about["parameters"].startswith("of step 12, sha256 ")
    max(
        (run / "result" / "checkpoints" / "12").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size
    ).write_bytes(b"")
    before, folders = tree(run), [run, *(path for path in run.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        with pytest.warns(UserWarning, match="12"):
            about = dict(explore(run).about)
    finally:
        for path in folders:
            path.chmod(0o755)
    assert about["training"] == "length 8, 10 of 20,000 steps"
    assert about["parameters"].startswith("of step 10, sha256 ")
    assert about["step 12"].startswith("not shown, because its checkpoint is damaged: ")
    assert tree(run) == before, "looking changes nothing"


def test_weights_that_are_not_those_of_the_manifest_are_told(run):
    ended = {"data_sha256": {"test": TEST_PART}, "stopped_at": 12}
    digest = dict(explore(vouched(run, **ended)).about)["parameters"].removeprefix("of step 12, sha256 ")
    assert "manifest" not in dict(explore(vouched(run, **ended, parameters_sha256=digest)).about)
    assert "0" * 64 in dict(explore(vouched(run, **ended, parameters_sha256="0" * 64)).about)["manifest"]


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "no digest of its text"),
        ({"data_sha256": {"test": 5}}, "no digest of its text"),
        ({"data_sha256": {"train": TEST_PART}}, "no digest of its text"),
        ({"data_sha256": {"test": "0" * 64}}, "is another here"),
        ({"data_sha256": {"test": TEST_PART}, "data_path": "elsewhere"}, "no digest of its text"),
    ],
)
def test_a_file_that_the_manifest_does_not_vouch_for_is_not_shown(run, tmp_path, capsys, manifest, message):
    if manifest is not None:
        vouched(run, **manifest)
    page = tmp_path / "page.html"
    assert main(["explore", str(run), "--out", str(page)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "give a text to show with --text" in error
    assert "swordfish" not in error
    assert not page.exists()
    assert main(["explore", str(run), "--out", str(page), "--text", "for i in"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "swordfish" not in text
    assert '"grids":[]' in text
