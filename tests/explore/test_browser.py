"""The page in a browser: nothing runs that should not, nothing is fetched, and everything answers the keyboard."""

import re

import numpy as np
import pytest

from attnjax.explore.page import page, script_json
from attnjax.records.values import printable
from tests.browser import BROWSER, Parsed
from tests.explore.synthetic import HARMLESS, PASSAGE, TELL, explored, grids, hostile, opened, random_weights, told
from tests.report.payloads import PAYLOADS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium, and run this again"),
]

TYPE = """
const type = (input, text) => { input.value = text; input.dispatchEvent(new Event("input", { bubbles: true })); };
const pick = (select, value) => { select.value = value; select.dispatchEvent(new Event("change", { bubbles: true })); };
const press = (element, key) => element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const words = () => [...document.querySelectorAll(".card input")].map((input) => input.value).join(" ");
const named = (label) => document.querySelector(`[aria-label="${label}"]`);
const pushed = (text) => [...document.querySelectorAll("button")].find((one) => one.textContent === text).click();
const sentence = () => document.querySelector(".finding").textContent;
"""


def test_hostile_strings_are_text_and_make_no_request(tmp_path):
    """In every field of two runs and typed as tokens, one after another: the same elements as with harmless words."""
    documents = []
    for name, words in (("hostile", PAYLOADS), ("harmless", HARMLESS)):
        folder = tmp_path / name
        folder.mkdir()
        runs = hostile(words)[:2]
        typing = f"const typed = {script_json([printable(word) for word in words])};"
        script = TYPE + typing + "for (const text of typed) type(document.querySelector('.card input'), text);"
        document, log = opened(page(runs), folder, script)
        assert "report.html" in log
        assert "example.invalid" not in log
        documents.append(Parsed(document))
    bad, good = documents
    assert not any("data-pwned" in dict(attributes) for _, attributes in bad.tags)
    assert bad.skeleton == good.skeleton
    shown = "".join(bad.text)
    for payload in PAYLOADS[:-1]:
        assert payload in shown, payload


def test_the_notebook_answers_keys_controls_and_words(tmp_path):
    script = (
        TELL
        + TYPE
        + """
told.words = [words()];
const right = named("Move The to the right");
right.focus();
right.click();
told.words.push(words());
told.focused = document.activeElement === right;
told.status = document.querySelector("[role=status]").textContent;
told.blind = sentence();
const [encoding] = document.querySelectorAll("#notebook select");
pick(encoding, "rope");
told.rope = sentence();
named("Move The to the left").click();
told.words.push(words());
pick(encoding, "none");
const cells = () => [...document.querySelectorAll(".matrix")].map((one) => [one.querySelector("figcaption").textContent,
  [...one.querySelectorAll("td")].map((cell) => cell.textContent)]);
told.two = cells();
pushed("one head of 4");
told.one = cells();
pushed("head 2 flipped");
told.flip = cells();
type(document.querySelectorAll("input[type=range]")[0], "1");
told.hot = cells();
type(document.querySelectorAll(".card input")[1], "dog");
type(document.querySelectorAll(".card input")[2], "dog");
told.same = cells()[0];
pushed("Add a token");
told.words.push(words());
tell();
"""
    )
    found = told(opened(page(), tmp_path, script)[0])
    assert found["words"] == [
        "The cat sat down",
        "cat The sat down",
        "The cat sat down",
        "The dog dog down cat",
    ]
    assert found["focused"]
    assert found["status"] == "The is now token 2 of 4."
    assert found["blind"].endswith("every weight is the same: attention does not see the order.")
    assert re.search(r"weights differ by up to 0\.\d{3}: attention sees the order", found["rope"])
    assert found["two"][3] == [
        "Head 1: weights",
        ["0.25"] * 4 + "0.20 0.40 0.20 0.20 0.20 0.20 0.40 0.20".split() + ["0.25"] * 4,
    ]
    assert len(found["two"]) == len(found["one"]) + 1
    # One head of four channels at tau = 2: e^0.5 / (e^0.5 + 3) = 0.3547.
    assert found["one"][3][1][:4] == "0.35 0.22 0.22 0.22".split()
    # The and down repel themselves: e^-0.5 / (e^-0.5 + 3) = 0.1682.
    assert found["flip"][3][1][:4] == "0.17 0.28 0.28 0.28".split()
    # At tau = 10: e^-0.1 / (e^-0.1 + 3) = 0.2317.
    assert found["hot"][3][1][:4] == "0.23 0.26 0.26 0.26".split()
    rows = found["same"][1]
    assert rows[4:8] == rows[8:12] != rows[:4]


