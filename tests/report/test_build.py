"""The whole report: which files, the same bytes from the same records, clear errors, no JAX."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnjax.records.packed import pack
from attnjax.records.stored import read
from attnjax.report import build, drawing, figures
from attnjax.report.tables import summarise
from tests.cases import slow_except
from tests.report.payloads import PAYLOADS
from tests.report.synthetic import config, lines, run_id, write_run, write_sweep

ROOT = Path(__file__).parents[2]

pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sweep") / "records"
    write_sweep(root, ("copy", "text"), ("rope", "learned"), 2)
    return root


@pytest.fixture(scope="module")
def built(sweep: Path) -> dict[str, bytes]:
    out = sweep.parent / "first"
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in build(sweep, out)}


def test_every_file_is_there(built: dict[str, bytes]):
    tables = {f"{name}.csv" for name in ("answer", "lengths", "differences", "runs")}
    assert built.keys() == {"report.html", "figure.png", "figure.svg", "table.md", *tables}
    assert built["figure.png"].startswith(b"\x89PNG\r\n\x1a\n")
    assert all(len(content) > 100 for content in built.values())


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes(sweep: Path, built: dict[str, bytes]):
    """From another process, into another folder, with another matplotlibrc, locale and hash seed."""
    (sweep.parent / "matplotlibrc").write_text("font.size: 30\nsvg.hashsalt: other\naxes.facecolor: red\n")
    code = "import sys; from attnjax.report import build; build(sys.argv[1], sys.argv[2])"
    environment = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7", "LC_ALL": "C", "PATH": ""}
    environment["MATPLOTLIBRC"] = str(sweep.parent / "matplotlibrc")
    again = sweep.parent / "again"
    subprocess.run([sys.executable, "-c", code, str(sweep), str(again)], check=True, env=environment)
    for name, content in built.items():
        assert (again / name).read_bytes() == content, name


def test_a_packed_folder_has_the_same_numbers(sweep: Path, built: dict[str, bytes], tmp_path: Path):
    pack(sweep, tmp_path / "packed")
    build(tmp_path / "packed", tmp_path / "out")
    for name in ("answer.csv", "lengths.csv", "differences.csv", "runs.csv", "table.md"):
        assert (tmp_path / "out" / name).read_bytes() == built[name], name


def one_run(root: Path) -> None:
    """A sweep of one run and one metric, whose report is quickly made."""
    fields = config("copy", "rope", 0)
    row = {"run": run_id(fields), "step": 1, "metric": "exact_match", "value": 0.5, "split": "test"}
    write_run(root, fields, metrics="", results=lines([row | {"length": n} for n in (10, 20, 40)]))


@pytest.mark.parametrize("name", [None, "my report"])
def test_a_report_inside_the_sweep_does_not_report_itself(tmp_path: Path, name: str | None):
    one_run(tmp_path)
    out = name and tmp_path / name
    first = {path: path.read_bytes() for path in build(tmp_path, out)}
    assert {path: path.read_bytes() for path in build(tmp_path, out)} == first
    folder = tmp_path / (name or "report")
    assert folder / "answer.csv" in first
    assert f'href="../{run_id(config("copy", "rope", 0))}/"' in (folder / "report.html").read_text()


def test_no_file_knows_where_it_was_made(sweep: Path, built: dict[str, bytes]):
    for name, content in built.items():
        assert str(sweep.parent).encode() not in content, name


@pytest.mark.parametrize(
    ("folder", "out", "message"),
    [
        ("empty", "out", "holds no run to report"),
        ("one", "one", "among its records"),
        ("one", "file", "cannot be written to"),
    ],
)
def test_what_cannot_be_reported_is_a_clear_error_and_writes_nothing(
    tmp_path: Path, folder: str, out: str, message: str
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    one_run(tmp_path / "one")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        build(tmp_path / folder, tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == before


def test_hostile_names_reach_no_path(tmp_path: Path):
    for word in (PAYLOADS[1], PAYLOADS[-1]):
        fields = config("copy", "rope", 0)
        fields["task"] = fields["task"] | {"name": word}
        fields["model"] = fields["model"] | {"encoding": {"name": f"../../{word}", "options": {}}}
        row = {"run": run_id(fields), "step": 1, "metric": f"../{word}", "length": 40, "value": 0.5, "split": "test"}
        write_run(tmp_path / "sweep", fields, results=lines([row, row | {"length": 20}]))
    paths = build(tmp_path / "sweep", tmp_path / "out")
    assert all(path.parent == tmp_path / "out" for path in paths)
    assert {path.name for path in tmp_path.iterdir()} == {"sweep", "out"}


@pytest.mark.parametrize(
    "case",
    slow_except(
        ["one run", "one length", "infinite", "many lengths", "no training length", "all failed"],
        "one run",
        "all failed",
    ),
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
    assert len(build(tmp_path / "sweep", tmp_path / "out")) == 8


def test_the_figure_shows_the_medians_and_names_its_lines(sweep: Path):
    summary = summarise(read(sweep))
    with drawing.settings():
        figure = figures.overview(summary.tasks)
    task, axis = summary.tasks[0], figure.axes[0]
    drawn = {line.get_gid(): line.get_ydata() for line in axis.get_lines() if line.get_gid()}
    rows = task.lengths[task.lengths.metric == task.metric.key]
    for variant in task.panel.variants:
        np.testing.assert_array_equal(drawn[figures.gid(variant)], rows["median"][rows.variant == variant.label])
    assert {text.get_text() for text in axis.texts} >= {"RoPE", "Learned", "guessing"}
    assert axis.get_ylabel().endswith("(\N{UPWARDS ARROW} better)")


def test_what_did_not_fit_does_not_stretch_the_axis(make):
    """NoPE is at 9 nats and far from the best possible 1.9, the others at 2: the axis ends near 2."""
    runs = [
        (n, s, {20: 1.9 if n != "nope" else 9.0, 40: 2.0 if n != "nope" else 9.0})
        for n in ("rope", "t5", "nope")
        for s in range(2)
    ]
    sweep = make(*runs, task="markov", metric="loss_sliding")
    level = {"loss_sliding": {"bigram": 1.9}}
    told = [dataclasses.replace(run, manifest={"baselines": {"20": level, "40": level}}) for run in sweep.runs]
    (task,) = summarise(dataclasses.replace(sweep, runs=tuple(told))).tasks
    with drawing.settings():
        axis = figures.overview([task]).axes[0]
    colors = {line.get_gid(): line.get_color() for line in axis.get_lines() if line.get_gid()}
    pale = [variant.label for variant in task.panel.variants if colors[figures.gid(variant)] == drawing.UNFITTED]
    assert pale == ["NoPE"]
    assert "pale: did not fit" in axis.get_xlabel()
    assert axis.get_ylim()[1] < 2.1


@pytest.mark.parametrize(
    "places", [[0.0, 0.0, 0.0], [0.1, 0.5, 0.52, 1.0], [1.0] * 5, [0.2], list(np.linspace(0, 1, 9))]
)
def test_names_are_moved_apart_and_stay_in_order(places: list[float]):
    found = figures.apart(places, 0.1)
    assert (np.diff(found) >= 0.1 - 1e-9).all()
    assert found.min() >= 0
    assert found.max() <= 1 + 1e-9
    if len(places) < 3:
        np.testing.assert_array_equal(found, places)


def test_reporting_imports_neither_jax_nor_the_layers_below():
    code = (
        "import sys, attnjax.report, attnjax.report.figures, attnjax.report.page\n"
        "heavy = ('jax', 'flax', 'optax', 'orbax', 'chex', 'matplotlib', 'attnjax.train', 'attnjax.models')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
