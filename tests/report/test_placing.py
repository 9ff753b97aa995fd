"""A report is put in its place whole: a full disk leaves the earlier one as it was, and no link leads it elsewhere."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from attnjax.report import build
from attnjax.report.placing import placed
from tests.report.synthetic import config, lines, run_id, write_run, write_spec

pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")
linked = pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links on this system")


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of one run and one metric, whose report is quickly made."""
    fields = config("copy", "rope", 0)
    row = {"run": run_id(fields), "step": 1, "metric": "exact_match", "value": 0.5}
    write_spec(tmp_path / "sweep", [fields])
    rows = lines([row | {"length": n, "split": "test"} for n in (10, 20, 40)])
    write_run(tmp_path / "sweep", fields, metrics="", results=rows)
    return tmp_path / "sweep"


def tree(folder: Path) -> dict[str, Any]:
    """Everything below a folder: the bytes of files, where links lead, None for folders."""
    return {
        path.relative_to(folder).as_posix(): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def write(target: Path, *names: str, error: BaseException | None = None) -> None:
    """Put files in place, or fail after they are written."""
    with placed(target) as folder:
        for name in names:
            (folder / name).write_text("new")
        if error is not None:
            raise error


@pytest.mark.parametrize("name", ["answer.csv", pytest.param("report.html", marks=pytest.mark.slow)])
def test_where_a_file_cannot_be_written_the_earlier_report_stays_as_it_was(sweep: Path, monkeypatch, name: str):
    for path in build(sweep):
        path.write_bytes(b"earlier")
    before, real = tree(sweep), Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == name:
            path.touch()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(ValueError, match=r"cannot be written to .*: No space left on device"):
            build(sweep)
    assert tree(sweep) == before
    build(sweep)
    assert b"earlier" not in tree(sweep / "report").values()


def test_what_others_put_beside_a_report_stays(sweep: Path):
    (sweep / "report" / "figures").mkdir(parents=True)
    for name in ("notes.txt", "figures/mine.png", "report.html"):
        (sweep / "report" / name).write_text("mine")
    build(sweep)
    kept = {name for name, data in tree(sweep / "report").items() if data == b"mine"}
    assert kept == {"notes.txt", "figures/mine.png"}


@linked
@pytest.mark.parametrize("name", ["report", "report/table.md", "report/report.html"])
@pytest.mark.parametrize("dangling", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_no_link_in_a_folder_of_results_leads_the_report_out_of_it(sweep: Path, name: str, dangling: bool):
    victim = sweep.parent / "victim"
    if not dangling:
        victim.mkdir() if name == "report" else victim.write_text("precious")
    (sweep / name).parent.mkdir(exist_ok=True)
    (sweep / name).symlink_to(victim)
    before = tree(sweep.parent)
    with pytest.raises(ValueError, match=rf"cannot be written to .*{name} is a link"):
        build(sweep)
    assert tree(sweep.parent) == before


@linked
def test_a_folder_given_with_out_may_be_a_link(sweep: Path):
    there, link = sweep.parent / "there", sweep.parent / "link"
    there.mkdir()
    link.symlink_to(there)
    assert (there / "report.html") in build(sweep, link)
    assert link.is_symlink()
    assert (there / "figure.svg").is_file()


def test_a_folder_in_place_of_a_file_is_refused_before_anything_is_moved(tmp_path: Path):
    (tmp_path / "report" / "z.csv").mkdir(parents=True)
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=r"z\.csv is no file"):
        write(tmp_path / "report", "a.csv", "z.csv")
    assert tree(tmp_path) == before


def test_the_page_is_moved_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    moved: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda *ends, **named: [moved.append(Path(ends[0]).name), real(*ends, **named)])
    (tmp_path / "report").mkdir()
    with placed(tmp_path / "report") as folder:
        (folder / "figures").mkdir()
        for name in ("report.html", "a.csv", "z.csv", "figures/one.png"):
            (folder / name).write_text(name)
    assert moved == ["a.csv", "one.png", "z.csv", "report.html"]
    assert tree(tmp_path / "report") == {
        "figures": None,
        **{name: name.encode() for name in ("report.html", "a.csv", "z.csv", "figures/one.png")},
    }


def test_a_report_that_is_interrupted_leaves_nothing(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "new" / "report", "a.csv", error=KeyboardInterrupt())
    assert tree(tmp_path) == {"new": None}
