"""What a run's files held when it ended: recorded in its manifest, and told wherever they hold something else."""

import hashlib
import json
import os
import pathlib
import shutil

import pytest
from fake_training import never, train

from attnjax.cli import main
from attnjax.records import inventory, jsonl
from attnjax.sweep import load, run_here, scan, seeds
from attnjax.sweep.execute import states
from attnjax.sweep.stop import Stop

pytestmark = pytest.mark.slow

FROZEN = pathlib.Path(__file__).parents[1] / "frozen" / "format_1"


def trained(make, **changes):
    store = make(seeds(2), **changes)
    run_here(store, train)
    return store, store.directory(store.runs[0].run)


def test_the_end_of_a_run_records_what_its_files_hold(make):
    store, _ = trained(make)
    for run in scan(store.root).runs:
        expected = {
            name: {"bytes": len(data), "lines": len(data.splitlines()), "sha256": hashlib.sha256(data).hexdigest()}
            for name in jsonl.FILES
            for data in [(run.directory / name).read_bytes()]
        }
        assert run.manifest()["records"] == expected
        assert [entry["lines"] for entry in expected.values()] == [10, 2]
        assert run.problems == []


@pytest.mark.parametrize("options", [{"nan_at": 4}, {"fail_at": 4}])
def test_a_failed_run_records_it_too(make, options):
    store, directory = trained(make, task={"options": options})
    assert json.loads((directory / "manifest.json").read_text())["records"]["metrics.jsonl"]["lines"] == 4
    assert states(store)[directory.name] == "failed"
    (directory / "metrics.jsonl").unlink()
    assert states(store)[directory.name] == "damaged"


def test_a_stopped_run_records_it_too_and_goes_on(make):
    store = make(seeds(1))
    stop = Stop()
    run_here(store, train, stop=stop, progress=lambda event: event.step >= 4 and stop.set("SIGTERM"))
    (found,) = scan(store.root).runs
    assert found.status.state == "preempted"
    assert found.manifest()["records"]["metrics.jsonl"]["lines"] == found.status.step
    jsonl.append(found.directory / "metrics.jsonl", {"step": 99})
    assert len(scan(store.root).problems) == 1
    assert run_here(store, train).of("done") == [found.run]
    assert scan(store.root).problems == []


def swapped(path: pathlib.Path) -> None:
    """Changes a file, not its size: the last line stands first."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[-1:] + lines[:-1]))


DAMAGE = {
    "missing": (pathlib.Path.unlink, "is missing; when the run ended it had"),
    "emptied": (lambda path: path.write_bytes(b""), "has 0 bytes; when the run ended it had"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes; when the run ended it had"),
    "without a line": (
        lambda path: path.write_bytes(path.read_bytes().split(b"\n", 1)[1]),
        "bytes; when the run ended",
    ),
    "added to": (lambda path: jsonl.append(path, {"step": 1}), "bytes; when the run ended it had"),
    "reordered": (swapped, "has changed since the run ended: its sha256 is not the one in the manifest"),
}


@pytest.mark.parametrize("name", jsonl.FILES)
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_done_run_with_other_records_is_not_listed_as_done_in_silence(make, capsys, name, kind):
    store, directory = trained(make)
    damage, message = DAMAGE[kind]
    damage(directory / name)
    assert main(["list", "runs", str(store.root)]) == 0
    (problem,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    assert problem.startswith(f"problem: {directory / name} ")
    assert message in problem
    summary = run_here(store, never)
    assert (summary.of("damaged"), len(summary.of("done"))) == ([directory.name], 1)


def test_a_link_in_place_of_a_log_is_not_followed(make, tmp_path):
    store, directory = trained(make)
    (directory / "results.jsonl").rename(tmp_path / "elsewhere")
    (directory / "results.jsonl").symlink_to(tmp_path / "elsewhere")
    (problem,) = scan(store.root).problems
    assert problem == f"{directory / 'results.jsonl'} is a link; in a folder of results links are not followed"
    assert states(store)[directory.name] == "damaged"


def test_links_to_runs_are_told_and_not_read(make, tmp_path):
    store, directory = trained(make)
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    found = scan(store.root)
    assert [run.run for run in found.runs] == [store.runs[1].run]
    assert f"{directory} is a link, which is not followed" in found.problems


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema":1,"state":"done","records":7}'])
def test_a_damaged_manifest_is_told(make, text):
    store, directory = trained(make)
    (directory / "manifest.json").write_text(text)
    problems = scan(store.root).problems
    assert problems
    assert all(str(directory) in problem for problem in problems)


def test_a_run_that_died_again_and_again_has_no_end_to_compare(make):
    _, directory = trained(make)
    manifest = json.loads((directory / "manifest.json").read_text()) | {"state": "running"}
    assert inventory.differences(directory, "failed", manifest) == {}


def test_runs_of_the_first_format_are_listed_and_said_to_be_without_checksums(tmp_path, capsys):
    shutil.copytree(FROZEN, tmp_path / "runs")
    assert main(["list", "runs", str(tmp_path / "runs")]) == 0
    output = capsys.readouterr().out
    assert "problem" not in output
    assert "1 preempted, 1 done" in output or "1 done, 1 preempted" in output
    lines = sum(path.read_text().count("\n") for path in FROZEN.glob("*/*.jsonl"))
    assert f"note: {lines} lines in the records of 2 of 2 runs have no checksum" in output
    assert sorted(states(load(tmp_path / "runs")).values()) == ["done", "preempted"]


def test_new_runs_are_not_said_to_be_without(make, capsys):
    store, _ = trained(make)
    main(["list", "runs", str(store.root)])
    assert "checksum" not in capsys.readouterr().out