def test_maps_show_the_weights_of_both_runs_and_follow_the_keys(tmp_path):
    runs = (explored(name="first"), explored(name="second", seed=1))
    script = (
        TELL
        + TYPE
        + """
const outputs = () => [...document.querySelectorAll(".readout")].map((one) => one.textContent);
const [map] = document.querySelectorAll("canvas.map");
const selects = [...document.querySelectorAll(".panel:first-child select")];
told.start = outputs();
press(map, "ArrowUp");
press(map, "ArrowRight");
told.moved = outputs();
pick(selects[1], "1");
pick(selects[2], "1");
told.head = outputs();
press(map, "ArrowRight");
press(map, "ArrowRight");
press(map, "ArrowRight");
told.hidden = outputs();
told.query = [...document.querySelectorAll(".strip .query")].map((one) => one.textContent);
document.querySelector("#runs input[type=checkbox]").click();
press(map, "Home");
told.apart = outputs();
told.pressed = [...document.querySelectorAll(".heads button")].filter((one) => one.getAttribute("aria-pressed") === "true")
  .map((one) => one.title);
document.querySelector(".heads button").click();
told.back = [selects[1].value, selects[2].value, document.activeElement.title];
tell();
"""
    )
    found = told(opened(page(runs, layer=0, head=1), tmp_path, script)[0])
    first, second = (np.rint(65535 * random_weights((2, 2, 5), seed)) / 65535 for seed in (0, 1))

    def said(layer, head, i, j, hidden=""):
        pairs = (first[layer, head, i, j], second[layer, head, i, j])
        words = f"“{PASSAGE[i]}” at {i} attends to “{PASSAGE[j]}” at {j}{hidden}"
        return [f"{words}: {weight:.4f}" for weight in pairs]

    assert found["start"] == said(0, 1, 4, 0)
    assert found["moved"] == said(0, 1, 3, 1)
    assert found["head"] == said(1, 1, 3, 1)
    assert found["hidden"] == said(1, 1, 3, 4, ", which it cannot see")
    assert found["query"] == ["down", "down"]
    assert found["apart"] == [said(1, 1, 3, 0)[0], found["hidden"][1]]
    assert found["pressed"] == ["Layer 1, head 1"] * 2
    assert found["back"] == ["0", "0", "Layer 0, head 0"]


def test_the_grid_of_scores_opens_heads_and_answers_the_keys(tmp_path):
    """Of two runs: the menu and the chosen head are shared, and a score that is no share is shaded by the larger run's."""
    runs = (
        explored(name="first", grids=grids(), scored="Means over 9."),
        explored(name="second", seed=1, grids=grids(0.5), scored="Means over 9."),
    )
    script = (
        TELL
        + TYPE
        + """
const panels = [...document.querySelectorAll(".panel")];
const selects = panels.map((one) => [...one.querySelectorAll("select")]);
const cells = (n) => [...panels[n].querySelectorAll(".scores button")];
const texts = () => panels.map((_, n) => cells(n).map((one) => one.textContent));
const shades = () => panels.map((_, n) => cells(n).map((one) => one.parentElement.style.getPropertyValue("--share")));
const pressed = () => panels.map((_, n) => cells(n).filter((one) => one.getAttribute("aria-pressed") === "true")
  .map((one) => one.getAttribute("aria-label")));
told.start = [texts(), shades(), pressed(), selects[0][0].value, panels[0].querySelector(".scroll + p").textContent];
cells(0)[3].focus();
cells(0)[3].click();
told.opened = [pressed(), selects.map((one) => [one[2].value, one[3].value]), document.activeElement.title];
pick(selects[0][0], "entropy");
told.other = [texts(), shades(), selects[1][0].value];
tell();
"""
    )
    found = told(opened(page(runs), tmp_path, script)[0])
    texts, shades, pressed, name, about = found["start"]
    assert texts == [["0.100", "0.800★", "0.250", "0.000"], ["0.100", "0.400★", "0.250", "0.000"]]
    assert shades == [["10.0%", "80.0%", "25.0%", "0.0%"], ["10.0%", "40.0%", "25.0%", "0.0%"]]
    assert pressed == [["Layer 0, head 0: 0.100"]] * 2
    assert (name, about) == ("induction", "About induction. Means over 9.")
    assert found["opened"] == [[["Layer 1, head 1: 0.000"]] * 2, [["1", "1"]] * 2, "Layer 1, head 1: 0.000"]
    texts, shades, name = found["other"]
    assert texts == [["1.000", "2.000", "\u2013", "0.500"], ["1.000", "1.000", "\u2013", "0.500"]]
    assert shades == [["50.0%", "100.0%", "0.0%", "25.0%"], ["50.0%", "50.0%", "0.0%", "25.0%"]]
    assert name == "entropy"
