"""Documents that are added to old records: one file of a run changes, and damage of another is not covered up."""

import json
import pathlib

import numpy as np
import pytest

from attnjax.config import parse, run_id, to_dict
from attnjax.records import examples, inventory, status
from scripts import add_documents

TEST = ("test", 128, examples.DOCUMENT)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of text with scores and without documents, which are those of this text."""
    config = parse({"task": {"name": "text"}})
    monkeypatch.setattr(add_documents, "documents_of", lambda run: ({TEST: np.array([0.0, 1.0])}, {"test": "a digest"}))
    directory = tmp_path / run_id(config)
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(to_dict(config)))
    (directory / "metrics.jsonl").write_text("1\n")
    (directory / "results.jsonl").write_text("2\n3\n")
    examples.write(directory, examples.Examples(7, {("test", 128, "loss"): np.array([2.0, 3.0])}, {}))
    (directory / status.FILE).write_text(json.dumps({"schema": 1, **status.Status()._asdict(), "state": "done"}))
    manifest = {"schema": 1, "state": "done", "data_sha256": {"test": "a digest"}}
    (directory / "manifest.json").write_text(json.dumps({**manifest, "records": inventory.take(directory)}))
    return directory


def manifest_of(run: pathlib.Path) -> dict:
    return json.loads((run / "manifest.json").read_text())


@pytest.mark.parametrize("recorded", [True, False], ids=["with an inventory", "of an earlier version"])
def test_documents_are_added_and_one_entry_of_the_inventory_changes(run, recorded):
    before = manifest_of(run)
    if not recorded:
        del before["records"]
        (run / "manifest.json").write_text(json.dumps(before))
    add_documents.main([str(run.parent)])
    assert list(examples.read(run).scores[TEST]) == [0.0, 1.0]
    after = manifest_of(run)
    assert inventory.differences(run, "done", after) == {}
    assert {**after, "records": 0} == {**before, "records": 0} if recorded else after == before
    if recorded:
        changed = {name for name, entry in after["records"].items() if entry != before["records"][name]}
        assert changed == {"examples.npz"}


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.jsonl", "examples.npz"])
def test_a_run_whose_files_are_not_those_of_its_end_is_refused(run, name):
    path = run / name
    if name == "examples.npz":
        examples.write(run, examples.Examples(7, {("test", 128, "loss"): np.array([0.0, 0.0, 0.5])}, {}))
    else:
        path.write_text("")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(SystemExit, match=f"{run}: {name} has .*; when the run ended it had"):
        add_documents.main([str(run.parent)])
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
