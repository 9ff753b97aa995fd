"""Runs that nobody trained, and pages of them in a browser."""

import base64
import hashlib
import html
import json
import pathlib
import re
from typing import Any

import numpy as np

from attnjax.explore.contents import Explored, HeadGrid, Shown, pack
from tests.browser import visit
from tests.report.payloads import PAYLOADS

PASSAGE = ("The", "cat", "sat", "down", "again")
HARMLESS = tuple(f"harmless{i:02d}" for i in range(len(PAYLOADS)))


def random_weights(shape: tuple[int, int, int], seed: int = 0, *, causal: bool = True) -> np.ndarray:
    """Attention weights [L, N, T, T] of random scores."""
    layers, heads, size = shape
    powers = np.exp(2 * np.random.default_rng(seed).normal(size=(layers, heads, size, size)))
    powers = np.tril(powers) if causal else powers
    return powers / powers.sum(-1, keepdims=True)


def explored(words: tuple[str, ...] = PASSAGE, *, name: str = "rope run", seed: int = 0, **fields: Any) -> Explored:
    """A run of two layers of two heads, with `words` as the tokens of its only text."""
    weights = random_weights((2, 2, len(words)), seed)
    given = {
        "about": (("task", "text"),),
        "config": "{}",
        "layers": 2,
        "heads": 2,
        "causal": True,
        "spaced": True,
        "texts": (Shown("a passage", words, pack(weights, causal=True)),),
    }
    return Explored(name=name, **{**given, **fields})


def grids(scale: float = 1.0, words: tuple[str, str] = ("induction", "entropy")) -> tuple[HeadGrid, ...]:
    """A share and a score that is none, of two layers of two heads; head 1 of layer 0 has the largest share and a star."""
    share, other = words
    marked = ((False, True), (False, False))
    plain = ((False, False), (False, False))
    return (
        HeadGrid(share, f"About {share}.", True, ((0.1, 0.8 * scale), (0.25, 0.0)), marked),
        HeadGrid(other, f"About {other}.", False, ((1.0, 2.0 * scale), (float("nan"), 0.5)), plain),
    )


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


def opened(text: str, folder: pathlib.Path, script: str = "") -> tuple[str, str]:
    """The document and the browser's network log after the page and then another script have run."""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        text = text.replace("script-src ", f"script-src 'sha256-{digest}' ")
        text = text.replace("</body>", f"<script>{script}</script></body>")
    (folder / "report.html").write_text(text, encoding="utf-8")
    return visit(folder)


TELL = """
const told = {};
const tell = () => { document.body.append(make("pre", { id: "told" }, JSON.stringify(told))); };
"""
"""Before a script that fills `told`; `tell()` ends it."""


def told(document: str) -> Any:
    """What a script told at its end."""
    (found,) = re.findall(r'<pre id="told">(.*?)</pre>', document, re.DOTALL)
    return json.loads(html.unescape(found))
