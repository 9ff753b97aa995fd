"""The page as text: nothing breaks out of it or leads elsewhere, weights come back; the command and its mistakes."""

import base64
import hashlib
import html
import json
import re

import numpy as np
import pytest

from attnjax.cli import main
from attnjax.explore.contents import ERROR, pack
from attnjax.explore.page import page
from attnjax.records.values import printable
from tests.browser import Parsed
from tests.explore.synthetic import HARMLESS, explored, hostile, random_weights
from tests.report.payloads import PAYLOADS


def test_no_string_becomes_markup_and_none_leaves_the_data():
    """Hostile words must give exactly the same tags with the same attributes as harmless ones."""
    text = page(hostile(PAYLOADS))
    assert Parsed(text).skeleton == Parsed(page(hostile(HARMLESS))).skeleton
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not re.search(r"[<>&\u2028\u2029]", block)
    found = json.loads(block)
    words = [printable(word) for word in PAYLOADS]
    assert [run["name"] for run in found["runs"]] == words
    assert all(run["texts"][0]["tokens"] == words for run in found["runs"])
    assert len(Parsed(text).scripts) == 3, "the style, the data and the script"


def test_the_policy_allows_this_style_and_this_script_alone_and_nothing_has_an_address_elsewhere():
    text = page((explored(), explored(seed=1)))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (code,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in (style, code)]
    assert html.unescape(policy) == (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )
    for tag, attributes in Parsed(text).tags:
        for name, value in attributes:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "src", "srcdoc", "action", "formaction"), (tag, name)
            assert name != "href" or (value or "").startswith("#"), (tag, value)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text.replace("// ", ""))


@pytest.mark.parametrize("causal", [True, False])
def test_every_weight_comes_back_within_the_error(causal):
    weights = random_weights((3, 2, 17), causal=causal)
    whole = iter(np.frombuffer(base64.b64decode(pack(weights, causal=causal)), "<u2"))
    errors = [
        abs(next(whole) / 65535 - map_[i, j])
        for map_ in weights.reshape(6, 17, 17)
        for i in range(17)
        for j in range(i + 1 if causal else 17)
    ]
    assert next(whole, None) is None
    assert 0.5 * ERROR < max(errors) <= ERROR * (1 + 1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.01, 1.1])
def test_what_are_no_weights_is_refused(bad):
    weights = random_weights((1, 1, 3))
    weights[0, 0, 2, 1] = bad
    with pytest.raises(ValueError, match=r"weights .*0 .. 1"):
        pack(weights, causal=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("not a folder")
    return tmp_path


def test_without_a_run_there_is_the_notebook_alone(folder):
    assert main(["explore"]) == 0
    text = (folder / "explore.html").read_text(encoding="utf-8")
    assert text == page()
    assert 'id="notebook"' in text
    assert 'id="runs"' not in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["nowhere"], "nowhere"),
        (["empty"], "config.json"),
        (["empty", "empty", "empty"], "at most 2 runs, got 3"),
        (["--head", "1"], "folder of a run"),
        (["--out", "empty"], "empty"),
        (["--out", "file/explore.html"], "File exists: 'file'"),
    ],
)
def test_mistakes_are_one_line_and_2(command, message, folder, capsys):
    assert main(["explore", *command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnjax: error: ")
    assert message in error
    assert "Traceback" not in error
