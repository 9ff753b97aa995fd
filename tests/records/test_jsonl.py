"""Files that survive: torn lines, full disks, ten writers at once, and the Nth operation failing, for every N."""

import errno
import json
import os
import pathlib
import subprocess
import sys

import pytest

from attnjax.records import files, jsonl

WRITER = """
import pathlib, sys
from attnjax.records import jsonl
for i in range(200):
    jsonl.append(pathlib.Path(sys.argv[1]), {"writer": int(sys.argv[2]), "i": i, "text": "x" * (i * 37 % 3000)})
"""
LIMITED = """
import pathlib, resource, sys
from attnjax.records import jsonl
path, limit = pathlib.Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    jsonl.append(path, {"i": 1, "text": "x" * 1000})
except OSError as error:
    print(error.errno)
"""


def python(code: str, *arguments: object) -> subprocess.Popen:
    root = pathlib.Path(__file__).parents[2]
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output.strip()


def test_ten_processes_append_two_hundred_lines_each(tmp_path):
    path = tmp_path / "log.jsonl"
    for process in [python(WRITER, path, writer) for writer in range(10)]:
        finished(process)
    found = jsonl.read(path)
    assert found.damaged == []
    assert sorted((one["writer"], one["i"]) for one in found.tables) == [(w, i) for w in range(10) for i in range(200)]
    assert all(one["text"] == "x" * (one["i"] * 37 % 3000) for one in found.tables)
    for writer in range(10):
        assert [one["i"] for one in found.tables if one["writer"] == writer] == list(range(200))


def test_a_torn_last_line_is_skipped_and_closed_by_the_next(tmp_path):
    path = tmp_path / "log.jsonl"
    jsonl.append(path, {"i": 0}, {"i": 1})
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        before = jsonl.read(path)
        jsonl.append(path, {"i": 2})
        after = jsonl.read(path)
        assert [one["i"] for one in after.tables] == [*(one["i"] for one in before.tables), 2]
        assert len(after.damaged) == len(before.damaged)
        assert len(before.tables) + len(before.damaged) == whole[:cut].count(b"\n") + (whole[cut - 1 : cut] != b"\n")


def test_damage_in_the_middle_costs_that_line_alone(tmp_path):
    path = tmp_path / "log.jsonl"
    junk = [b'{"schema":1,"i":', b"rubbish", b"\xff\xfe", b"[1]", b"[" * 16_000, b'{"schema":2}', b"{}", b'"x"', b"NaN"]
    junk += [b"x" * (3 * 2**20), b'{"schema":true}', b'{"schema":1,"i":1,"i":2}']
    with path.open("wb") as file:
        for i, text in enumerate(junk):
            file.write(b'{"schema":1,"i":%d}\n' % i + text + b"\n\n")
    found = jsonl.read(path)
    assert [one["i"] for one in found.tables] == list(range(len(junk)))
    assert len(found.damaged) == len(junk)
    assert found.damaged[0] == "line 2 is not JSON"
    assert found.unchecked == len(junk)


def test_missing_linked_and_unreadable_files_have_no_records(tmp_path):
    assert jsonl.read(tmp_path / "none") == ([], [], 0)
    jsonl.append(tmp_path / "log", {"i": 0})
    (tmp_path / "link").symlink_to(tmp_path / "log")
    refusal = "is a link; in a folder of results links are not followed"
    assert jsonl.read(tmp_path / "link") == ([], [refusal], 0)
    with pytest.raises(ValueError, match="link is a link"):
        jsonl.keep(tmp_path / "link", bool)
    assert len(jsonl.read(tmp_path).damaged) == 1
    with pytest.raises(ValueError, match="link is a link; in a folder of results links are not followed"):
        jsonl.append(tmp_path / "link", {"i": 1})


def test_numbers_that_json_lacks_become_null(tmp_path):
    path = tmp_path / "log"
    jsonl.append(path, {"a": float("nan"), "b": [float("inf"), 1.5], "c": tmp_path, "d": None, "e": True})
    assert json.loads(path.read_text()) == {
        "schema": 2,
        "a": None,
        "b": [None, 1.5],
        "c": str(tmp_path),
        "d": None,
        "e": True,
        "crc32": json.loads(path.read_text())["crc32"],
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs limits of file size")
def test_a_record_that_does_not_fit_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "log"
    jsonl.append(path, {"i": 0})
    size = path.stat().st_size
    assert finished(python(LIMITED, path, size + 100)) == str(errno.ENOSPC)
    assert jsonl.read(path) == ([{"schema": 2, "i": 0}], [], 0)
    jsonl.append(path, {"i": 2})
    assert [one["i"] for one in jsonl.read(path).tables] == [0, 2]


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_is_no_file_of_records():
    with pytest.raises(ValueError, match="/dev/full is no regular file"):
        jsonl.append(pathlib.Path("/dev/full"), {"i": 0})


OPERATIONS = ("open", "write", "fsync", "replace", "close", "link", "ftruncate", "lseek", "fstat")


def failing_at(monkeypatch, number: int) -> list[str]:
    """Makes the operation of this number, among those on files, fail; the list tells which were asked for."""
    asked: list[str] = []
    for name in OPERATIONS:
        real = getattr(os, name)

        def operation(*arguments, name=name, real=real, **named):
            asked.append(name)
            if len(asked) == number and name != "close":
                raise OSError(errno.EIO, "injected")
            return real(*arguments, **named)

        monkeypatch.setattr(os, name, operation)
    return asked


def nth(monkeypatch, action):
    """Does an action again and again with the first, second, ... operation failing, until none fails."""
    for number in range(1, 50):
        with monkeypatch.context() as patch:
            asked, error = failing_at(patch, number), None
            try:
                action()
            except OSError as raised:
                error = raised
        yield error
        if len(asked) < number:
            return


def test_a_write_is_whole_or_not_there_whichever_operation_fails(tmp_path, monkeypatch):
    path, tried = tmp_path / "status.json", 0
    files.write(path, "old")
    for error in nth(monkeypatch, lambda: files.write(path, "new")):
        tried += 1
        assert path.read_text() == "old" if error else "new"
        assert [one.name for one in tmp_path.iterdir()] == ["status.json"]
        files.write(path, "old")
    assert tried > 5


def test_an_append_is_whole_or_not_there_whichever_operation_fails(tmp_path, monkeypatch):
    path, tried = tmp_path / "log", 0
    jsonl.append(path, {"i": 0})
    for error in nth(monkeypatch, lambda: jsonl.append(path, {"i": 1})):
        tried += 1
        assert [one["i"] for one in jsonl.read(path).tables] == ([0] if error else [0, 1])
        assert jsonl.read(path).damaged == []
        path.unlink()
        jsonl.append(path, {"i": 0})
    assert tried > 3


def test_a_file_is_created_once_whichever_operation_fails(tmp_path, monkeypatch):
    path, tried = tmp_path / "config.json", 0
    for error in nth(monkeypatch, lambda: files.create(path, "new")):
        tried += 1
        assert not path.exists() if error else path.read_text() == "new"
        assert not list(tmp_path.glob(".*"))
        path.unlink(missing_ok=True)
    assert tried > 3
    assert files.create(path, "one")
    assert not files.create(path, "two")
    assert path.read_text() == "one"


def test_leftovers_of_killed_writers_are_swept_up(tmp_path):
    (tmp_path / ".status.json.abc.tmp").write_text("half")
    (tmp_path / "status.json").write_text("whole")
    files.sweep_up(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["status.json"]
