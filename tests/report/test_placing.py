"""A report is put in its place whole: a full disk leaves the earlier one as it was, and no link leads it elsewhere."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnjax.report import build
from attnjax.report.placing import placed
from tests.report.synthetic import config, lines, run_id, write_run, write_spec

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FULL_DISK = """
import pathlib, resource, sys
from attnjax.report import build
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    build(sys.argv[1])
except ValueError as error:
    print(error)
"""
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


def failing_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Makes the writing of this file fail halfway; the list tells which were written."""
    from matplotlib.figure import Figure

    written: list[str] = []

    def limited(write: Callable[..., Any], to: Callable[[Any, Any], Path]) -> Callable[..., Any]:
        def writing(this: Any, first: Any, **named: Any) -> Any:
            written.append(to(this, first).name)
            if len(written) == number:
                to(this, first).touch()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(this, first, **named)

        return writing

    monkeypatch.setattr(Path, "write_bytes", limited(Path.write_bytes, lambda this, data: this))
    monkeypatch.setattr(Figure, "savefig", limited(Figure.savefig, lambda this, path: Path(path)))
    return written


@pytest.mark.parametrize("earlier", [True, False])
def test_whichever_file_cannot_be_written_the_earlier_report_stays_as_it_was(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")
    if earlier:
        for path in build(sweep):
            path.write_bytes(b"earlier")
    before, files = tree(sweep), len(build(sweep, sweep.parent / "other"))
    for number in range(1, files + 1):
        with monkeypatch.context() as patch:
            written = failing_at(patch, number)
            with pytest.raises(ValueError, match="the report cannot be written to .*: No space left on device"):
                build(sweep)
        assert len(written) == number
        assert tree(sweep) == before
    assert {path.name for path in build(sweep)} > {"report.html", "table.md"}
    after = tree(sweep / "report")
    assert b"earlier" not in after.values()
    assert all(data for data in after.values() if data is not None)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs limits of file size")
@pytest.mark.parametrize("limit", [0, 100, 3000, 20_000])
def test_a_disk_that_takes_no_more_leaves_the_earlier_report(sweep: Path, limit: int):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")
    for path in build(sweep):
        path.write_bytes(b"earlier")
    before = tree(sweep)
    command = [sys.executable, "-c", FULL_DISK, str(sweep), str(limit)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "the report cannot be written to" in done.stdout
    assert tree(sweep) == before


def test_what_others_put_beside_a_report_stays(sweep: Path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")
    (sweep / "report" / "figures").mkdir(parents=True)
    for name in ("notes.txt", "figures/mine.png", "report.html"):
        (sweep / "report" / name).write_text("mine")
    build(sweep)
    kept = {name for name, data in tree(sweep / "report").items() if data == b"mine"}
    assert kept == {"notes.txt", "figures/mine.png"}


@linked
@pytest.mark.parametrize("name", ["report", "report/figures", "report/table.md", "report/report.html"])
@pytest.mark.parametrize("dangling", [True, False])
def test_no_link_in_a_folder_of_results_leads_the_report_out_of_it(sweep: Path, name: str, dangling: bool):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")
    victim = sweep.parent / "victim"
    if not dangling:
        victim.mkdir() if name in ("report", "report/figures") else victim.write_text("precious")
    (sweep / name).parent.mkdir(exist_ok=True)
    (sweep / name).symlink_to(victim)
    before = tree(sweep.parent)
    with pytest.raises(
        ValueError, match=rf"the report cannot be written to .*{name} is a link.*Remove it, or give --out"
    ):
        build(sweep)
    assert tree(sweep.parent) == before


@linked
def test_a_folder_given_with_out_may_be_a_link(sweep: Path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")
    there, link = sweep.parent / "there", sweep.parent / "link"
    there.mkdir()
    link.symlink_to(there)
    assert (there / "report.html") in build(sweep, link)
    assert link.is_symlink()
    assert (there / "figures").is_dir()


def test_a_folder_in_place_of_a_file_is_refused_before_anything_is_moved(tmp_path: Path):
    (tmp_path / "report" / "z.csv").mkdir(parents=True)
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=r"z\.csv is no file"):
        write(tmp_path / "report", "a.csv", "z.csv")
    assert tree(tmp_path) == before


def test_the_page_is_moved_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    moved: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda *ends, **named: [moved.append(ends[0]), real(*ends, **named)])
    (tmp_path / "report").mkdir()
    with placed(tmp_path / "report") as folder:
        (folder / "figures").mkdir()
        for name in ("report.html", "a.csv", "z.csv", "figures/one.png"):
            (folder / name).write_text(name)
    assert moved == ["one.png", "a.csv", "z.csv", "report.html"]
    assert tree(tmp_path / "report") == {
        "figures": None,
        **{name: name.encode() for name in ("report.html", "a.csv", "z.csv", "figures/one.png")},
    }


def test_a_report_that_is_interrupted_leaves_nothing(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "new" / "report", "a.csv", error=KeyboardInterrupt())
    assert tree(tmp_path) == {"new": None}
