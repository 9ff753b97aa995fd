"""Logs, files of scores, and whole files in folders that somebody else made: written whole, read with every damage told."""

import errno
import io
import os
import pathlib
import zipfile

import numpy as np
import pytest

from attnjax import safety
from attnjax.records import examples, jsonl
from attnjax.records.examples import Examples
from attnjax.records.files import VersionError

# Whole files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b", "/etc", "x" * 300])
def test_a_name_is_one_component(tmp_path, name):
    with pytest.raises(ValueError, match="one name"):
        safety.inside(tmp_path, name)


@pytest.fixture
def root(tmp_path):
    """A folder with a link to a folder, a link to a file, a pipe, a file of 101 bytes, and a file two levels down."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    root = tmp_path / "root"
    (root / "deep" / "deeper").mkdir(parents=True)
    (root / "deep" / "deeper" / "file").write_text("")
    (root / "run").symlink_to(tmp_path / "outside")
    (root / "link").symlink_to(tmp_path / "outside" / "secret")
    os.mkfifo(root / "pipe")
    (root / "large").write_bytes(b"x" * 101)
    return root


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (lambda root: safety.inside(root, "run", "secret"), "run is a link"),
        (lambda root: safety.read(root / "link", 100), "link is a link"),
        (lambda root: safety.write(root / "run" / "new", b""), "run is a link"),
        (lambda root: jsonl.append(root / "link", {"step": 1}), "link is a link"),
        (lambda root: examples.load(root / "link"), "link is a link"),
        (lambda root: safety.read(root / "pipe", 100), "pipe is no regular file"),
        (lambda root: safety.read(root / "large", 100), "large is larger than 100"),
        (lambda root: list(safety.files(root / "deep", deepest=0)), "deeper is nested too deeply"),
        (lambda root: list(safety.files(root)), "(link|pipe|run) is (a link|no regular file)"),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused(root, refused, why):
    with pytest.raises(ValueError, match=why):
        refused(root)
    assert (root.parent / "outside" / "secret").read_text() == "secret"
    assert [path.name for path in (root.parent / "outside").iterdir()] == ["secret"]


def test_a_sound_file_is_read_and_a_link_is_replaced(root):
    assert safety.read(root / "large", 101) == b"x" * 101
    assert list(safety.files(root / "deep")) == [root / "deep" / "deeper" / "file"]
    safety.write(root / "link", b"mine")
    assert (root / "link").read_bytes() == b"mine"
    assert (root.parent / "outside" / "secret").read_text() == "secret"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    safety.write(tmp_path / "a", b"old")

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        safety.write(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# Logs ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    return tmp_path / "metrics.jsonl"


def steps(log: pathlib.Path) -> list[int]:
    return [row["step"] for row in jsonl.read(log).rows]


def test_what_is_appended_is_read(log):
    rows = [{"step": 1, "loss": 0.1, "text": "ü\n"}, {"step": 2, "loss": float("nan"), "table": {"a": [1, None]}}]
    jsonl.append(log, rows[0])
    jsonl.append(log, rows[1])
    expected = [{"schema": 3, **row} for row in rows]
    expected[1]["loss"] = None  # JSON has no NaN
    assert jsonl.read(log) == (expected, [])
    assert jsonl.read(log.with_name("missing")) == ([], [])


@pytest.mark.parametrize("kept", [1, 10, -1])
def test_a_torn_last_line_costs_itself_alone_and_the_next_append_begins_a_new_one(log, kept):
    jsonl.append(log, {"step": 1})
    whole = log.read_bytes()
    jsonl.append(log, {"step": 2})
    log.write_bytes(whole + log.read_bytes()[len(whole) :][:kept])
    if kept > 0:
        assert steps(log) == [1]
        assert str(jsonl.read(log).problems[0]) == f"{log}, line 2 is not JSON (a torn last line)"
    jsonl.append(log, {"step": 3})
    assert steps(log) == ([1, 3] if kept > 0 else [1, 2, 3])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[1]", "is no JSON object with a schema version"),
        (b'{"step": 1}', "is no JSON object with a schema version"),
        (b'{"schema": "1"}', "is no JSON object with a schema version"),
        (b"[" * 20_000, "is damaged: "),
        (b'{"schema": 1, "a": 1, "a": 2}', "is damaged: "),
        (b'{"step":' + b"9" * 5_000 + b"}", "is damaged: "),
    ],
    ids=lambda value: str(value[:20]),
)
def test_damage_in_the_middle_costs_that_line_alone(log, line, reason):
    log.write_bytes(b'{"schema": 1, "step": 1}\n' + line + b'\n\n{"schema": 1, "step": 3}\n')
    assert steps(log) == [1, 3]
    assert str(jsonl.read(log).problems[0]).startswith(f"{log}, line 2 {reason}")


@pytest.mark.parametrize(("lines", "told"), [(100, 100), (103, 101)])
def test_of_many_damaged_lines_the_first_hundred_are_told(log, lines, told):
    log.write_text("nonsense\n" * lines)
    damaged = jsonl.read(log).problems
    assert len(damaged) == told
    assert (damaged[-1].reason == "has 3 more such lines") == (told == 101)


def test_a_newer_line_is_refused(log):
    log.write_text('{"schema": 4, "step": 1}\n')
    with pytest.raises(VersionError, match="line 1 was written by a newer version"):
        jsonl.read(log)


def test_what_is_no_log_has_no_records(root, monkeypatch):
    monkeypatch.setattr(jsonl, "LARGEST", 100)
    for name in ("link", "pipe", "deep", "large"):
        assert jsonl.read(root / name).rows == []
        assert len(jsonl.read(root / name).problems) == 1


def test_only_the_wanted_records_are_kept_and_a_disk_that_refuses_is_an_error_with_the_name(log, monkeypatch):
    jsonl.append(log, *({"step": step} for step in range(5)))
    with log.open("a") as file:
        file.write("nonsense")
    jsonl.keep(log, lambda row: row["step"] <= 2)
    assert steps(log) == [0, 1, 2]
    assert jsonl.read(log).problems == []
    jsonl.keep(log.with_name("missing"), lambda row: True)

    def full(path, data, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(safety, "write", full)
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        jsonl.replace(log, [])
    assert steps(log) == [0, 1, 2]


# Scores of single examples ------------------------------------------------------------------------------------------------

SCORES = {("test", 128, "exact_match"): np.array([1.0, 0.0, 1.0]), ("train", 64, "loss_sliding"): np.linspace(0, 3, 7)}
LOSS = "test/1/loss"


def test_scores_that_are_written_are_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        examples.read(tmp_path)
    examples.write(tmp_path, Examples(300, SCORES))
    content, found = (tmp_path / examples.FILE).read_bytes(), examples.read(tmp_path)
    assert (found.step, found.scores.keys()) == (300, SCORES.keys())
    for key, array in SCORES.items():
        assert found.scores[key].dtype == np.float64
        assert np.array_equal(found.scores[key], array.astype(np.float32))
    examples.write(tmp_path, Examples(300, SCORES))
    assert (tmp_path / examples.FILE).read_bytes() == content


@pytest.mark.parametrize("key", [("te/st", 1, "loss"), ("test", -1, "loss"), ("test", 1, "loss@"), ("test", 1, "../x")])
def test_a_name_that_could_not_be_read_is_not_written(tmp_path, key):
    with pytest.raises(ValueError, match="no name of a split, length and metric"):
        examples.write(tmp_path, Examples(1, {key: np.zeros(1)}))
    assert not (tmp_path / examples.FILE).exists()


def stored(**arrays) -> bytes:
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


def zipped(**members) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def claiming(size: int) -> bytes:
    """The first bytes of an array of so many entries, and none of them."""
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": "<f8", "fortran_order": False, "shape": (size,)})
    return written.getvalue()


def flipped(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


ONE = np.int64(1)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "zip"),
        (stored(step=ONE)[:-40], "zip"),
        (flipped(stored(step=ONE, **{LOSS: np.arange(50.0)})), ""),
        (stored(**{LOSS: np.zeros(3)}), "step"),
        (stored(step=-ONE), "step"),
        (stored(step=ONE, loss=np.zeros(3)), "'loss'"),
        (stored(step=ONE, **{LOSS: np.zeros((3, 1))}), "'test/1/loss'"),
        (stored(step=ONE, **{LOSS: np.array(["a"])}), "'test/1/loss'"),
        (stored(step=ONE, **{LOSS: np.array([{}])}), "allow_pickle=False"),
        (zipped(**{"step.npy": b"x" * 2000}), "more than 0 MiB"),
        (zipped(**{"step.npy": b"x", "test": b"no array"}), "'step' is no array"),
        (zipped(**{"step.npy": claiming(10**15)}), "more than there is memory for"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # archives hold the time at which they are made
)
def test_a_damaged_file_of_scores_is_a_sentence(tmp_path, monkeypatch, content, named):
    if named.startswith("more than 0"):  # packed in it
        monkeypatch.setattr(examples, "LARGEST", 1000)
    (tmp_path / examples.FILE).write_bytes(content)
    with pytest.raises(ValueError, match=r"examples.npz is damaged: ") as raised:
        examples.read(tmp_path)
    assert named in str(raised.value)
