"""The page: everything on it is text, nothing is fetched, and it says what the records say."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from attnjax.records.values import printable
from attnjax.report.page import page
from attnjax.report.published import pairs, section
from attnjax.report.records import read
from attnjax.report.summarise import summarise
from attnjax.report.summary import Summary
from tests.browser import BROWSER, Parsed, visit
from tests.report.payloads import PAYLOADS
from tests.report.synthetic import canonical, config, lines, run_id, write_run, write_spec, write_sweep


def sweep_of(root: Path, words: tuple[str, ...]) -> None:
    """A sweep with a cell per word, and the word in every field that holds text."""
    configs = []
    for word in words:
        fields = config("copy", "rope", 0)
        fields["name"] = word
        fields["task"] = {"name": word, "options": {word: word}, "form": word, "length_min": 1, "length_max": 20}
        fields["model"] = {"layers": 2, "encoding": {"name": word, "options": {word: word}}, word: word}
        configs.append(fields)
        (
            root
            / f"junk {len(configs)} {word.replace('/', '|').replace(chr(0), '').encode('ascii', 'ignore').decode()}"[
                :200
            ]
        ).mkdir(parents=True)
    write_spec(root, configs, name=words[0], protocol="\n".join(words))
    for word, fields in zip(words, configs, strict=True):
        rows = [
            {"schema": 1, "run": run_id(fields), "step": 9, "metric": metric, "length": n, "value": 0.5, "split": split}
            for metric in ("exact_match", f"m {word}")
            for n, split in ((20, "train"), (40, "test"))
        ]
        write_run(
            root,
            fields,
            results=lines(rows) + canonical(word),
            metrics=lines([{"schema": 1, "step": step, "loss": 2.0 - step} for step in range(2)]),
            manifest=canonical({"schema": 1, "device": word, word: word, "nested": {word: [word]}}),
            status=canonical({"schema": 1, "state": "done", "reason": word}),
        )


def page_of(summary: Summary, links: bool = True) -> str:
    found = {run.id: f"../{run.id}/" for run in summary.sweep.runs} if links else {}
    return page(summary, found, section(pairs(summary)))


class Made(NamedTuple):
    """A sweep, its numbers and its page."""

    root: Path
    summary: Summary
    page: str


def made(root: Path) -> Made:
    summary = summarise(read(root))
    return Made(root, summary, page_of(summary))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("hostile")
    sweep_of(root, PAYLOADS)
    return made(root).page


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("sound")
    write_sweep(root, ("copy", "text"), ("rope", "learned", "alibi"), 3)
    return made(root)


def test_there_are_forty_payloads():
    assert len(set(PAYLOADS)) == 40


def test_no_string_becomes_markup(hostile: str, tmp_path: Path):
    """The same sweep with harmless words must give exactly the same tags with the same attributes."""
    sweep_of(tmp_path, tuple(f"harmless{i:02d}" for i in range(len(PAYLOADS))))
    assert Parsed(hostile).skeleton == Parsed(made(tmp_path).page).skeleton


def test_every_string_is_shown_as_text(hostile: str):
    text = " ".join(" ".join(Parsed(hostile).text).split())
    for payload in PAYLOADS:
        shown = " ".join(printable(payload.encode("utf-16", "surrogatepass").decode("utf-16", "replace")).split())
        assert shown in text or " ".join(printable(payload).split()) in text, payload


def test_no_attribute_runs_or_fetches(hostile: str):
    for tag, attributes in Parsed(hostile).tags:
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "src", "srcdoc", "action", "formaction"), (tag, name)
            if name in ("href", "xlink:href"):
                assert value is not None
                assert re.fullmatch(r"#[a-z0-9-]+|\.\./[0-9a-f]{16}/", value), value


def test_the_data_block_cannot_be_left(hostile: str):
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', hostile, re.DOTALL)
    assert block is not None
    assert not re.search(r"[<>&\u2028\u2029]", block[1])
    charts = json.loads(block[1])
    assert len(charts) == len(PAYLOADS) * 3
    assert len(Parsed(hostile).scripts) == 3, "the style, the data and the script"


def test_the_policy_allows_this_style_and_this_script_alone(sound: Made):
    parsed = Parsed(sound.page)
    (policy,) = [
        dict(attributes)["content"]
        for tag, attributes in parsed.tags
        if ("http-equiv", "Content-Security-Policy") in attributes
    ]
    style, _, script = parsed.scripts
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_nothing_on_the_page_has_an_address_elsewhere(sound: Made):
    assert not re.search(r"https?:|//[a-z]|@import|url\(", sound.page.replace("// ", ""))


def test_every_number_of_a_table_names_its_records(sound: Made):
    root, _, text = sound
    ids = {path.name for path in root.iterdir() if path.is_dir()}
    titles = [dict(attributes).get("title") or "" for tag, attributes in Parsed(text).tags if tag in ("td", "tr")]
    named = [set(re.findall(r"[0-9a-f]{16}", title)) for title in titles if title.startswith("made from")]
    assert set.union(*named) == ids
    assert all(len(found) == 3 for found in named)
    for run in ids:
        assert f'href="../{run}/"' in text


def test_numbers_on_the_page_are_those_of_the_summary(sound: Made):
    summary = sound.summary
    for task in summary.tasks:
        for rows in task.rows.values():
            for row in rows:
                assert row.past is not None
                ends = f"<small>(range {row.past.low:.3f} to {row.past.high:.3f})</small>"
                assert ends.replace("inf", "∞") in sound.page


def test_the_page_says_what_failed_and_what_was_skipped(tmp_path: Path):
    write_sweep(tmp_path, ("copy",), ("learned",), 2)
    (tmp_path / "stray.txt").write_text("")
    text = " ".join(Parsed(made(tmp_path).page).text)
    for words in (
        "Failed: 1 of 2 runs",
        "nan at step 160",
        "stray.txt",
        "is not part of a sweep",
        "Five seeds, no tuning.",
    ):
        assert words in text


def test_without_links_the_ids_stay(sound: Made):
    text = page_of(sound.summary, links=False)
    assert 'href="../' not in text
    assert all(path.name in text for path in sound.root.iterdir() if path.is_dir())


def test_charts_are_reachable_by_keyboard_and_named(sound: Made):
    parsed = Parsed(sound.page)
    drawings = [dict(attributes) for tag, attributes in parsed.tags if tag == "svg" and ("role", "img") in attributes]
    assert len(drawings) == 3 + 2 + 2
    assert all(attributes["tabindex"] == "0" and attributes["aria-label"] for attributes in drawings)
    regions = [dict(attributes) for tag, attributes in parsed.tags if ("class", "scroll") in attributes]
    assert all(attributes["tabindex"] == "0" and attributes["aria-label"] for attributes in regions)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_in_a_browser_nothing_runs_and_nothing_is_fetched(hostile: str, tmp_path: Path):
    (tmp_path / "report.html").write_text(hostile, encoding="utf-8")
    dom, log = visit(tmp_path)
    assert "data-pwned" not in dom.partition(">")[0] + dom.partition("<html")[2].partition(">")[0]
    assert "report.html" in log
    assert "example.invalid" not in log


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_in_a_browser_the_script_runs_and_shows_other_values(sound: Made, tmp_path: Path):
    """A key press on the first chart, made by a second script that a changed policy lets in."""
    press = "for (const key of ['Home', 'ArrowRight']) document.querySelector('svg[role=img]').dispatchEvent("
    press += "new KeyboardEvent('keydown', {key}));"
    digest = base64.b64encode(hashlib.sha256(press.encode()).digest()).decode()
    text = sound.page.replace("script-src ", f"script-src 'sha256-{digest}' ").replace(
        "</body>", f"<script>{press}</script></body>"
    )
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    dom, _ = visit(tmp_path)
    (shown,) = re.findall(r"<output[^>]*>([^<]*)</output>", dom)[:1]
    assert shown == "10", "the second of the lengths 5, 10, 20 ..."
    curve = sound.summary.tasks[0].rows["exact_match"][0].curve
    assert f"{curve.value[1]:.3f} (range {curve.low[1]:.3f} to {curve.high[1]:.3f}), 3 runs" in dom
