"""Reading a sweep in which anything may be torn, foreign, damaged, hostile or missing: reported, never fatal."""

import json
import os
from pathlib import Path

import pytest

from attnjax.records.stored import read
from tests.report.synthetic import canonical, cell_id, config, run_id, write_run, write_spec, write_sweep

ONE = config("copy", "rope", 0)
GOOD = {
    "schema": 1,
    "run": run_id(ONE),
    "step": 4,
    "length": 8,
    "metric": "loss",
    "value": 1.5,
    "count": 3,
    "split": "test",
}


def reasons(root: Path) -> dict[str, str]:
    return {f"{note.path}:{note.line}": note.reason for note in read(root).skipped}


def only_run(root: Path, **files: str):
    write_spec(root, [ONE])
    write_run(root, ONE, **files)
    return read(root).runs[0]


def test_a_sound_sweep_is_read_whole(tmp_path: Path):
    configs = write_sweep(tmp_path, ("copy",), ("rope", "learned"), 2)
    sweep = read(tmp_path)
    assert sweep.skipped == ()
    assert sweep.name == "synthetic"
    assert [run.id for run in sweep.runs] == sorted(map(run_id, configs))
    for fields in configs:
        run = next(run for run in sweep.runs if run.id == run_id(fields))
        assert run.config == fields
        assert run.cell == cell_id(fields)
    failed = [run for run in sweep.runs if run.state == "failed"]
    assert [(run.reason, run.results) for run in failed] == [("nan at step 160", ())]
    done = next(run for run in sweep.runs if run.state == "done")
    assert {row.split for row in done.results} == {"train", "validation", "test"}
    assert [step for step, _ in done.losses] == list(range(0, 401, 20))


@pytest.mark.parametrize(
    ("name", "lines", "lost"),
    [
        ("torn last line", [canonical(GOOD), canonical(GOOD)[:40]], 1),
        ("torn middle line", [canonical(GOOD)[:40] + "\n" + canonical(GOOD)], 1),
        ("torn first line", ['"length":8}', canonical(GOOD)], 1),
        ("blank lines", ["", canonical(GOOD), "   "], 0),
        ("binary", ["\x00\x01\x02", canonical(GOOD)], 1),
        ("no table", ["[1]", "7", '"text"', "null", canonical(GOOD)], 4),
        ("too deep", ["[" * 20_000, '{"a":' * 20_000, canonical(GOOD)], 2),
        ("huge number", ['{"step":' + "9" * 5_000 + "}", canonical(GOOD)], 1),
        ("long line", ['{"a":"' + "x" * 2**20 + '"}', canonical(GOOD)], 1),
    ],
)
def test_a_damaged_line_loses_that_line_only(tmp_path: Path, name: str, lines: list[str], lost: int):
    run = only_run(tmp_path, results="\n".join(lines))
    assert [(row.length, row.value) for row in run.results] == [(8, 1.5)]
    assert len(reasons(tmp_path)) == lost
    assert all(key.startswith(f"{run.id}/result/results.jsonl:") for key in reasons(tmp_path))


def test_a_torn_last_line_is_called_so(tmp_path: Path):
    run = only_run(tmp_path, results=canonical(GOOD) + "\n" + canonical(GOOD)[:-3])
    assert reasons(tmp_path) == {f"{run.id}/result/results.jsonl:2": "is not JSON (a torn last line)"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": "0" * 16}, "another run"),
        ({"step": -1}, "no whole step"),
        ({"step": 1.5}, "no whole step"),
        ({"step": True}, "no whole step"),
        ({"length": 2**60}, "no whole step"),
        ({"length": "8"}, "no whole step"),
        ({"metric": 3}, "no number, metric"),
        ({"metric": ""}, "no number, metric"),
        ({"value": "0.5"}, "no number, metric"),
        ({"value": True}, "no number, metric"),
        ({"value": {}}, "no number, metric"),
        ({"split": "holdout"}, "no number, metric"),
        ({"split": None}, "no number, metric"),
        ({"metric": "exact_match", "value": 1.5}, "outside 0 to 1"),
        ({"metric": "token_accuracy", "value": -0.5}, "outside 0 to 1"),
    ],
)
def test_a_line_that_cannot_be_a_measurement_is_skipped(tmp_path: Path, change: dict, reason: str):
    run = only_run(tmp_path, results=canonical(GOOD | change) + "\n" + canonical(GOOD))
    assert len(run.results) == 1
    assert [reason in found for found in reasons(tmp_path).values()] == [True]


