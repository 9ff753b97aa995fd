"""Committed results: records are complete and of what they claim."""

import hashlib
import json
import pathlib

import pytest

from attnjax.sweep import scan

ROOT = pathlib.Path(__file__).parents[1]
EXPERIMENTS = sorted(path.parent for path in (ROOT / "experiments").glob("*/records"))
NAMES = [path.name for path in EXPERIMENTS]


@pytest.mark.quick("huang_copy")
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
