"""Scaled dot-product attention, step by step, for three words and d_k = 2.

    weights = softmax(Q K^T / sqrt(d_k)),    output = weights V

The exact values have a closed form: with b = e^(1/sqrt 2) and c = e^(2/sqrt 2) the rows of the weights are
(1, b, b)/(1 + 2b), (b, 1, b)/(1 + 2b) and (b, b, c)/(2b + c).

Reference: Vaswani et al. 2017 (arXiv:1706.03762), eq. 1.
"""

import math
from typing import Any

import jax.numpy as jnp

import attnjax as aj
from attnjax.report.drawing import new_figure
from attnjax.report.formatting import decimal
from experiments.first_principles.arrays import one_head, plain
from experiments.first_principles.drawing import WIDTH, heat
from experiments.first_principles.words import code, grid, row

TITLE = "Scaled dot-product attention"
CAPTION = "From the products of queries (rows) and keys (columns) to the output, one step at a time."

WORDS = ("I", "love", "math")
Q = ((1, 0), (0, 1), (1, 1))
K = ((0, 1), (1, 0), (1, 1))
V = ((1, 2), (3, 4), (5, 6))
PUBLISHED = ((3.406, 4.406), (3.000, 4.000), (3.507, 4.506))
"""The output as printed elsewhere, computed there from weights rounded to three digits."""


def numbers() -> dict[str, Any]:
    """Scores, scaled scores, weights and output."""
    q, k, v = (jnp.asarray(value, jnp.float32) for value in (Q, K, V))
    scores = jnp.einsum("th,sh->ts", q, k)
    out = aj.attend(one_head(q), one_head(k), one_head(v))
    return {
        "words": list(WORDS),
        "d_k": 2,
        "q": plain(q),
        "k": plain(k),
        "v": plain(v),
        "scores": plain(scores),
        "scaled": plain(scores / jnp.float32(math.sqrt(2))),
        "weights": plain(aj.attention_weights(one_head(q), one_head(k))[0, 0]),
        "output": plain(out[0, :, 0]),
        "published_output": [list(values) for values in PUBLISHED],
    }


def text(numbers: dict[str, Any]) -> str:
    """The four steps, and one row by hand."""
    words, digits = numbers["words"], 3
    steps = [
        ("Q K^T", grid(numbers["scores"], words, words, 0)),
        ("Q K^T / sqrt(2)", grid(numbers["scaled"], words, words, digits)),
        ("softmax of each row", grid(numbers["weights"], words, words, digits)),
        ("times V", grid(numbers["output"], words, digits=digits)),
    ]
    lines = [f"{title}\n{table}\n" for title, table in steps]
    powers = [math.exp(score) for score in numbers["scaled"][0]]
    published = ", ".join(row(values) for values in numbers["published_output"])
    return "\n\n".join(
        [
            f"Queries {grid_row(numbers['q'])}, keys {grid_row(numbers['k'])}, values {grid_row(numbers['v'])}, for "
            f'"{" ".join(words)}":',
            code("\n".join(lines).rstrip()),
            f'The row of "{words[0]}" by hand: e^{decimal(numbers["scaled"][0][0])} = {decimal(powers[0])}, '
            f"e^{decimal(numbers['scaled'][0][1])} = {decimal(powers[1])} twice, together {decimal(sum(powers))}; "
            f"{decimal(powers[0])} / {decimal(sum(powers))} = {decimal(numbers['weights'][0][0])}.",
            f"The output is often printed as {published}: there the weights were rounded to three digits first.",
        ]
    )


def grid_row(table: list[list[float]]) -> str:
    """Small whole vectors in one line."""
    return ", ".join(row(values, 0) for values in table)


def draw(numbers: dict[str, Any]) -> Any:
    """The four tables."""
    figure, axes = new_figure(WIDTH, 2.5, 1, 4)
    words = numbers["words"]
    heat(axes[0], numbers["scores"], words, words, title="Q Kᵀ", digits=0, limits=(0, 2))
    heat(axes[1], numbers["scaled"], (), words, title="divided by √2", limits=(0, 2))
    heat(axes[2], numbers["weights"], (), words, title="softmax: weights")
    heat(axes[3], numbers["output"], (), ("v[0]", "v[1]"), title="times V: output", limits=(1, 6))
    return figure
