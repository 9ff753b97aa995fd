"""Packed folders: the same measurements as before packing, the config of each run checked, damage reported."""

import json
import lzma
import shutil

import numpy as np
import pytest

import attnjax
from attnjax.records import examples, stored
from attnjax.records.packed import applied, difference, pack
from tests.report.synthetic import config, lines, run_id, write_run, write_spec, write_sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep of 18 runs."""
    root = tmp_path_factory.mktemp("packing") / "runs"
    write_sweep(root, tasks=("copy", "text"), encodings=("rope", "alibi", "learned"), seeds=3)
    return root


@pytest.fixture(scope="module")
def once(folder):
    """The same, packed."""
    pack(folder, folder.parent / "packed")
    return folder.parent / "packed"


@pytest.fixture
def packed(once, tmp_path):
    """A copy of it, which a test may change."""
    return shutil.copytree(once, tmp_path / "packed")


def test_a_packed_folder_has_the_same_records(folder, packed, tmp_path):
    one, other = stored.read(folder), stored.read(packed)
    assert {path.name for path in packed.iterdir()} == {"runs.jsonl", "scores.csv.xz"}
    assert len(one.runs) == 18
    for run, again in zip(one.runs, other.runs, strict=True):
        for name in ("id", "cell", "config", "state", "reason", "results", "losses"):
            assert getattr(again, name) == getattr(run, name)
        assert again.manifest.get("chance", {}) == run.manifest["chance"]
        assert again.manifest["python"] == "3.11"
    assert (other.name, other.spec["protocol"], other.skipped) == (one.name, one.spec["protocol"], ())
    assert [run.reason for run in other.runs if run.state == "failed"] == ["nan at step 160"]
    contents = lambda paths: {path.name: path.read_bytes() for path in paths}
    again = contents(pack(packed, tmp_path / "again"))
    assert again == contents(packed.iterdir())


def test_the_table_has_every_measurement_and_what_differs(folder, packed):
    table, again = attnjax.results(folder), attnjax.results(packed)
    assert table.equals(again)
    assert table.attrs == again.attrs
    names = ["run", "data_seed", "model.encoding.name", "task.length_max", "task.name", "seed"]
    assert list(table.columns) == [*names, "step", "length", "split", "metric", "value", "count"]
    one = next(run for run in stored.read(folder).runs if run.state == "done")
    mine = table[table.run == one.id]
    assert mine.value.tolist() == [row.value for row in one.results]
    assert set(mine["model.encoding.name"]) == {one.config["model"]["encoding"]["name"]}
    failed = [run for run, told in table.attrs["runs"].items() if told["state"] == "failed"]
    assert len(failed) == 1
    assert failed[0] not in set(table.run)


def test_data_seed_is_no_column_where_it_is_the_seed(tmp_path):
    configs = [config("copy", "rope", seed, data_seed=seed) for seed in range(2)]
    write_spec(tmp_path, configs)
    for one in configs:
        write_run(tmp_path, one)
    assert "data_seed" not in attnjax.results(tmp_path)


def with_scores(root, task, metric):
    """Two runs with scores of single examples, of the trained and of longer sequences."""
    configs = [config(task, "rope", seed) for seed in range(2)]
    write_spec(root, configs)
    for one in configs:
        rows = [{"run": run_id(one), "step": 400, "metric": metric, "count": 4, "value": 0.5, "split": "test"}]
        write_run(root, one, results=lines([row | {"length": n} for row in rows for n in (20, 40)]))
        kept = {("test", n, metric): np.array([0.0, 1.0, 1.0, one["seed"] / 3]) for n in (20, 40)}
        kept |= {("test", 40, "token_accuracy"): np.zeros(4), ("test", 40, examples.DOCUMENT): np.array([7, 7, 8, 9])}
        examples.write(root / run_id(one) / "result", examples.Examples(400, kept))
    return configs


def test_scores_of_examples_past_training_are_kept(tmp_path):
    with_scores(tmp_path / "runs", "text", "loss_sliding")
    pack(tmp_path / "runs", tmp_path / "packed")
    with np.load(tmp_path / "packed" / "examples.npz") as arrays:
        assert sum(name.endswith("document") for name in arrays.files) == 1  # the same for all runs
    for run in stored.read(tmp_path / "packed").runs:
        assert set(run.examples.scores) == {("test", 40, "loss_sliding"), ("test", 40, "document")}
        assert run.examples.step == 400
        scores = run.examples.scores["test", 40, "loss_sliding"]
        np.testing.assert_allclose(scores, [0, 1, 1, run.config["seed"] / 3], rtol=1e-3)
        assert run.examples.scores["test", 40, "document"].tolist() == [7, 7, 8, 9]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": True}),
        ({"b": {"options": {}}}, {"b": {"options": {"theta": 3}}}),
        ({"b": {"options": {"x": 1}}}, {"b": {"options": {"theta": 3}}}),
        ({"b": {"name": "rope"}}, {"b": [{"name": "rope"}, {"name": "nope"}]}),
        ({"b": [1, 2]}, {"b": {"name": "rope"}}),
        ({"a": 1}, {"a": 1, "new": {"x": None}}),
    ],
)
def test_a_difference_leads_back(one, other):
    found = applied(one, json.loads(json.dumps(difference(one, other))))
    assert json.dumps(found, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert difference(one, one) == {}


def test_a_changed_config_is_no_run(packed):
    path = packed / "runs.jsonl"
    first, one, other, *rest = path.read_text().splitlines()
    table = json.loads(other)
    table["config"]["seed"] = 99
    path.write_text("\n".join([first, one, json.dumps(table), *rest]) + "\n")
    found = stored.read(packed)
    assert [(str(skipped.path), skipped.line) for skipped in found.skipped] == [("runs.jsonl", 3)]
    assert table["run"] in found.skipped[0].reason
    assert len(found.runs) == 17


@pytest.mark.parametrize(
    "content", [b"", b"no xz", lzma.compress(b"a,b\n1,2\n"), lzma.compress(b"run,step\n" * 100)[:60]]
)
def test_damaged_scores_are_reported(packed, content):
    (packed / "scores.csv.xz").write_bytes(content)
    found = stored.read(packed)
    assert [str(skipped.path) for skipped in found.skipped] == ["scores.csv.xz"]
    assert not any(run.results for run in found.runs)


def test_what_is_damaged_is_not_packed(folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "runs")
    run = stored.read(folder).runs[0].id
    with (folder / run / "result" / "results.jsonl").open("a") as file:
        file.write("{torn")
    with pytest.raises(ValueError, match=rf"{run}/result/results\.jsonl"):
        pack(folder, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()
