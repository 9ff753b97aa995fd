"""The page as text: its policy, that nothing breaks out of it, and that nothing on it leads elsewhere."""

import base64
import hashlib
import html
import json
import re

from attnjax.explore.contents import Explored
from attnjax.explore.page import SCRIPTS, page, read, script
from attnjax.records.values import printable
from tests.browser import Parsed
from tests.explore.synthetic import explored, grids
from tests.report.payloads import PAYLOADS

HARMLESS = tuple(f"harmless{i:02d}" for i in range(len(PAYLOADS)))


def hostile(words: tuple[str, ...]) -> tuple[Explored, ...]:
    """A run for each word, with the word wherever a run has text."""
    return tuple(
        explored(
            words,
            name=word,
            about=((word, word),),
            config=json.dumps({word: word}),
            grids=grids(words=(word, "entropy")),
            scored=word,
        )
        for word in words
    )


def test_no_string_becomes_markup():
    """Hostile words must give exactly the same tags with the same attributes as harmless ones."""
    assert len(set(PAYLOADS)) == 40
    assert Parsed(page(hostile(PAYLOADS))).skeleton == Parsed(page(hostile(HARMLESS))).skeleton


def test_the_data_block_holds_every_string_and_cannot_be_left():
    text = page(hostile(PAYLOADS))
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not re.search(r"[<>&\u2028\u2029]", block)
    found = json.loads(block)
    words = [printable(word) for word in PAYLOADS]
    assert [run["name"] for run in found["runs"]] == words
    assert all(run["texts"][0]["tokens"] == words for run in found["runs"])
    assert len(Parsed(text).scripts) == 3, "the style, the data and the script"


def test_the_policy_allows_this_style_and_this_script_alone():
    text = page((explored(),))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (code,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (style, code)]
    assert html.unescape(policy) == (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def test_nothing_runs_inline_and_nothing_has_an_address_elsewhere():
    text = page((explored(), explored(seed=1)))
    for tag, attributes in Parsed(text).tags:
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "src", "srcdoc", "action", "formaction"), (tag, name)
            assert name != "href" or (value or "").startswith("#"), (tag, value)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text.replace("// ", ""))


def test_every_file_of_the_script_is_on_the_page_once():
    text = page()
    assert all(text.count(read(f"{name}.js")) == 1 for name in SCRIPTS)
    # A name that two files declared would be a syntax error of the whole script.
    declared = re.findall(r"^(?:async )?(?:function|const|let) (\w+)", script(), re.MULTILINE)
    assert len(declared) == len(set(declared)) > 40


def test_without_runs_there_is_the_notebook_alone():
    text = page()
    assert 'id="notebook"' in text
    assert 'id="runs"' not in text
    assert '<script type="application/json" id="data">{"runs":[],"first":{"layer":0,"head":0}}</script>' in text
