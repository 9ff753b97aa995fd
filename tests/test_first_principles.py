"""The tutorial on first principles: its code prints what stands below it, and its numbers are those of calculations by hand."""

import contextlib
import io
import math
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[1] / "docs/tutorials/first_principles.md"
B, C = math.exp(1 / math.sqrt(2)), math.exp(2 / math.sqrt(2))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Runs every block of the page; returns all names, and of each block what it printed and what stands below it."""
    folder, names, printed = tmp_path_factory.mktemp("page"), {}, []
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with np.printoptions():
        for i, (code, below) in enumerate(blocks):
            (folder / f"block_{i}.py").write_text(code, encoding="utf-8")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                names |= runpy.run_path(str(folder / f"block_{i}.py"), init_globals=names)
            printed.append((out.getvalue(), below))
    return names, printed


def test_every_block_prints_what_stands_below_it(page):
    assert len(page[1]) == PAGE.read_text(encoding="utf-8").count("```python")
    for printed, below in page[1]:
        assert printed.split() == below.split()


def test_numbers_by_hand(page):
    """The projection, attention, masks, heads, and positions, in closed form or as published."""
    found = page[0]
    close = lambda name, expected, atol=1e-6: np.testing.assert_allclose(found[name], expected, atol=atol, err_msg=name)
    close("terms", [[0.2, 0.1], [0.2, -0.15], [-0.03, -0.15], [-0.16, 0.24]])
    close("query", [0.21, 0.04])
    weights = np.array([[1, B, B], [B, 1, B], [B, B, C]]) / np.array([[1 + 2 * B], [1 + 2 * B], [2 * B + C]])
    close("weights", weights)
    close("weights", [[0.198, 0.401, 0.401], [0.401, 0.198, 0.401], [0.248, 0.248, 0.503]], 7e-4)
    close("out", weights @ [[1, 2], [3, 4], [5, 6]])
    close("seen", [[1, 0, 0], [B / (1 + B), 1 / (1 + B), 0], weights[2]])
    close("hidden", 0, 0)
    close("sines", [[f(p * w) for w in (1, 0.01) for f in (math.sin, math.cos)] for p in (0, 1, 3)])
    close("near", np.exp(-0.5 * np.arange(5, -1, -1)) / np.exp(-0.5 * np.arange(6)).sum())
    close("normed", (np.arange(1, 5) - 2.5) / math.sqrt(1.25), 2e-6)
    # x W_1 + b_1 = (0, -1.5, 1, 1); two survive: (1 + 0.5 + 0.1, 1 - 0.5 - 0.1).
    close("forward", [1.6, 0.4])
    # A product of sinusoids is a sum of cosines of the distance: sin a sin b + cos a cos b = cos(a - b).
    waves = 10_000.0 ** (-np.arange(8) / 8)
    products = [found["wide"][p] @ found["wide"][p + 3] for p in range(197)]
    np.testing.assert_allclose(products, np.cos(3 * waves).sum(), atol=1e-5)


def test_heads_by_hand(page):
    looks, match, rest = page[0]["looks"], B / (B + 3), 1 / (B + 3)
    repelled = (1 / B) / (1 / B + 3)
    np.testing.assert_allclose([match, repelled], [0.4034, 0.1412], atol=5e-5)
    np.testing.assert_allclose(looks["identity"][0, 1], [rest, match, rest, rest], atol=1e-6)
    np.testing.assert_allclose(looks["swapped"][0, 1], [match, rest, rest, rest], atol=1e-6)
    np.testing.assert_allclose(looks["negated"][1, 0, 0], repelled, atol=1e-6)
    np.testing.assert_allclose(looks["identity"][0, 0], 0.25, atol=1e-6)
    for tau, weight in page[0]["match"].items():
        assert weight == pytest.approx(1 / (1 + 3 * math.exp(-1 / tau)), abs=1e-6)


def test_the_scale_factor(page):
    # Of d products of variance 1 and fourth moment 9 the square has the variance 2 d^2 + 6 d; 1,024 products are averaged.
    for width, (variance, *_) in page[0]["spread"].items():
        assert abs(variance - width) < 4 * math.sqrt((2 * width**2 + 6 * width) / 1024)
    assert f"{math.exp(16):,.0f}" in PAGE.read_text(encoding="utf-8")


def test_parameters_by_hand(page):
    assert set(page[0]["counts"].values()) == {4 * 512**2}
    parts, ffn = page[0]["parts"], 2 * 512 * 2048 + 2048 + 512
    assert (parts["attention"], parts["feed-forward"]) == (4 * 512**2, ffn)
    assert parts["encoder block"] == 4 * 512**2 + ffn + 2 * 1024
    assert parts["decoder block"] == 8 * 512**2 + ffn + 3 * 1024
    assert parts["all"] == 6 * (parts["encoder block"] + parts["decoder block"]) + 37_000 * 512


def test_importance_of_heads_by_hand(page):
    """The weights of the four heads, the loss and the derivative by each gate, written out."""
    sentence, names = page[0]["sentence"], page[0]["names"]
    matches = [
        lambda i, j: j == i - 1,
        lambda i, j: j == i + 1,
        lambda i, j: sentence[j] == ".",
        lambda i, j: sentence[i] == sentence[j],
    ]
    scores = np.array([[[math.exp(4.0 * match(i, j)) for j in range(8)] for i in range(8)] for match in matches])
    words = np.eye(8)[[names.index(word) for word in sentence]]
    read = np.array([3.0, 0.4, 0.2, 0.6])[:, None, None]
    said = (read * (scores / scores.sum(-1, keepdims=True)) @ words)[:, 1:]
    p = np.exp(said.sum(0)) / np.exp(said.sum(0)).sum(-1, keepdims=True)
    by_gate = ((p - words[:-1])[None] * said).sum(-1)
    np.testing.assert_allclose(page[0]["importance"], np.abs(by_gate).mean(1), atol=1e-6)
    for name, gates in page[0]["gates"].items():
        left = np.einsum("n,ntw->tw", gates, said)
        loss, right = page[0]["pruned"][name]
        np.testing.assert_allclose(loss, np.log(np.exp(left).sum(-1)) - left[words[:-1] == 1], atol=2e-6)
        assert right == pytest.approx((left.argmax(-1) == words[:-1].argmax(-1)).mean())
