"""A whole report: its files, what the page says, and that no string of somebody else becomes markup, a formula or a path."""

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnjax.records.values import printable
from attnjax.report import answer, build
from attnjax.sweep.choices import Choice, Choices, Trial, keep
from tests.browser import BROWSER, Parsed, visit
from tests.report.payloads import PAYLOADS
from tests.report.synthetic import canonical, config, lines, one_run, run_id, write_run, write_spec, write_sweep

pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")

ROOT = Path(__file__).parents[2]
TABLES = ("answer.csv", "lengths.csv", "differences.csv", "runs.csv")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "runs"
    write_sweep(root, ("copy", "text"), ("rope", "learned", "alibi"), 3)
    return root


@pytest.fixture(scope="module")
def built(sweep: Path) -> dict[str, bytes]:
    out = sweep.parent / "out"
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in build(sweep, out)}


@pytest.fixture(scope="module")
def page(built: dict[str, bytes]) -> str:
    return built["report.html"].decode()


def hostile_sweep(root: Path, words: str) -> None:
    """Two variants of one task, with the words in every field that holds text."""
    configs = []
    for way in ("../../", ""):
        fields = config("copy", "rope", 0)
        fields["name"] = words
        fields["task"] = {"name": f"=1+1 {words}", "options": {words: words}, "length_min": 1, "length_max": 20}
        fields["model"] = {"layers": 2, "encoding": {"name": way + words, "options": {words: words}}, words: words}
        configs.append(fields)
    write_spec(root, configs, name=words, protocol=words)
    for fields in configs:
        common = {"run": run_id(fields), "step": 9, "value": 0.5}
        rows = [
            common | {"metric": metric, "length": n, "split": split}
            for metric in ("exact_match", f"../m {words}")
            for n, split in ((20, "train"), (40, "test"))
        ]
        manifest = {"schema": 1, "device": words, words: words, "nested": {words: [words]}}
        status = {"schema": 1, "state": "done", "reason": words}
        texts = {"manifest": canonical(manifest), "status": canonical(status), "metrics": ""}
        write_run(root, fields, results=lines(rows) + canonical(words), **texts)
    tuned = Choice("0" * 16, {words: words}, "exact_match", ((Trial("0" * 16, "done", 0.5),),), 0)
    keep(root, Choices(words, ({words: 1},), (7,), (tuned,)))


def texts_of(root: Path, words: str) -> dict[str, str]:
    hostile_sweep(root / "runs", words)
    paths = build(root / "runs", root / "out")
    assert {path.parent for path in paths} == {root / "out"}
    assert {path.name for path in root.iterdir()} == {"runs", "out"}
    return {path.name: path.read_text(encoding="utf-8") for path in paths if path.suffix != ".png"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return texts_of(tmp_path_factory.mktemp("hostile"), " ".join(PAYLOADS))


def test_no_string_becomes_markup(hostile: dict[str, str], tmp_path: Path):
    """The same sweep with harmless words must give the same tags with the same attributes."""
    harmless = texts_of(tmp_path, "harmless words")
    found, expected = (
        Parsed(re.sub(r"<svg.*?</svg>", "", one["report.html"], flags=re.DOTALL)).skeleton
        for one in (hostile, harmless)
    )
    assert found == expected
    assert "<script" not in hostile["figure.svg"].lower()


def test_every_string_is_shown_as_text(hostile: dict[str, str]):
    text = " ".join(" ".join(Parsed(hostile["report.html"]).text).split())
    whole = lambda payload: payload.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for payload in PAYLOADS:
        shown = [" ".join(printable(one).split()) for one in (whole(payload), payload)]
        assert any(one in text for one in shown), payload


def test_no_attribute_runs_or_fetches(hostile: dict[str, str]):
    for tag, attributes in Parsed(hostile["report.html"]).tags:
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "src", "srcdoc", "action", "formaction"), (tag, name)
            if name in ("href", "xlink:href"):
                assert re.fullmatch(r"#[\w-]+|\.\./runs/[0-9a-f]{16}/", value or ""), value


def test_hostile_names_break_no_table(hostile: dict[str, str]):
    for name in (*TABLES, "tuning.csv"):
        rows = list(csv.reader(io.StringIO(hostile[name])))
        assert len({len(row) for row in rows}) == 1
        assert not any(cell.startswith(("=", "+", "@")) for row in rows for cell in row)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_in_a_browser_nothing_runs_and_nothing_is_fetched(hostile: dict[str, str], tmp_path: Path):
    (tmp_path / "report.html").write_text(hostile["report.html"], encoding="utf-8")
    dom, log = visit(tmp_path)
    assert "data-pwned" not in dom.partition(">")[0] + dom.partition("<html")[2].partition(">")[0]
    assert "report.html" in log
    assert "example.invalid" not in log


def test_the_policy_allows_this_style_alone(page: str):
    (style,) = Parsed(page).scripts
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    equal = ("http-equiv", "Content-Security-Policy")
    (policy,) = [dict(attributes) for _, attributes in Parsed(page).tags if equal in attributes]
    assert policy["content"] == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"https?://(?!www\.w3\.org)|@import|url\((?!#)", page)


