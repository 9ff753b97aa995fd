"""Committed results: every report is what its records say, byte for byte, and records are of what they claim."""

import hashlib
import json
import pathlib
import shutil

import pytest

from attnjax.report import build
from attnjax.sweep import scan
from scripts.keep_records import keep
from tests.trees import tree

ROOT = pathlib.Path(__file__).parents[1]
EXPERIMENTS = sorted(path.parent for path in (ROOT / "experiments").glob("*/records"))
NAMES = [path.name for path in EXPERIMENTS]
NAMES_OF_THETA = {path.parent.name for path in (ROOT / "experiments" / "theta" / "records").glob("*/config.json")}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
def test_a_report_is_made_anew_from_its_records(experiment, tmp_path):
    shutil.copytree(experiment / "records", tmp_path / "records")
    made = {path.relative_to(tmp_path / "report") for path in build(tmp_path / "records", tmp_path / "report")}
    made = {path for path in made if path.parts[0] != "figures"}  # not committed: the page has them
    assert made == {path.relative_to(experiment / "report") for path in experiment.glob("report/*.*")}
    different = [
        str(path)
        for path in sorted(made)
        if (tmp_path / "report" / path).read_bytes() != (experiment / "report" / path).read_bytes()
    ]
    assert not different


@pytest.mark.quick("rope_vs_sinusoidal")
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=NAMES)
def test_records_are_complete(experiment):
    found = scan(experiment / "records")
    planned = json.loads((experiment / "records" / "sweep.json").read_text())["runs"]
    assert not found.problems
    assert not found.foreign
    assert len(found.runs) == len(planned)
    for run in found.runs:
        config = (run.directory / "config.json").read_bytes().strip()
        assert hashlib.sha256(config).hexdigest().startswith(run.run)
        assert run.status.state == "done"
        assert len(run.manifest()) >= 30
        steps = [record["step"] for record in run.metrics().tables]
        assert steps == sorted(set(steps))
        ended = run.manifest().get("stopped_at") if run.config.train.until is not None else None
        assert steps[-1] == (ended or run.config.train.steps)
        measured = {record["length"] for record in run.results().tables}
        assert measured >= set(run.config.evaluate.lengths)


@pytest.mark.slow
def test_what_is_begun_goes_on_where_it_was_copied(tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(ROOT / "experiments" / "theta" / "records", runs)
    pending, *_ = sorted(path.parent for path in runs.glob("*/status.json"))
    (pending / "status.json").unlink()
    count = keep(runs, tmp_path / "experiment", begun=True)
    assert count == len(NAMES_OF_THETA) - 1
    kept = {path.name for path in (tmp_path / "experiment" / "begun").iterdir()}
    assert kept == NAMES_OF_THETA - {pending.name} | {"sweep.json"}
    states = [run.status.state for run in scan(tmp_path / "experiment" / "begun").runs]
    assert states.count("done") == count
    with pytest.raises(SystemExit, match="1 of 40 runs have not ended: say --begun to copy those that are done"):
        keep(runs, tmp_path / "experiment")
    assert not (tmp_path / "experiment" / "records").exists()
    shutil.copy(ROOT / "experiments" / "theta" / "records" / pending.name / "status.json", pending)
    assert keep(runs, tmp_path / "experiment") == len(NAMES_OF_THETA)


@pytest.mark.quick("disk")
@pytest.mark.parametrize("how", ["link", "disk", "rename"])
def test_earlier_records_stay_where_new_ones_cannot_be_copied(tmp_path, monkeypatch, how):
    runs, experiment = tmp_path / "runs", tmp_path / "experiment"
    shutil.copytree(ROOT / "experiments" / "theta" / "records", runs)
    keep(runs, experiment)
    first, *_, last = sorted(path.parent for path in runs.glob("*/status.json"))
    (last / "traceback.txt").write_text("new")
    before = tree(experiment)
    with monkeypatch.context() as patch:
        if how == "link":
            (last / "traceback.txt").unlink()
            (last / "traceback.txt").symlink_to(first / "status.json")
        real, refused = getattr(pathlib.Path, "rename" if how == "rename" else "write_bytes"), []

        def refuse(path, argument):
            """The disk is full at the last file; a folder cannot get the name of the records, once."""
            if path.name == ("new" if how == "rename" else "traceback.txt") and not refused:
                refused.append(path)
                raise OSError(28, "No space left on device")
            return real(path, argument)

        if how != "link":
            patch.setattr(pathlib.Path, real.__name__, refuse)
        with pytest.raises((OSError, ValueError), match="is a link" if how == "link" else "No space left"):
            keep(runs, experiment)
    assert tree(experiment) == before
    (last / "traceback.txt").unlink()
    (last / "traceback.txt").write_text("new")
    shutil.rmtree(first)  # as a sweep that has fewer runs
    keep(runs, experiment, begun=True)
    keep(runs, experiment, begun=True)
    assert {path.name for path in experiment.iterdir()} == {"records", "begun"}
    assert {path.name for path in (experiment / "begun").iterdir()} == {path.name for path in runs.iterdir()}
    assert (experiment / "begun" / last.name / "traceback.txt").read_text() == "new"
