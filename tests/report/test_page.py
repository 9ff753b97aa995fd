"""The page and the tables: every string is text, nothing is fetched, and numbers are those of the records."""

import base64
import csv
import hashlib
import io
import re
from pathlib import Path

import pytest

from attnjax.records.values import printable
from attnjax.report import answer, build
from tests.browser import BROWSER, Parsed, visit
from tests.report.payloads import PAYLOADS
from tests.report.synthetic import canonical, config, lines, run_id, write_run, write_spec, write_sweep

pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")

WORDS = PAYLOADS[::2]
"""Half of them: drawing a panel for each takes a second."""


def sweep_of(root: Path, words: tuple[str, ...]) -> None:
    """A sweep with a cell per word, and the word in every field that holds text."""
    configs = []
    for word in words:
        fields = config("copy", "rope", 0)
        fields["name"] = word
        fields["task"] = {"name": word, "options": {word: word}, "form": word, "length_min": 1, "length_max": 20}
        fields["model"] = {"layers": 2, "encoding": {"name": word, "options": {word: word}}, word: word}
        configs.append(fields)
    write_spec(root, configs, name=words[0], protocol="\n".join(words))
    for word, fields in zip(words, configs, strict=True):
        common = {"run": run_id(fields), "step": 9, "value": 0.5}
        rows = [
            common | {"metric": metric, "length": n, "split": split}
            for metric in ("exact_match", f"m {word}")
            for n, split in ((20, "train"), (40, "test"))
        ]
        write_run(
            root,
            fields,
            results=lines(rows) + canonical(word),
            metrics="",
            manifest=canonical({"schema": 1, "device": word, word: word, "nested": {word: [word]}}),
            status=canonical({"schema": 1, "state": "done", "reason": word}),
        )


def files(root: Path, out: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in build(root, out) if path.suffix != ".png"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("hostile")
    sweep_of(root / "runs", WORDS)
    return files(root / "runs", root / "out")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    root = tmp_path_factory.mktemp("sound")
    write_sweep(root / "runs", ("copy", "text"), ("rope", "learned", "alibi"), 3)
    return root / "runs", files(root / "runs", root / "out")


def outside_figures(page: str) -> str:
    return re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)


def test_no_string_becomes_markup(hostile: dict[str, str], tmp_path: Path):
    """The same sweep with harmless words must give the same tags with the same attributes."""
    sweep_of(tmp_path / "runs", tuple(f"harmless{i:02d}" for i in range(len(WORDS))))
    harmless = files(tmp_path / "runs", tmp_path / "out")["report.html"]
    found, expected = (Parsed(outside_figures(page)).skeleton for page in (hostile["report.html"], harmless))
    assert found == expected


@pytest.mark.parametrize("payload", WORDS)
def test_every_string_is_shown_as_text(hostile: dict[str, str], payload: str):
    text = " ".join(" ".join(Parsed(hostile["report.html"]).text).split())
    shown = " ".join(printable(payload.encode("utf-16", "surrogatepass").decode("utf-16", "replace")).split())
    assert shown in text or " ".join(printable(payload).split()) in text


def test_no_attribute_runs_or_fetches(hostile: dict[str, str]):
    for tag, attributes in Parsed(hostile["report.html"]).tags:
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "src", "srcdoc", "action", "formaction"), (tag, name)
            if name in ("href", "xlink:href"):
                assert value is not None
                assert re.fullmatch(r"#[\w-]+|\.\./runs/[0-9a-f]{16}/", value), value


def test_hostile_names_break_no_table(hostile: dict[str, str]):
    for name, text in hostile.items():
        if name.endswith(".csv"):
            for row in csv.reader(io.StringIO(text)):
                assert not any(cell.startswith(("=", "+", "@")) for cell in row)
    _, *rows = [line for line in hostile["table.md"].splitlines() if line.startswith("|")]
    assert len(rows) > len(WORDS)
    assert not re.search(r"(?<!\\)<", hostile["table.md"])
    assert "<script" not in hostile["figure.svg"].lower()


def test_the_policy_allows_this_style_alone(sound):
    page = sound[1]["report.html"]
    (style,) = Parsed(page).scripts
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policies = [
        dict(attributes)
        for _, attributes in Parsed(page).tags
        if ("http-equiv", "Content-Security-Policy") in attributes
    ]
    expected = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert [one["content"] for one in policies] == [expected]
    assert not re.search(r"https?://(?!www\.w3\.org)|@import|url\((?!#)", page)


def test_every_row_names_its_records_and_leads_to_them(sound):
    root, made = sound
    ids = {path.name for path in root.iterdir() if path.is_dir()}
    titles = [
        dict(attributes).get("title") or "" for tag, attributes in Parsed(made["report.html"]).tags if tag == "tr"
    ]
    assert set(re.findall(r"[0-9a-f]{16}", " ".join(titles))) == ids
    for run in ids:
        assert f'href="../runs/{run}/"' in made["report.html"]
        assert run in made["answer.csv"]


def test_numbers_on_the_page_are_those_of_the_tables(sound):
    _, made = sound
    rows = list(csv.DictReader(io.StringIO(made["answer.csv"])))
    assert len(rows) == 6
    for row in rows:
        number = "∞" if row["past"] == "inf" else f"{float(row['past']):.3f}"
        assert f">{number}<small>" in made["report.html"]
        assert number in made["table.md"]


def test_the_page_opens_with_the_answer_and_ends_with_the_machines(sound):
    page = sound[1]["report.html"]
    order = [
        'class="lead"',
        "<svg",
        "<table",
        'id="protocol"',
        'id="task-0"',
        'id="method"',
        'id="runs"',
        'id="machines"',
    ]
    places = [page.index(one) for one in order]
    assert places == sorted(places)
    assert "Five seeds, no tuning." in page
    assert "<title>RoPE. Length: median. 5: " in page, "what a line shows under the pointer"


def test_the_page_says_what_failed_and_what_was_skipped(tmp_path: Path):
    write_sweep(tmp_path / "runs", ("copy",), ("learned",), 2)
    (tmp_path / "runs" / "stray.txt").write_text("")
    text = " ".join(Parsed(files(tmp_path / "runs", tmp_path / "out")["report.html"]).text)
    for words in ("Failed: 1 of 2 runs", "nan at step 160", "stray.txt", "is not part of a sweep"):
        assert words in text


def test_the_answer_for_the_terminal_is_short(sound):
    text = answer(sound[0])
    lines_ = text.splitlines()
    assert lines_[0].split("  ")[0] == "encoding"
    assert [line.split("  ")[0] for line in lines_[2:5]] == ["Learned", "RoPE", "ALiBi"]
    assert "\x1b" not in text


def test_the_answer_of_many_variants_ends_after_eight(tmp_path: Path):
    names = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5", "kerple", "fire", "cope", "sandwich")
    write_sweep(tmp_path, ("text",), names, 1)
    found = answer(tmp_path)
    assert "and 2 more" in found
    assert (
        sum(line.startswith(("NoPE", "Sinusoidal", "RoPE", "ALiBi", "T5", "Learned")) for line in found.splitlines())
        <= 8
    )


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_in_a_browser_nothing_runs_and_nothing_is_fetched(hostile: dict[str, str], tmp_path: Path):
    (tmp_path / "report.html").write_text(hostile["report.html"], encoding="utf-8")
    dom, log = visit(tmp_path)
    assert "data-pwned" not in dom.partition(">")[0] + dom.partition("<html")[2].partition(">")[0]
    assert "report.html" in log
    assert "example.invalid" not in log
