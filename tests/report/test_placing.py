"""A report is put in its place whole: a full disk leaves the earlier one as it was, and no link leads it elsewhere."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from attnjax.report import build, drawing
from attnjax.report.placing import placed
from tests.report.synthetic import one_run

pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")


def tree(folder: Path) -> dict[str, Any]:
    """Everything below a folder: the bytes of files, where links lead, None for folders."""
    read = lambda path: os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return {path.relative_to(folder).as_posix(): read(path) for path in folder.rglob("*")}


def write(target: Path, *names: str, error: BaseException | None = None) -> None:
    """Put files in place, or fail after they are written."""
    with placed(target) as folder:
        for name in names:
            (folder / name).write_text("new")
        if error is not None:
            raise error


def test_where_the_disk_is_full_the_earlier_report_stays_as_it_was(tmp_path: Path, monkeypatch):
    one_run(tmp_path)
    (tmp_path / "report").mkdir()
    for name in ("report.html", "figure.png", "notes.txt"):
        (tmp_path / "report" / name).write_text("earlier")
    before = tree(tmp_path)

    def full(figure: Any, path: Path) -> list[Path]:
        path.with_suffix(".png").write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(drawing, "save", full)
    with pytest.raises(ValueError, match=r"cannot be written to .*: No space left on device"):
        build(tmp_path)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["report", "report/table.md", "report/report.html"])
@pytest.mark.parametrize("dangling", [True, False])
def test_no_link_leads_the_report_out_of_its_folder(tmp_path: Path, name: str, dangling: bool):
    victim, place = tmp_path / "victim", tmp_path / "runs" / name
    if not dangling:
        victim.mkdir() if name == "report" else victim.write_text("precious")
    place.parent.mkdir(parents=True)
    place.symlink_to(victim)
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=f"{name} is a link"):
        write(tmp_path / "runs" / "report", "a.csv", "report.html", "table.md")
    assert tree(tmp_path) == before


def test_a_folder_in_place_of_a_file_is_refused_before_anything_is_moved(tmp_path: Path):
    (tmp_path / "report" / "z.csv").mkdir(parents=True)
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=r"z\.csv is no file"):
        write(tmp_path / "report", "a.csv", "z.csv")
    assert tree(tmp_path) == before


def test_the_page_is_moved_last_and_what_others_put_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    moved: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda *ends: [moved.append(Path(ends[0]).name), real(*ends)])
    (tmp_path / "report").mkdir()
    for name in ("notes.txt", "report.html"):
        (tmp_path / "report" / name).write_text("mine")
    write(tmp_path / "report", "report.html", "a.csv", "z.csv")
    assert moved == ["a.csv", "z.csv", "report.html"]
    assert tree(tmp_path / "report") == {"notes.txt": b"mine"} | dict.fromkeys(moved, b"new")


def test_a_report_that_is_interrupted_leaves_nothing(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "new" / "report", "a.csv", error=KeyboardInterrupt())
    assert tree(tmp_path) == {"new": None}