def test_every_file_is_there_and_none_knows_where_it_was_made(sweep: Path, built: dict[str, bytes]):
    assert built.keys() == {"report.html", "figure.png", "figure.svg", *TABLES}
    assert built["figure.png"].startswith(b"\x89PNG\r\n\x1a\n")
    for name, content in built.items():
        assert len(content) > 100, name
        assert str(sweep.parent).encode() not in content, name


def test_every_row_names_its_records_and_leads_to_them(sweep: Path, built: dict[str, bytes], page: str):
    ids = {path.name for path in sweep.iterdir() if path.is_dir()}
    titles = [dict(attributes).get("title") or "" for tag, attributes in Parsed(page).tags if tag == "tr"]
    assert set(re.findall(r"[0-9a-f]{16}", " ".join(titles))) == ids
    for run in ids:
        assert f'href="../runs/{run}/"' in page
        assert run.encode() in built["answer.csv"]


def test_numbers_on_the_page_are_those_of_the_tables(built: dict[str, bytes], page: str):
    rows = list(csv.DictReader(io.StringIO(built["answer.csv"].decode())))
    assert len(rows) == 6
    for row in rows:
        number = "∞" if row["past"] == "inf" else f"{float(row['past']):.3f}"
        assert f">{number}<small>" in page


def test_the_page_opens_with_the_answer_and_ends_with_the_machines(page: str):
    order = ['class="lead"', "<svg", "<table", *(f'id="{name}"' for name in ("protocol", "task-0", "method", "runs"))]
    places = [page.index(one) for one in (*order, 'id="machines"')]
    assert places == sorted(places)
    assert page.count("<title>RoPE. Length: median. 5: ") == 2, "under the pointer, in the wide and the narrow figure"
    text = " ".join(Parsed(page).text)
    for words in (
        "Five seeds, no tuning.",
        "Failed: 1 of 18 runs",
        "nan at step 160",
        "Nothing was skipped.",
    ):
        assert words in text


def test_the_answer_for_the_terminal_has_at_most_eight_variants(sweep: Path, tmp_path: Path):
    rows = answer(sweep).splitlines()
    assert [line.split("  ")[0] for line in (rows[0], *rows[2:5])] == ["encoding", "Learned", "RoPE", "ALiBi"]
    names = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5", "kerple", "fire", "cope", "sandwich")
    write_sweep(tmp_path, ("text",), names, 1)
    found = answer(tmp_path).splitlines()
    assert found[10] == "and 2 more"


def test_a_report_inside_the_sweep_does_not_report_itself(tmp_path: Path):
    run = one_run(tmp_path / "runs")
    (tmp_path / "runs" / "stray.txt").write_text("")
    first, again = ({path: path.read_bytes() for path in build(tmp_path / "runs")} for _ in range(2))
    assert again == first
    page = first[tmp_path / "runs" / "report" / "report.html"].decode()
    assert f'href="../{run}/"' in page
    assert (page.count("stray.txt"), page.count("is not part of a sweep")) == (1, 1)


@pytest.mark.parametrize(
    ("folder", "out", "message"),
    [
        ("one", "one", "among its records"),
        ("one", "file", "cannot be written to"),
        ("one", None, "cannot be written to .*report is a link"),
    ],
)
def test_what_cannot_be_reported_is_a_clear_error_and_writes_nothing(
    tmp_path: Path, folder: str, out: str | None, message: str
):
    (tmp_path / "file").write_text("")
    one_run(tmp_path / "one")
    (tmp_path / "one" / "report").symlink_to(tmp_path / "victim")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=message):
        build(tmp_path / folder, out and tmp_path / out)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_report_is_written_through_no_link_and_what_others_put_there_stays(tmp_path: Path):
    one_run(tmp_path / "one")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "one" / "report").mkdir()
    (tmp_path / "one" / "report" / "notes.txt").write_text("mine")
    (tmp_path / "one" / "report" / "runs.csv").symlink_to(tmp_path / "victim")
    names = {path.name for path in build(tmp_path / "one")}
    assert {path.name for path in (tmp_path / "one" / "report").iterdir()} == {*names, "notes.txt"}
    assert (tmp_path / "victim").read_text() == "precious"


def test_odd_tasks_have_a_report(tmp_path: Path):
    """One run at one length, many lengths, infinite losses, no training length, all but one failed: a task for each."""
    cases = {"one run": [40], "many lengths": range(1, 200, 3)}
    for case in (*cases, "infinite", "no training length", "failed"):
        trained = {} if case == "no training length" else {"length_min": 1, "length_max": 20}
        for seed in range(1 if case == "one run" else 3):
            fields = config("copy", "rope", seed, task={"name": case, "options": {}} | trained)
            common = {"run": run_id(fields), "step": 1, "metric": "loss", "split": "test"}
            value = lambda n, case=case, seed=seed: None if case == "infinite" else 1.0 + n + seed
            rows = [common | {"length": n, "value": value(n)} for n in cases.get(case, [0, 10, 20, 40, 80])]
            bad = case == "failed" and seed
            write_run(tmp_path / "sweep", fields, "failed" if bad else "done", results=lines(rows), metrics="")
    assert len(build(tmp_path / "sweep", tmp_path / "out")) == 7


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
