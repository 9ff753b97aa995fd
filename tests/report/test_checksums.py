"""What a report says of records that are not complete, not what they were, or that cannot be verified."""

import json
import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from attnjax.records import inventory, lines
from attnjax.report.markdown_tables import table_md
from attnjax.report.page import page
from attnjax.report.records import read
from attnjax.report.scores import outcome
from attnjax.report.summarise import summarise
from tests.report.synthetic import config, run_id, write_run, write_spec

pytestmark = pytest.mark.slow

FROZEN = Path(__file__).parents[1] / "frozen" / "format_1"
CONFIGS = [config("copy", "rope", seed) for seed in range(3)]
IDS = [run_id(fields) for fields in CONFIGS]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Three runs that are done, as the present version writes them: lines with checksums, and what the end held."""
    write_spec(tmp_path, CONFIGS)
    for fields in CONFIGS:
        folder = tmp_path / write_run(tmp_path, fields)
        for name in ("metrics.jsonl", "results.jsonl"):
            old = [json.loads(line) for line in (folder / name).read_text().splitlines()]
            new = [{key: value for key, value in one.items() if key != "schema"} for one in old]
            (folder / name).write_text("".join(map(lines.text, new)))
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest |= {"state": "done", "records": inventory.take(folder)}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def texts(sweep: Path) -> tuple[str, str]:
    """The page and table.md."""
    summary = summarise(read(sweep))
    return page(summary, {}), table_md(summary)


def test_a_complete_sweep_is_not_said_to_lack_anything(sweep: Path):
    found = read(sweep)
    assert (found.skipped, found.unchecked) == ((), 0)
    assert [len(run.losses) for run in found.runs] == [21, 21, 21]
    for text in texts(sweep):
        assert "omplete" not in text
        assert "checksum" not in text


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.jsonl"])
@pytest.mark.parametrize("kind", ["missing", "emptied", "cut"])
def test_a_done_run_with_other_records_is_listed_and_counts_as_unfinished(sweep: Path, name: str, kind: str):
    path = sweep / IDS[0] / name
    size, count = path.stat().st_size, len(path.read_bytes().splitlines())
    path.unlink() if kind == "missing" else os.truncate(path, 0 if kind == "emptied" else size - 50)
    found = read(sweep)
    reasons = [note.reason for note in found.skipped if note.path == f"{IDS[0]}/{name}" and note.line is None]
    assert len(reasons) == 1
    assert reasons[0].endswith(f"; when the run ended it had {size} bytes in {count} lines")
    run = next(run for run in found.runs if run.id == IDS[0])
    assert (run.state, outcome(run)) == ("damaged", "unfinished")
    for text in texts(sweep):
        assert "Not complete: 2 of 3 runs are done; the records of 1 more are damaged or missing" in text


def test_a_failed_run_with_other_records_stays_the_worst_score(sweep: Path):
    folder = sweep / IDS[0]
    (folder / "status.json").write_text('{"schema":1,"state":"failed","step":3,"reason":"nan"}')
    manifest = json.loads((folder / "manifest.json").read_text()) | {"state": "failed"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "metrics.jsonl").unlink()
    found = read(sweep)
    assert [note.path for note in found.skipped] == [f"{IDS[0]}/metrics.jsonl"]
    assert outcome(next(run for run in found.runs if run.id == IDS[0])) == "failed"


@pytest.mark.parametrize("state", ["pending", "running", "preempted", "absent"])
def test_a_report_of_a_sweep_that_goes_on_says_so_near_the_top(sweep: Path, state: str):
    for run in IDS[1:]:
        if state == "absent":
            shutil.rmtree(sweep / run)
        else:
            (sweep / run / "status.json").write_text(json.dumps({"schema": 1, "state": state, "step": 3}))
    text = f"Not complete: 1 of 3 runs are done; 2 are still in training or were not started (2 {state})."
    html, markdown = texts(sweep)
    assert text in html.partition("<nav")[0]
    assert markdown.splitlines()[2] == f"> {text} The numbers are without them."


def test_without_a_plan_no_report_is_known_to_be_complete(sweep: Path):
    (sweep / "sweep.json").unlink()
    for text in texts(sweep):
        assert "Perhaps not complete: sweep.json, which says how many runs were planned, cannot be read." in text


def test_without_its_status_a_run_counts_by_its_results_and_the_report_says_so(sweep: Path):
    (sweep / IDS[0] / "status.json").write_text("")
    for text in texts(sweep):
        assert f"Without a readable status, and counted as done by their results: {IDS[0]}." in text


def test_runs_of_the_first_format_are_reported_and_said_to_be_without_checksums():
    found = read(FROZEN)
    assert sorted(run.state for run in found.runs) == ["done", "preempted"]
    assert found.skipped == ()
    count = sum(path.read_text().count("\n") for path in FROZEN.glob("*/*.jsonl"))
    assert found.unchecked == count
    html, markdown = texts(FROZEN)
    assert f"<p>{count} lines of the records have no checksum, because an earlier version" in html
    for text in (html, markdown):
        assert "Not complete: 1 of 2 runs are done; 1 is still in training or was not started (1 preempted)." in text


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.jsonl"])
def test_a_huge_line_is_read_with_little_memory(sweep: Path, name: str):
    os.truncate(sweep / IDS[0] / name, 200 * 2**20)  # a sparse file: zeros without an end of line
    tracemalloc.start()
    try:
        found = read(sweep)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * 2**20
    assert "is longer than 1048576 bytes" in {note.reason for note in found.skipped}


def test_a_file_beyond_any_that_a_run_writes_is_skipped(sweep: Path):
    os.truncate(sweep / IDS[0] / "results.jsonl", 900 * 2**20)
    reasons = [note.reason for note in read(sweep).skipped if note.path == f"{IDS[0]}/results.jsonl"]
    assert reasons[0] == "is larger than 256 MiB, more than is read"


def test_of_many_damaged_lines_a_hundred_are_told_and_the_rest_counted(sweep: Path):
    (sweep / IDS[0] / "results.jsonl").write_text("x\n" * 2000)
    reasons = [note.reason for note in read(sweep).skipped]
    assert reasons.count("is not JSON") == 100
    assert "has 1900 more such lines" in reasons