@pytest.mark.parametrize("value", ["null", "NaN", "Infinity", "-Infinity", "1e300"])
def test_what_is_not_finite_is_a_measurement(tmp_path: Path, value: str):
    run = only_run(tmp_path, results=canonical(GOOD).replace("1.5", value))
    assert len(run.results) == 1
    assert run.results[0].value != run.results[0].value  # NaN, which `scores` counts as the worst
    assert reasons(tmp_path) == {}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config", ""),
        ("config", "{"),
        ("config", "[]"),
        ("config", canonical({"task": {}, "model": {}})),
        ("config", canonical(ONE | {"seed": 7})),
        ("manifest", "{]"),
        ("status", "null"),
        ("status", "\ufffe"),
    ],
)
def test_a_damaged_object_is_named_and_the_other_runs_load(tmp_path: Path, file: str, text: str):
    other = config("copy", "rope", 1)
    write_spec(tmp_path, [ONE, other])
    write_run(tmp_path, ONE, **{file: text})
    write_run(tmp_path, other)
    sweep = read(tmp_path)
    place = "" if file == "config" else "result/"
    assert [note.path for note in sweep.skipped] == [f"{run_id(ONE)}/{place}{file}.json"]
    damaged = next(run for run in sweep.runs if run.id == run_id(ONE))
    assert damaged.cell == cell_id(ONE), "sweep.json still says where it belongs"
    assert bool(damaged.config) == (file != "config")
    assert damaged.state == ("unknown" if file == "status" else "done")


def test_a_changed_config_is_told(tmp_path: Path):
    write_run(tmp_path, config("copy", "rope", 1))
    write_run(tmp_path, ONE, config=canonical(ONE | {"seed": 7}))
    assert "sha256 does not begin" in reasons(tmp_path)[f"{run_id(ONE)}/config.json:None"]


@pytest.mark.parametrize("fields", [{"seed": float("nan")}, {"task": {"name": "copy", "at": [float("inf")]}}])
def test_a_config_with_what_json_has_not_is_skipped(tmp_path: Path, fields: dict):
    write_sweep(tmp_path, ("copy",), ("rope",), 1)
    write_run(tmp_path, ONE | {"train": fields})
    assert list(reasons(tmp_path).values()) == ["holds NaN or infinity, which JSON has not"]


@pytest.mark.parametrize("file", ["sweep", "manifest", "status"])
def test_a_file_without_a_schema_version_is_told(tmp_path: Path, file: str):
    write_sweep(tmp_path, ("copy",), ("rope",), 1)
    folder = tmp_path if file == "sweep" else tmp_path / run_id(ONE) / "result"
    (folder / f"{file}.json").write_text("{}")
    (reason,) = reasons(tmp_path).values()
    assert reason == "is damaged: it must have a schema version, a whole number of at least 1, got None"


def test_foreign_things_are_listed_and_left_alone(tmp_path: Path):
    write_sweep(tmp_path, ("copy",), ("rope",), 1)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "backup").mkdir()
    (tmp_path / "0123").mkdir()
    (tmp_path / ".DS_Store").write_text("")
    (tmp_path / "logs").mkdir()
    (tmp_path / "abcdefabcdefabcd").write_text("a file, not a folder")
    paths = {note.path for note in read(tmp_path).skipped}
    assert paths == {"notes.txt", "backup", "0123", "abcdefabcdefabcd"}
    assert read(tmp_path, ignore=[tmp_path / "backup"]).skipped[0].path == "0123"


def test_links_are_not_followed(tmp_path: Path):
    outside = tmp_path / "outside.json"
    outside.write_text(canonical({"secret": 1}))
    write_sweep(tmp_path / "sweep", ("copy",), ("rope",), 1)
    run = run_id(config("copy", "rope", 0))
    (tmp_path / "sweep" / run / "result" / "manifest.json").unlink()
    (tmp_path / "sweep" / run / "result" / "manifest.json").symlink_to(outside)
    (tmp_path / "sweep" / ("f" * 16)).symlink_to(tmp_path / "sweep" / run)
    sweep = read(tmp_path / "sweep")
    assert [run.manifest for run in sweep.runs] == [{}]
    assert {note.path for note in sweep.skipped} == {f"{run}/result/manifest.json", "f" * 16}


RECORDS = ("manifest.json", "status.json", "metrics.jsonl", "results.jsonl")
FILES = ("config.json", *(f"result/{name}" for name in RECORDS))


