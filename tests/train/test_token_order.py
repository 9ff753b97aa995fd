"""The order of tokens over the devices of a mesh, in the manifest of a run."""

import pytest

from attnjax.cli import main
from attnjax.records.runs import read_manifest
from attnjax.sweep import scan
from tests.train.test_mesh import CONFIG


@pytest.mark.slow
@pytest.mark.parametrize(("name", "order"), [("rope", "zigzag"), ("fox", "contiguous")])
def test_the_manifest_has_the_order_of_tokens_and_the_name_of_a_run_has_not(tmp_path, monkeypatch, name, order):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text(CONFIG)
    changes = [f"model.encoding.name={name}"]
    assert main(["run", "small.py", *changes, "--out", "out", "--mesh", "sequence=2"]) == 0
    (one,) = scan(tmp_path / "out").runs
    assert (one.status.state, read_manifest(tmp_path / "out" / one.run)["token_order"]) == ("done", order)
    # The same command on one device finds that everything is done, under the same name.
    assert main(["run", "small.py", *changes, "--out", "out"]) == 0
    assert [other.run for other in scan(tmp_path / "out").runs] == [one.run]
