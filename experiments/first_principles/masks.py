"""Masks: who may see whom, as minus infinity added to the scores before the softmax.

    causal: 0 for j <= i, -inf for j > i

e^(-inf) = 0, so a hidden key gets exactly nothing, and the others share what is left.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.3.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

import attnjax as aj
from attnjax.report.drawing import new_figure
from experiments.first_principles.arrays import one_head, plain
from experiments.first_principles.attention import WORDS, K, Q, V
from experiments.first_principles.drawing import WIDTH, heat
from experiments.first_principles.words import code, grid, row

TITLE = "Masks"
CAPTION = "Weights of six tokens with equal scores: what each mask lets a query (row) see, shared evenly."

SIX = 6
SEGMENTS, VALID = np.array([0, 0, 0, 1, 1, 1]), np.array([True] * 4 + [False] * 2)
KINDS = (
    ("none", aj.Mask()),
    ("causal", aj.Mask(causal=True)),
    ("causal, window of 3", aj.Mask(causal=True, window=(2, 0))),
    ("two packed sequences", aj.Mask(q_segments=SEGMENTS, k_segments=SEGMENTS)),
    ("padding at the end", aj.Mask(k_valid=VALID)),
)


def numbers() -> dict[str, Any]:
    """The causal mask on "I love math", what the kinds of masks let through, and a query that sees nothing."""
    q, k, v = (one_head(x) for x in (Q, K, V))
    zeros = jnp.zeros((1, SIX, 1, 2), jnp.float32)
    causal = aj.Mask(causal=True)
    nothing = aj.attend(q, k, v, mask=aj.Mask(k_valid=np.array([False] * 3)))
    return {
        "words": list(WORDS),
        "additive": [[0.0 if j <= i else None for j in range(3)] for i in range(3)],
        "weights": plain(aj.attention_weights(q, k, mask=causal)[0, 0]),
        "output": plain(aj.attend(q, k, v, mask=causal)[0, :, 0]),
        "kinds": {name: plain(aj.attention_weights(zeros, zeros, mask=mask)[0, 0]) for name, mask in KINDS},
        "sees_nothing": plain(nothing[0, 0, 0]),
    }


def text(numbers: dict[str, Any]) -> str:
    """The mask, the weights and the output of the three words."""
    words = numbers["words"]
    mask = ["  ".join("-inf" if value is None else "   0" for value in line) for line in numbers["additive"]]
    return "\n\n".join(
        [
            f'The causal mask of three tokens, and what it leaves of the weights of "{" ".join(words)}" above:',
            code("added to the scores", *mask, "", "weights", grid(numbers["weights"], words, words)),
            "The first row sees itself alone; the last row sees everything and is as it was. The outputs are "
            f"{', '.join(row(values) for values in numbers['output'])}. A query that sees no key at all has no weights to "
            f"share: its output is {row(numbers['sees_nothing'], 0)}, not the mean of everything.",
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """The five kinds."""
    figure, axes = new_figure(WIDTH, 2.2, 1, len(numbers["kinds"]))
    places = [str(i) for i in range(SIX)]
    for axis, (name, weights) in zip(axes, numbers["kinds"].items(), strict=True):
        heat(axis, weights, places if axis is axes[0] else (), places, digits=None, title="")
        axis.set_title(name, fontsize=9, weight="normal")
        axis.set_aspect("equal")
        for i, j in np.argwhere(np.array(weights) > 0):
            dark = weights[i][j] < 0.6
            shown = f"{weights[i][j]:.2f}".lstrip("0")
            shown = "1" if shown.startswith("1") else shown
            axis.text(j, i, shown, ha="center", va="center", fontsize=7.2, color="white" if dark else "black")
    axes[0].set_ylabel("query")
    figure.supxlabel("key", fontsize=10)
    return figure
