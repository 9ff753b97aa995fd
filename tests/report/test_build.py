"""The whole report: which files, the same bytes from the same records, clear errors, no JAX."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnjax.report import build, drawing, figures
from attnjax.report.records import read
from attnjax.report.summarise import summarise
from tests.report.payloads import PAYLOADS
from tests.report.synthetic import config, lines, run_id, write_run, write_sweep

ROOT = Path(__file__).parents[2]
PNG, SVG = b"\x89PNG\r\n\x1a\n", b"<?xml"

pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweep") / "records"
    write_sweep(root, ("copy", "text"), ("rope", "learned"), 2)
    return root


@pytest.fixture(scope="module")
def built(sweep: Path) -> dict[str, bytes]:
    out = sweep.parent / "first"
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in build(sweep, out, published=True)}


def test_every_file_is_there(built: dict[str, bytes]):
    assert {name for name in built if "/" not in name} == {
        *("report.html", "figure.png", "figure.svg", "table.md", "table.csv", "lengths.csv", "runs.csv"),
        *(
            "improvement.csv",
            "paired.csv",
            "best_of.csv",
            "overall.csv",
            "published.md",
            "published.csv",
            "agreement.csv",
        ),
    }
    drawn = {name.removeprefix("figures/").partition(".")[0] for name in built if "/" in name}
    losses = ("loss_sliding", "loss_nonoverlapping")
    exact = ("exact_match", "exact_match_oracle_length", "token_accuracy")
    assert drawn == {
        # On copy Learned did not fit, so that there is no pair to compare.
        *("text-improvement", "text-learning", "copy-learning"),
        *(f"text-{metric}-{kind}" for metric in losses for kind in ("length", "heat")),
        *(f"copy-{metric}-{kind}" for metric in exact for kind in ("length", "heat")),
    }
    for name, content in built.items():
        assert content.startswith(PNG if name.endswith("png") else SVG if name.endswith("svg") else b""), name
        # The two tasks have no metric in common, so there is nothing to say about both.
        assert content.count(b"\n") == 1 if name in ("overall.csv", "agreement.csv") else len(content) > 100, name


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(sweep: Path, built: dict[str, bytes]):
    """From another process, into another folder, with another matplotlibrc, locale and hash seed."""
    (sweep.parent / "matplotlibrc").write_text("font.size: 30\nsvg.hashsalt: other\naxes.facecolor: red\n")
    code = "import sys; from attnjax.report import build; build(sys.argv[1], sys.argv[2], published=True)"
    environment = {
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": "7",
        "MATPLOTLIBRC": str(sweep.parent / "matplotlibrc"),
        "LC_ALL": "C",
        "PATH": "",
    }
    again = sweep.parent / "again"
    subprocess.run([sys.executable, "-c", code, str(sweep), str(again)], check=True, env=environment)
    for name, content in built.items():
        assert (again / name).read_bytes() == content, name


def one_run(root: Path, **changes: Any) -> None:
    """A sweep of one run and one metric, whose report is quickly made."""
    fields = config("copy", "rope", 0, **changes)
    row = {"run": run_id(fields), "step": 1, "metric": "exact_match", "value": 0.5}
    write_run(root, fields, metrics="", results=lines([row | {"length": n, "split": "test"} for n in (10, 20, 40)]))


@pytest.mark.quick("my report")
@pytest.mark.parametrize("name", [None, "my report"])
def test_a_report_inside_the_sweep_does_not_report_itself(tmp_path: Path, name: str | None):
    one_run(tmp_path)
    out = name and tmp_path / name
    first = {path: path.read_bytes() for path in build(tmp_path, out)}
    assert {path: path.read_bytes() for path in build(tmp_path, out)} == first
    folder = tmp_path / (name or "report")
    assert folder / "table.csv" in first
    assert folder / "published.csv" not in first
    assert f'href="../{run_id(config("copy", "rope", 0))}/"' in (folder / "report.html").read_text()


def test_no_file_knows_where_it_was_made(sweep: Path, built: dict[str, bytes]):
    for name, content in built.items():
        assert str(sweep.parent).encode() not in content, name


def test_an_empty_directory_is_a_clear_error_and_writes_nothing(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no run to report"):
        build(tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_records_are_not_mixed_with_the_report(sweep: Path):
    with pytest.raises(ValueError, match="cannot be written among its records"):
        build(sweep, sweep)


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path):
    one_run(tmp_path / "sweep")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="the report cannot be written to"):
        build(tmp_path / "sweep", tmp_path / "file")


def test_hostile_names_reach_no_path_and_break_no_figure(tmp_path: Path):
    for word in (PAYLOADS[1], PAYLOADS[-1]):
        fields = config("copy", "rope", 0)
        fields["task"] = fields["task"] | {"name": word}
        fields["model"] = fields["model"] | {"encoding": {"name": f"../../{word}", "options": {}}}
        row = {"run": run_id(fields), "step": 1, "metric": f"../{word}", "length": 40, "value": 0.5, "split": "test"}
        write_run(tmp_path / "sweep", fields, results=lines([row, row | {"length": 20}]))
    paths = build(tmp_path / "sweep", tmp_path / "out")
    assert all(path.parent in (tmp_path / "out", tmp_path / "out" / "figures") for path in paths)
    assert {path.name for path in tmp_path.iterdir()} == {"sweep", "out"}
    svg = "".join(path.read_text() for path in paths if path.suffix == ".svg")
    assert "<script" not in svg.lower()


@pytest.mark.quick("one run", "all failed")
@pytest.mark.parametrize(
    "case", ["one run", "one length", "infinite", "many lengths", "no training length", "all failed"]
)
def test_odd_sweeps_have_a_report(tmp_path: Path, case: str):
    task = {"name": "copy", "options": {}} | (
        {} if case == "no training length" else {"length_min": 1, "length_max": 20}
    )
    lengths = {"one length": [40], "many lengths": range(1, 400, 3)}.get(case, [0, 10, 20, 40, 80])
    for seed in range(1 if case == "one run" else 3):
        fields = config("copy", "rope", seed, task=task)
        common = {"run": run_id(fields), "step": 1, "metric": "loss", "split": "test"}
        rows = [common | {"length": n, "value": None if case == "infinite" else 1.0 + n + seed} for n in lengths]
        bad = case == "all failed" and seed
        write_run(tmp_path / "sweep", fields, "failed" if bad else "done", results=lines(rows), metrics="")
    assert len(build(tmp_path / "sweep", tmp_path / "out")) > 10


def test_figures_can_be_drawn_one_by_one(sweep: Path):
    task = summarise(read(sweep)).tasks[0]
    with drawing.settings():
        figure = figures.by_length(task, task.metrics[0])
    (axis,) = figure.axes
    lines_ = [line for line in axis.get_lines() if line.get_marker() not in ("", "None")]
    np.testing.assert_array_equal(lines_[0].get_ydata(), task.rows["exact_match"][0].curve.value)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Learned (not fitted)", "RoPE"]
    assert axis.get_xlabel() == "length (shaded: up to the longest in training)\nbands: range of 2 runs"


def test_reporting_imports_neither_jax_nor_the_layers_below():
    code = (
        "import sys, attnjax.report, attnjax.report.figures, attnjax.report.page\n"
        "heavy = ('jax', 'flax', 'optax', 'orbax', 'chex', 'matplotlib', 'attnjax.train', 'attnjax.models')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
