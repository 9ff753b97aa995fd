"""Folders of runs in object storage: read as those of this machine, byte for byte, and never written to."""

import pathlib
import re
import shutil
import sys

import fsspec
import pytest

from attnjax import report
from attnjax.cli import main
from attnjax.records import remote
from attnjax.records.remote import local, mirrored
from attnjax.sweep import load, prepare, scan

FROZEN = pathlib.Path(__file__).parents[1] / "frozen" / "format_1"
URL = "memory://bucket/theta"


@pytest.fixture
def bucket():
    """A bucket in memory, emptied after the test."""
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def both(bucket, tmp_path, monkeypatch):
    """The same runs here and there, with a damaged line, a checkpoint and things that are not part of a sweep."""
    here = shutil.copytree(FROZEN, tmp_path / "theta")
    run = sorted(path for path in here.iterdir() if path.is_dir())[0]
    (here / "notes.txt").write_text("mine")
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / "file").write_text("x")
    (run / "checkpoints" / "3").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints" / "3" / "array").write_bytes(b"\0" * 1000)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"schema": 2, "torn')
    (here / max(path.name for path in here.iterdir() if len(path.name) == 16) / "manifest.json").write_text("{")
    bucket.put(str(here), URL, recursive=True)
    monkeypatch.chdir(tmp_path)
    return here, run.name


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_report_has_the_same_bytes(both, tmp_path):
    here, _ = both
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    made = report.build(here, ours)
    assert [path.relative_to(theirs) for path in report.build(URL, theirs)] == [path.relative_to(ours) for path in made]
    expected, found = files(ours), files(theirs)
    page, other = expected.pop("report.html").decode(), found.pop("report.html").decode()
    assert found == expected
    assert len(found) > 8
    assert "notes.txt" in other
    assert "torn last line" in other
    without_links, links = re.subn(r'<a href="\.\./theta/[0-9a-f]{16}/">(.*?)</a>', r"\1", page)
    assert links > 0
    assert other == without_links


@pytest.mark.slow
def test_the_command_writes_it_beside_where_it_is_called(both, tmp_path, capsys):
    assert main(["report", URL]) == 0
    assert "report-theta/report.html" in capsys.readouterr().out
    assert (tmp_path / "report-theta" / "report.html").exists()


def test_the_list_is_the_same_and_names_the_url(both, capsys):
    here, _ = both
    assert main(["list", "runs", str(here)]) == 0
    ours = capsys.readouterr().out
    assert main(["list", "runs", URL]) == 0
    assert capsys.readouterr().out == ours.replace(str(here), URL)
    assert re.search(f"problem: {here}/[0-9a-f]+/manifest.json is damaged", ours)


def test_records_alone_are_copied_and_the_copy_goes(both, bucket):
    here, run = both
    bucket.pipe(f"{URL}/{run}/examples.npz", b"scores")
    with mirrored(f"{URL}/") as folder:
        assert folder.name == "theta"
        assert {path.name for path in (folder / run).iterdir()} <= set(remote.RECORDS)
        assert (folder / run / "examples.npz").read_bytes() == b"scores"
        assert (folder / run / "results.jsonl").read_bytes() == (here / run / "results.jsonl").read_bytes()
        assert len(scan(folder).runs) == len(load(folder).runs) == 2
    assert not folder.parent.exists()
    with mirrored(here) as folder:
        assert folder == here
    assert here.exists()


