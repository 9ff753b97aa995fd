"""Logs, tables and whole files: written whole, read with every damage told."""

import errno
import os
import pathlib

import pytest

from attnjax import safety
from attnjax.records import jsonl
from attnjax.records.files import VersionError


@pytest.fixture
def log(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_what_is_appended_is_read(log):
    rows = [{"step": 1, "loss": 0.1, "text": "ü\n"}, {"step": 2, "loss": float("nan"), "table": {"a": [1, None]}}]
    jsonl.append(log, rows[0])
    jsonl.append(log, rows[1])
    expected = [{"schema": 3, **row} for row in rows]
    expected[1]["loss"] = None  # JSON has no NaN
    assert jsonl.read(log) == (expected, [])


@pytest.mark.parametrize("kept", [1, 10, -1])
def test_a_torn_last_line_costs_itself_alone_and_the_next_append_begins_a_new_one(log, kept):
    jsonl.append(log, {"step": 1})
    whole = log.read_bytes()
    jsonl.append(log, {"step": 2})
    log.write_bytes(whole + log.read_bytes()[len(whole) :][:kept])
    found = jsonl.read(log)
    if kept > 0:
        assert ([row["step"] for row in found.tables], found.damaged) == (
            [1],
            ["line 2 is not JSON (a torn last line)"],
        )
    jsonl.append(log, {"step": 3})
    assert [row["step"] for row in jsonl.read(log).tables] == ([1, 3] if kept > 0 else [1, 2, 3])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[1]", "is no JSON object with a schema version"),
        (b'{"step": 1}', "is no JSON object with a schema version"),
        (b'{"schema": "1"}', "is no JSON object with a schema version"),
        (b"[" * 2000, "is damaged: "),
        (b'{"schema": 1, "a": 1, "a": 2}', "is damaged: "),
    ],
)
def test_damage_in_the_middle_costs_that_line_alone(log, line, reason):
    log.write_bytes(b'{"schema": 1, "step": 1}\n' + line + b'\n{"schema": 1, "step": 3}\n')
    found = jsonl.read(log)
    assert [row["step"] for row in found.tables] == [1, 3]
    assert found.damaged[0].startswith(f"line 2 {reason}")


def test_a_newer_line_is_refused(log):
    log.write_text('{"schema": 4, "step": 1}\n')
    with pytest.raises(VersionError, match="line 1 was written by a newer version"):
        jsonl.read(log)


def test_what_is_no_log_has_no_records(tmp_path, monkeypatch):
    assert jsonl.read(tmp_path / "missing.jsonl") == ([], [])
    (tmp_path / "real").write_text('{"schema": 1}\n')
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        assert jsonl.read(tmp_path / name).tables == []
        assert len(jsonl.read(tmp_path / name).damaged) == 1
    with pytest.raises(ValueError, match="is a link"):
        jsonl.append(tmp_path / "link", {"step": 1})
    monkeypatch.setattr(jsonl, "LARGEST", 5)
    assert "larger than 5 bytes" in jsonl.read(tmp_path / "real").damaged[0]


@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_refuses_is_an_error_with_the_name(log, monkeypatch):
    jsonl.append(log, {"step": 1})

    def full(path, data, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(safety, "write", full)
    with pytest.raises(OSError, match=r"No space left on device: .*metrics\.jsonl"):
        jsonl.replace(log, [])
    assert [row["step"] for row in jsonl.read(log).tables] == [1]


def test_only_the_wanted_records_are_kept(log):
    jsonl.append(log, *({"step": step} for step in range(5)))
    with log.open("a") as file:
        file.write("nonsense")
    jsonl.keep(log, lambda row: row["step"] <= 2)
    assert [row["step"] for row in jsonl.read(log).tables] == [0, 1, 2]
    assert jsonl.read(log).damaged == []
    jsonl.keep(log.with_name("missing"), lambda row: True)