@pytest.mark.parametrize("file", ["sweep.json", *FILES])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_named_and_neither_followed_nor_waited_for(tmp_path: Path, file: str, kind: str):
    if kind == "pipe" and not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes on this system")
    write_spec(tmp_path / "sweep", [ONE, config("copy", "rope", 1)])
    write_run(tmp_path / "sweep", ONE)
    write_run(tmp_path / "sweep", config("copy", "rope", 1))
    name = file if file == "sweep.json" else f"{run_id(ONE)}/{file}"
    path = tmp_path / "sweep" / name
    path.rename(tmp_path / "elsewhere")
    {"link": lambda: path.symlink_to(tmp_path / "elsewhere"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[
        kind
    ]()
    why = "is a link; in a folder of results links are not followed" if kind == "link" else "is no regular file"
    assert reasons(tmp_path / "sweep") == {f"{name}:None": why}


def test_a_planned_run_without_a_folder_is_absent(tmp_path: Path):
    write_spec(tmp_path, [ONE, config("copy", "rope", 1)])
    write_run(tmp_path, ONE)
    states = {run.id: (run.state, run.cell) for run in read(tmp_path).runs}
    assert states[run_id(config("copy", "rope", 1))] == ("absent", cell_id(ONE))


@pytest.mark.parametrize(
    "spec", [None, "", "{", '{"schema":1,"runs":7}', '{"schema":1,"runs":[7,"x",{"run":"../.."}]}']
)
def test_without_a_plan_the_folders_are_read(tmp_path: Path, spec: str | None):
    write_run(tmp_path, ONE)
    if spec is not None:
        (tmp_path / "sweep.json").write_text(spec)
    sweep = read(tmp_path)
    assert [run.id for run in sweep.runs] == [run_id(ONE)]
    assert sweep.name == tmp_path.name
    assert all(note.path == "sweep.json" for note in sweep.skipped)
    assert bool(sweep.skipped) == (spec != '{"schema":1,"runs":7}')


def test_strings_are_made_fit_for_files(tmp_path: Path):
    text = "a\x00b\ud800c\u202ed\x1b[31m\n"
    write_run(tmp_path, ONE, status=json.dumps({"schema": 1, "state": "failed", "step": 0, "reason": text}))
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": 1, "name": text, "runs": []}))
    sweep = read(tmp_path)
    assert sweep.runs[0].reason == sweep.name == "a\ufffdb\ufffdc\ufffdd\ufffd[31m\n"
    sweep.name.encode("utf-8")


@pytest.mark.parametrize("file", ["sweep.json", "manifest.json", "status.json"])
def test_a_file_of_a_newer_version_is_refused(tmp_path: Path, file: str):
    write_sweep(tmp_path, ("copy",), ("rope",), 1)
    path = tmp_path / file if file == "sweep.json" else tmp_path / run_id(ONE) / "result" / file
    path.write_text(path.read_text().replace('"schema":1', '"schema":2', 1))
    with pytest.raises(ValueError, match=rf"{file}.* newer version of attnjax: it has schema 2"):
        read(tmp_path)


def test_a_config_of_a_newer_version_is_refused_and_one_changed_to_it_is_skipped(tmp_path: Path):
    write_sweep(tmp_path, ("copy",), ("rope",), 1)
    path = tmp_path / run_id(ONE) / "config.json"
    path.write_text(path.read_text().replace('"schema":1', '"schema":2', 1))
    write_run(tmp_path, config("copy", "rope", 5))
    assert "sha256 does not begin" in reasons(tmp_path)[f"{run_id(ONE)}/config.json:None"]
    write_run(tmp_path, config("copy", "rope", 6, schema=2))
    with pytest.raises(ValueError, match=r"config\.json was written by a newer version of attnjax: it has schema 2"):
        read(tmp_path)


@pytest.mark.parametrize("file", ["metrics", "results"])
def test_a_sound_line_of_a_newer_version_is_refused(tmp_path: Path, file: str):
    text = canonical(GOOD | {"schema": 4, "a": 1}) + "\n"
    with pytest.raises(
        ValueError, match=rf"{file}\.jsonl, line 1 was written by a newer version .* schema 4, .* Update"
    ):
        only_run(tmp_path, **{file: text})


def test_a_folder_of_version_0_2_0_is_refused_in_one_sentence(tmp_path: Path):
    write_sweep(tmp_path, ("copy",), ("rope",), 1)
    result = tmp_path / run_id(ONE) / "result"
    for path in result.iterdir():
        path.rename(result.parent / path.name)
    result.rmdir()
    with pytest.raises(ValueError, match=rf"{run_id(ONE)} was written by attnjax 0\.2\.0"):
        read(tmp_path)


def test_an_empty_or_absent_directory_is_a_clear_error(tmp_path: Path):
    with pytest.raises(ValueError, match="holds no run to report"):
        read(tmp_path)
    with pytest.raises(ValueError, match="is not a directory"):
        read(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is not a directory"):
        read(tmp_path / "file")
