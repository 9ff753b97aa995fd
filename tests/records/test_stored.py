"""Reading a sweep in which anything may be torn, foreign, damaged, hostile or missing: reported, never fatal."""

import json
import os
import shutil
from pathlib import Path

import pytest

from attnjax.records.stored import read
from tests.report.synthetic import canonical, cell_id, config, run_id, write_run, write_spec, write_sweep

ONE, OTHER = config("copy", "rope", 0), config("copy", "rope", 1)
RUN = run_id(ONE)
GOOD = {"schema": 1, "run": RUN, "step": 4, "length": 8, "metric": "loss", "value": 1.5, "count": 3, "split": "test"}


def reasons(root: Path) -> dict[str, str]:
    return {f"{note.path}:{note.line}": note.reason for note in read(root).skipped}


def only_run(root: Path, **files: str):
    write_spec(root, [ONE])
    write_run(root, ONE, **files)
    return read(root).runs[0]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A sweep of two runs, which are done."""
    write_spec(tmp_path / "sweep", [ONE, OTHER])
    write_run(tmp_path / "sweep", ONE)
    write_run(tmp_path / "sweep", OTHER)
    return tmp_path / "sweep"


def test_a_sound_sweep_is_read_whole(tmp_path: Path):
    configs = write_sweep(tmp_path, ("copy",), ("rope", "learned"), 2)
    sweep = read(tmp_path)
    assert (sweep.skipped, sweep.name) == ((), "synthetic")
    assert [run.id for run in sweep.runs] == sorted(map(run_id, configs))
    for fields in configs:
        run = next(run for run in sweep.runs if run.id == run_id(fields))
        assert (run.config, run.cell) == (fields, cell_id(fields))
    failed = [run for run in sweep.runs if run.state == "failed"]
    assert [(run.reason, run.results) for run in failed] == [("nan at step 160", ())]
    done = next(run for run in sweep.runs if run.state == "done")
    assert {row.split for row in done.results} == {"train", "validation", "test"}
    assert [step for step, _ in done.losses] == list(range(0, 401, 20))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": "0" * 16}, "another run"),
        ({"step": -1}, "no whole step"),
        ({"step": True}, "no whole step"),
        ({"length": 2**60}, "no whole step"),
        ({"metric": ""}, "no number, metric"),
        ({"value": "0.5"}, "no number, metric"),
        ({"value": True}, "no number, metric"),
        ({"split": "holdout"}, "no number, metric"),
        ({"metric": "exact_match", "value": 1.5}, "outside 0 to 1"),
        ({"metric": "token_accuracy", "value": -0.5}, "outside 0 to 1"),
    ],
)
def test_a_line_that_cannot_be_a_measurement_is_skipped(tmp_path: Path, change: dict, reason: str):
    run = only_run(tmp_path, results=canonical(GOOD | change) + "\n" + canonical(GOOD))
    assert [(row.length, row.value) for row in run.results] == [(8, 1.5)]
    ((place, told),) = reasons(tmp_path).items()
    assert place == f"{RUN}/result/results.jsonl:1"
    assert reason in told


@pytest.mark.parametrize("value", ["null", "NaN", "Infinity", "-Infinity", "1e300"])
def test_what_is_not_finite_is_a_measurement(tmp_path: Path, value: str):
    run = only_run(tmp_path, results=canonical(GOOD).replace("1.5", value))
    assert len(run.results) == 1
    assert run.results[0].value != run.results[0].value  # NaN, which `scores` counts as the worst
    assert reasons(tmp_path) == {}


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("config", "{", "sha256"),
        ("config", canonical(ONE | {"seed": 7}), "sha256"),
        ("config", canonical(ONE | {"schema": 2}), "sha256"),
        ("manifest", "{]", "no JSON"),
        ("manifest", "{}", "schema version"),
        ("status", "\ufffe", ""),
        ("status", "{}", "schema version"),
    ],
)
def test_a_damaged_file_is_named_and_the_other_runs_load(two: Path, file: str, text: str, reason: str):
    path = f"{RUN}/config.json" if file == "config" else f"{RUN}/result/{file}.json"
    (two / path).write_text(text)
    sweep = read(two)
    ((place, told),) = reasons(two).items()
    assert place == f"{path}:None"
    assert reason in told
    damaged = next(run for run in sweep.runs if run.id == RUN)
    assert damaged.cell == cell_id(ONE), "sweep.json still says where it belongs"
    assert bool(damaged.config) == (file != "config")
    assert damaged.state == ("unknown" if file == "status" else "done")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"train": {"seed": float("nan")}}, "NaN or infinity"),
        ({"train": {"task": {"at": [float("inf")]}}}, "NaN or infinity"),
        ({"model": {"encoding": {"name": ""}}}, "names no task or no encoding"),
    ],
)
def test_a_config_that_cannot_be_used_is_skipped(two: Path, fields: dict, reason: str):
    write_run(two, ONE | fields)
    ((place, told),) = reasons(two).items()
    assert place.endswith("/config.json:None")
    assert reason in told


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize(
    "file", ["sweep.json", "config.json", "manifest.json", "status.json", "metrics.jsonl", "results.jsonl"]
)
def test_what_is_no_file_is_named_and_neither_followed_nor_waited_for(two: Path, file: str, kind: str):
    places = {"sweep.json": file, "config.json": f"{RUN}/{file}"}
    name = places.get(file, f"{RUN}/result/{file}")
    path = two / name
    path.rename(two.parent / "elsewhere")
    plant = {"link": lambda: path.symlink_to(two.parent / "elsewhere"), "pipe": lambda: os.mkfifo(path)}
    plant.get(kind, path.mkdir)()
    ((place, told),) = reasons(two).items()
    assert place == f"{name}:None"
    assert ("is a link" if kind == "link" else "no regular file") in told


def test_foreign_things_are_listed_and_left_alone(two: Path):
    for name in ("notes.txt", "abcdefabcdefabcd", ".DS_Store"):
        (two / name).write_text("a file, not a folder")
    for name in ("backup", "0123", "logs"):
        (two / name).mkdir()
    (two / ("f" * 16)).symlink_to(two / RUN)
    wanted = {"notes.txt", "backup", "0123", "abcdefabcdefabcd", "f" * 16}
    assert {str(note.path) for note in read(two).skipped} == wanted
    assert len(read(two).runs) == 2
    shutil.rmtree(two / RUN)
    found = {run.id: (run.state, run.cell) for run in read(two).runs}
    assert found[RUN] == ("absent", cell_id(ONE)), "the plan has a run without a folder"


@pytest.mark.parametrize(
    ("spec", "told"),
    [(None, 1), ("", 1), ("{", 1), ('{"schema":1,"runs":7}', 1), ('{"schema":1,"runs":[{"run":"../.."}]}', 1)],
)
def test_without_a_plan_the_folders_are_read(tmp_path: Path, spec: str | None, told: int):
    write_run(tmp_path, ONE)
    if spec is not None:
        (tmp_path / "sweep.json").write_text(spec)
    sweep = read(tmp_path)
    assert [run.id for run in sweep.runs] == [RUN]
    assert sweep.name == tmp_path.name
    assert [str(note.path) for note in sweep.skipped] == ["sweep.json"] * told


def test_strings_are_made_fit_for_files(tmp_path: Path):
    text = "a\x00b\ud800c\u202ed\x1b[31m\n"
    write_run(tmp_path, ONE, status=json.dumps({"schema": 1, "state": "failed", "step": 0, "reason": text}))
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": 1, "name": text, "runs": []}))
    sweep = read(tmp_path)
    assert sweep.runs[0].reason == sweep.name == "a\ufffdb\ufffdc\ufffdd\ufffd[31m\n"


@pytest.mark.parametrize(
    "file", ["sweep.json", "config.json", "manifest.json", "status.json", "metrics.jsonl", "results.jsonl"]
)
def test_records_of_a_newer_version_are_refused(two: Path, file: str):
    if file == "config.json":
        write_run(two, config("copy", "rope", 6, schema=4))
    elif file.endswith(".jsonl"):
        (two / RUN / "result" / file).write_text(canonical(GOOD | {"schema": 4}) + "\n")
    else:
        path = two / file if file == "sweep.json" else two / RUN / "result" / file
        path.write_text(path.read_text().replace('"schema":1', '"schema":4', 1))
    with pytest.raises(ValueError, match=rf"{file}.* newer version of attnjax: it has schema 4.*Update"):
        read(two)


def test_a_folder_of_version_0_2_0_is_refused(two: Path):
    result = two / RUN / "result"
    for path in result.iterdir():
        path.rename(result.parent / path.name)
    result.rmdir()
    with pytest.raises(ValueError, match=rf"{RUN} was written by attnjax 0\.2\.0"):
        read(two)


def test_an_empty_or_absent_folder_is_a_clear_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="holds no run"):
        read(tmp_path)
    for name, error in (("nowhere", FileNotFoundError), ("file", NotADirectoryError)):
        with pytest.raises(error, match=name):
            read(tmp_path / name)