def test_errors_name_the_url_and_not_the_copy(both, bucket):
    bucket.pipe(f"{URL}/sweep.json", b"{")
    with pytest.raises(ValueError, match=re.escape(f"{URL}/sweep.json is damaged or no JSON")), mirrored(URL) as folder:
        load(folder)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (
            "memory://nowhere/theta",
            "there is nothing at memory://nowhere/theta: give the folder that a sweep was written to",
        ),
        ("nosuch://bucket/theta", "nosuch://bucket/theta cannot be read: ValueError: Protocol not known: nosuch"),
        ("file:///tmp", "file:///tmp is a folder of this machine: give its path"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(bucket, capsys, url, sentence):
    for command in (["report", url], ["list", "runs", url]):
        assert main(command) == 2
        assert capsys.readouterr().err == f"attnjax: error: {sentence}\n"


@pytest.mark.parametrize("package", ["gcsfs", "fsspec"])
def test_a_package_that_is_missing_is_told_with_its_extra(monkeypatch, capsys, package):
    monkeypatch.setitem(sys.modules, package, None)
    if package == "fsspec":
        monkeypatch.setitem(sys.modules, "fsspec.core", None)
    assert main(["list", "runs", "gs://bucket/theta"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("attnjax: error: gs://bucket/theta cannot be read: ")
    assert told.endswith("What reads gs:// and s3:// comes with pip install 'attnjax[cloud]'\n")


@pytest.mark.parametrize("failing", ["find", "cat_ranges"])
def test_a_store_that_refuses_is_a_sentence(both, monkeypatch, failing, capsys):
    def refuse(*_, **__):
        raise RuntimeError("Forbidden:\n 403")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), failing, refuse)
    assert main(["list", "runs", URL]) == 2
    assert capsys.readouterr().err == f"attnjax: error: {URL} cannot be read: RuntimeError: Forbidden: 403\n"


def test_a_file_that_vanishes_is_missing_and_one_that_is_refused_is_told(both, monkeypatch):
    _, run = both
    system = fsspec.get_filesystem_class("memory")
    real, answer = system.cat_ranges, [FileNotFoundError("gone")]

    def cat_ranges(self, paths, *rest, **named):
        found = real(self, paths, *rest, **named)
        return [answer[0] if path.endswith(f"{run}/status.json") else one for path, one in zip(paths, found)]

    monkeypatch.setattr(system, "cat_ranges", cat_ranges)
    with mirrored(URL) as folder:
        assert not (folder / run / "status.json").exists()
        assert (folder / run / "config.json").exists()
    answer[0] = PermissionError("not yours")
    with pytest.raises(ValueError, match=f"{URL} cannot be read: PermissionError: not yours"), mirrored(URL):
        pass


def test_names_of_a_bucket_lead_nowhere(bucket, both, tmp_path):
    """A bucket may have any key: nothing is written but records of runs and empty files of harmless names."""
    here, run = both
    before = files(tmp_path)
    hostile = ["/../escaped", "/a\\b", "/" + "long" * 100, "/../../up/config.json", "//"]
    hostile += [f"/{run}/../x", f"/{run}/traceback.txt/y"]
    for name in hostile:
        bucket.store[f"/bucket/theta{name}"] = bucket.store["/bucket/theta/notes.txt"]
    bucket.store["/bucket/theta/" + "0" * 16] = bucket.store["/bucket/theta/notes.txt"]
    with mirrored(URL) as folder:
        below = list(folder.parent.rglob("*"))
        assert all(path.is_relative_to(folder) for path in below)
        assert "a%5Cb" in {path.name for path in folder.iterdir()}
        assert all(path.name in remote.RECORDS for path in below if path.parent.parent == folder)
        assert (folder / ("0" * 16)).is_file()
        assert (folder / run / "config.json").read_bytes() == (here / run / "config.json").read_bytes()
    assert files(tmp_path) == before


def test_a_file_larger_than_what_is_read_is_not_copied(both, bucket, monkeypatch, capsys):
    here, run = both
    monkeypatch.setattr(remote, "SIZE", 100)
    monkeypatch.setattr(remote.lines, "LARGEST", 100)
    with mirrored(URL) as folder:
        for name in ("results.jsonl", "config.json"):
            copied, real = folder / run / name, here / run / name
            assert copied.stat().st_size == real.stat().st_size > 100
            assert copied.read_bytes().strip(b"\0") == b""


def test_where_leases_are_needed_a_url_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    why = "leases need files that exactly one process can make, which object storage does not promise"
    for command in (
        ["work", "gs://b/x"],
        ["sweep", "theta", "--out", "s3://b/x"],
        ["run", "theta", "--out", "gs:/b/x"],
    ):
        with pytest.raises(SystemExit) as end:
            main(command)
        assert end.value.code == 2
        assert why in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--out", "gs://b/x"]) == 2
    assert "gs://b/x is a URL, and reports are written to folders of this machine" in capsys.readouterr().err
    assert main(["list", "runs", "gs://b/x", "--watch"]) == 2
    assert "gs://b/x is a URL, and --watch reads heartbeats, which a copy has not" in capsys.readouterr().err
    for root in ("gs://b/x", pathlib.Path("gs://b/x")):
        with pytest.raises(ValueError, match=why):
            prepare(root, "x", [])
        for function in (load, scan):
            with pytest.raises(ValueError, match=r"with attnjax\.sweep\.mirrored\(URL\) as folder"):
                function(root)
    assert list(tmp_path.iterdir()) == []
    assert local("runs/x", why) == pathlib.Path("runs/x")


def test_what_was_chosen_comes_along(both, bucket):
    """A report of a sweep that was not tuned says so there too."""
    here, _ = both
    (here / "tuning.json").write_text("{")
    (here / "tuning").mkdir()
    (here / "tuning" / "sweep.json").write_text("{}")
    bucket.put(str(here / "tuning.json"), f"{URL}/tuning.json")
    bucket.put(str(here / "tuning"), f"{URL}/tuning", recursive=True)
    with mirrored(URL) as copy:
        assert (copy / "tuning.json").read_text() == "{"
        assert not [name for name in scan(copy).foreign if name.startswith("tuning")]
