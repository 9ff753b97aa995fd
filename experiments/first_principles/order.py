"""Order: without positions attention does not see it; a permutation of the words permutes rows and columns, no more.

    softmax((P x)(P x)^T / sqrt(d)) = P softmax(x x^T / sqrt(d)) P^T        for every permutation P

An encoding breaks this, and so does a causal mask alone: NoPE is not permutation equivariant in a decoder.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.5; Haviv et al. 2022 (arXiv:2203.16634) for the mask.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

import attnjax as aj
from attnjax.report.drawing import new_figure
from attnjax.report.formatting import decimal, markdown_table
from experiments.first_principles.arrays import plain
from experiments.first_principles.drawing import DIVERGING, WIDTH, heat

TITLE = "Order"
CAPTION = (
    "Weights of a sentence (left) and of its words in another order (middle). Put back into the first order, nothing has "
    "changed without positions (right, above); with sinusoidal positions it has (below)."
)

PAIRS = (
    ("The cat sat down", "sat The down cat"),
    ("dog bites man", "man bites dog"),
    ("Alice thanked Bob", "Bob thanked Alice"),
)
CASES = (
    ("none", aj.NoPE(), False),
    ("sinusoidal", aj.Sinusoidal(), False),
    ("rope", aj.RoPE(), False),
    ("causal mask alone", aj.NoPE(), True),
)
CHANNELS = 4


def words() -> dict[str, np.ndarray]:
    """A vector of normal numbers for every word, the same in every sentence."""
    names = list(dict.fromkeys(" ".join(sentence for pair in PAIRS for sentence in pair).split()))
    return dict(zip(names, np.random.default_rng(0).normal(size=(len(names), CHANNELS)), strict=True))


def matrix(sentence: str, encoding: aj.PositionEncoding, causal: bool = False) -> np.ndarray:
    """The attention matrix of a sentence whose words are queries and keys at once."""
    table = words()
    x = jnp.asarray(np.stack([table[word] for word in sentence.split()]), jnp.float32)[None]
    x = aj.embed(encoding, None, x, np.arange(x.shape[1]))[:, :, None]
    # What acts on the embeddings has done so.
    encoding = aj.NoPE() if encoding.has("embed") else encoding
    return np.asarray(aj.attention_weights(x, x, encoding=encoding, mask=aj.Mask(causal=causal))[0, 0])


def put_back(there: np.ndarray, sentence: str, other: str) -> np.ndarray:
    """The matrix of the other sentence with its rows and columns in the order of the first."""
    order = [other.split().index(word) for word in sentence.split()]
    return there[np.ix_(order, order)]


def numbers() -> dict[str, Any]:
    """Both matrices and their difference for the first pair, and the largest difference for all."""
    examples = {}
    for name, encoding, causal in CASES[:2]:
        here, there = (matrix(sentence, encoding, causal) for sentence in PAIRS[0])
        change = put_back(there, *PAIRS[0]) - here
        examples[name] = {"here": plain(here), "there": plain(there), "change": plain(change)}
    changes = {name: [largest_change(pair, encoding, causal) for pair in PAIRS] for name, encoding, causal in CASES}
    return {"pairs": [list(pair) for pair in PAIRS], "examples": examples, "changes": changes}


def largest_change(pair: tuple[str, str], encoding: aj.PositionEncoding, causal: bool) -> float:
    """The largest change of a weight that is more than its row and column moving."""
    here, there = (matrix(sentence, encoding, causal) for sentence in pair)
    return float(np.abs(put_back(there, *pair) - here).max())


def text(numbers: dict[str, Any]) -> str:
    """The largest changes, by sentence."""
    names = list(numbers["changes"])
    rows = []
    for place, (sentence, other) in enumerate(numbers["pairs"]):
        rows.append([f"{sentence} / {other}", *(decimal(numbers["changes"][name][place], 3) for name in names)])
    header = ["words in another order", *(("no positions" if name == "none" else name) for name in names)]
    return "\n\n".join(
        [
            "Every word is one random vector, query and key at once. The largest change of a weight, once rows and columns "
            "are put back into the first order:",
            markdown_table(header, rows).rstrip(),
            'So without positions "dog bites man" and "man bites dog" are the same set of words to attention. An encoding '
            "tells them apart; and so does a causal mask without any encoding, since the first word sees itself alone.",
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """Two rows of three matrices."""
    figure, axes = new_figure(WIDTH, 4.9, 2, 3)
    here, there = (sentence.split() for sentence in numbers["pairs"][0])
    for line, name in enumerate(numbers["examples"]):
        found, label = numbers["examples"][name], "no positions" if name == "none" else name
        heat(axes[3 * line], found["here"], here, here, title=f"{label}: one order", limits=(0, 0.8))
        heat(axes[3 * line + 1], found["there"], there, there, title="another order", limits=(0, 0.8))
        last = axes[3 * line + 2]
        heat(last, found["change"], here, here, title="put back: change", limits=(-0.5, 0.5), colors=DIVERGING)
    return figure
