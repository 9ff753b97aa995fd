"""Projection: a query is a weighted sum of the rows of W^Q, one row for each channel of the token.

    q = x W^Q,    q_h = sum_d x_d W^Q[d, h]

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2.
"""

from typing import Any

import jax.numpy as jnp

import attnjax as aj
from attnjax.report.drawing import new_figure
from attnjax.report.formatting import decimal
from experiments.first_principles.arrays import one_head, plain
from experiments.first_principles.drawing import BLACK, BLUE, RED, WIDTH
from experiments.first_principles.words import code, row, signed_sum

TITLE = "Projection"
CAPTION = "What each channel of the token adds to the two components of its query; the last bar is the sum."

X = (1.0, 0.5, -0.3, 0.8)
W_Q = ((0.2, 0.1), (0.4, -0.3), (0.1, 0.5), (-0.2, 0.3))
K_CAT, K_MAT = (0.18, 0.10), (0.22, 0.03)


def numbers() -> dict[str, Any]:
    """The terms of both components, the query, and what it makes of two keys."""
    x, w_q, keys = (jnp.asarray(value, jnp.float32) for value in (X, W_Q, (K_CAT, K_MAT)))
    q = jnp.einsum("d,dh->h", x, w_q)
    weights = aj.attention_weights(one_head(q[None]), one_head(keys))[0, 0, 0]
    return {
        "x": list(X),
        "w_q": [list(values) for values in W_Q],
        "terms": plain(x[:, None] * w_q),
        "q": plain(q),
        "k_cat": list(K_CAT),
        "k_mat": list(K_MAT),
        "scores": plain(jnp.einsum("h,sh->s", q, keys)),
        "weights": plain(weights),
    }


def text(numbers: dict[str, Any]) -> str:
    """The sums term by term."""
    lines = [f"x = {row(numbers['x'], 1)}", ""]
    for component in range(2):
        terms = [values[component] for values in numbers["terms"]]
        lines.append(f"q[{component}] = {signed_sum(terms)} = {decimal(numbers['q'][component], 2)}")
    cat, mat = numbers["scores"]
    return "\n\n".join(
        [
            "A token is a vector; its query, key and value are three linear maps of it. Channel d of the token adds "
            "`x[d]` times row d of `W_Q`:",
            code(*lines),
            f"Against the keys {row(numbers['k_cat'], 2)} (cat) and {row(numbers['k_mat'], 2)} (mat) the query scores "
            f"{decimal(cat, 4)} and {decimal(mat, 4)}: before training, with numbers this small, attention is nearly "
            f"even, {decimal(numbers['weights'][0], 4)} against {decimal(numbers['weights'][1], 4)}.",
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """A waterfall for each component."""
    figure, axes = new_figure(WIDTH, 2.9, 1, 2)
    for component, axis in enumerate(axes):
        terms = [values[component] for values in numbers["terms"]]
        start = 0.0
        for place, term in enumerate(terms):
            axis.bar(place, term, bottom=start, color=BLUE if term >= 0 else RED, width=0.65)
            start += term
            axis.annotate(
                f"{term:+.2f}", (place, max(start, start - term)), (0, 3), textcoords="offset points", ha="center"
            )
        axis.bar(len(terms), numbers["q"][component], color=BLACK, width=0.65)
        total = decimal(numbers["q"][component], 2)
        spot = (len(terms), max(0.0, numbers["q"][component]))
        axis.annotate(total, spot, (0, 3), textcoords="offset points", ha="center", weight="bold")
        axis.axhline(0, color=BLACK, linewidth=0.8)
        axis.set_xticks(range(len(terms) + 1), [*(f"x[{d}]" for d in range(len(terms))), f"q[{component}]"])
        axis.set_title(f"component {component} of the query")
        axis.use_sticky_edges = False
        axis.margins(y=0.16)
    axes[0].set_ylabel("value")
    return figure
