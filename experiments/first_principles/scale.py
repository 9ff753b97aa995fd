"""Why 1/sqrt(d_k): the variance of a product of two vectors is their width, and a softmax of large numbers is flat.

For q and k with independent components of mean 0 and variance 1, var(q.k) = d_k. Divided by sqrt(d_k) it is 1 at every
width. The gradient of a softmax p is the matrix diag(p) - p p^T, whose norm is sqrt(s2 - 2 s3 + s2^2) with
s2 = sum p^2, s3 = sum p^3: 0 where p is one-hot.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1 and its footnote.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

import attnjax as aj
from attnjax.report.drawing import new_figure
from attnjax.report.formatting import decimal, markdown_table
from attnjax.typing import Array, Float
from experiments.first_principles.drawing import BLUE, RED, WIDTH, level, powers_of_two
from experiments.first_principles.words import thousands

TITLE = "Why the square root of d_k"
CAPTION = (
    "Random queries and keys of unit variance: variance of their products, and entropy and gradient of the softmax over "
    "64 keys (medians over 256 queries), with and without the factor."
)

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
PAIRS, QUERIES, KEYS = 10_000, 256, 64
SHOWN = (1, 8, 64, 128, 512)


def numbers() -> dict[str, Any]:
    """By width: variance of the products, entropy and gradient norm of the weights; with and without the factor."""
    compiled = jax.jit(at_size, static_argnums=1)
    found = {size: compiled(jax.random.fold_in(jax.random.key(0), size), size) for size in SIZES}
    names = ("variance", "variance_scaled", "entropy", "entropy_scaled", "gradient", "gradient_scaled")
    return {
        "d_k": list(SIZES),
        "pairs": PAIRS,
        "queries": QUERIES,
        "keys": KEYS,
        **{name: [float(one[name]) for one in found.values()] for name in names},
        "entropy_of_all_alike": math.log(KEYS),
        "example": {"d_k": 64, "deviation": 8.0, "two_deviations": 16.0, "e_to_16": math.exp(16), "scaled": 2.0},
    }


def at_size(key: Array, size: int) -> dict[str, Array]:
    """All of it at one width."""
    for_pairs, for_queries, for_keys = jax.random.split(key, 3)
    q, k = jax.random.normal(for_pairs, (2, PAIRS, size))
    products = jnp.einsum("ph,ph->p", q, k)
    q = jax.random.normal(for_queries, (1, QUERIES, 1, size))
    k = jax.random.normal(for_keys, (1, KEYS, 1, size))
    found = {
        "variance": products.var(),
        "variance_scaled": (products / jnp.float32(math.sqrt(size))).var(),
    }
    for name, scale in (("", 1.0), ("_scaled", None)):
        weights = aj.attention_weights(q, k, scale=scale)[0, 0]
        found[f"entropy{name}"] = jnp.median(entropy(weights))
        found[f"gradient{name}"] = jnp.median(gradient_norm(weights))
    return found


def entropy(weights: Float[Array, "*T S"]) -> Float[Array, "*T"]:
    """-sum p log p of every row, in nats; 0 log 0 is 0."""
    logs = jnp.log(jnp.where(weights > 0, weights, jnp.ones_like(weights)))
    return -(weights * logs).sum(-1)


def gradient_norm(weights: Float[Array, "*T S"]) -> Float[Array, "*T"]:
    """Frobenius norm of the derivative of the softmax that gave each row: see the module's text."""
    s2, s3 = jnp.square(weights).sum(-1), (weights * jnp.square(weights)).sum(-1)
    return jnp.sqrt(jnp.maximum(s2 - 2 * s3 + jnp.square(s2), 0.0))


def text(numbers: dict[str, Any]) -> str:
    """The argument for d_k = 64, and the table."""
    example = numbers["example"]
    header = ["d_k", "variance", "scaled", "entropy, nats", "scaled", "softmax gradient", "scaled"]
    rows = []
    for size in SHOWN:
        place = numbers["d_k"].index(size)
        value = lambda name, digits, place=place: decimal(numbers[name][place], digits)
        cells = [str(size), value("variance", 1), value("variance_scaled", 2)]
        cells += [value("entropy", 2), value("entropy_scaled", 2)]
        rows.append([*cells, value("gradient", 3), value("gradient_scaled", 3)])
    return "\n\n".join(
        [
            f"With d_k = {example['d_k']} a product of query and key has a standard deviation of "
            f"{decimal(example['deviation'], 0)}, so scores of +-{decimal(example['two_deviations'], 0)} are common, and "
            f"e^{decimal(example['two_deviations'], 0)} = {thousands(example['e_to_16'])}: one key takes everything. "
            f"Divided by 8 they stay within +-{decimal(example['scaled'], 0)}.",
            f"Measured on {thousands(numbers['pairs'])} random pairs, and on the attention of "
            f"{numbers['queries']} queries to {numbers['keys']} keys (all alike would be "
            f"{decimal(numbers['entropy_of_all_alike'], 2)} nats):",
            markdown_table(header, rows).rstrip(),
            "Without the factor the weights become one-hot as heads widen. The gradient that could correct them grows at "
            "first, while a few keys compete, and vanishes in wide heads. With the factor both hardly change.",
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """Three panels against d_k, both axes of the first logarithmic."""
    figure, axes = new_figure(WIDTH, 3.2, 1, 3)
    panels = ("variance", "entropy", "gradient")
    titles = ("variance of q·k", "entropy of weights, nats", "softmax gradient, norm")
    for axis, name, title in zip(axes, panels, titles, strict=True):
        options = {"linewidth": 1.9, "markersize": 4.5}
        axis.plot(numbers["d_k"], numbers[name], color=RED, marker="s", label="q·k", **options)
        axis.plot(numbers["d_k"], numbers[f"{name}_scaled"], color=BLUE, marker="o", label="q·k / √d_k", **options)
        powers_of_two(axis, numbers["d_k"][::2])
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("d_k")
    axes[0].set_yscale("log", base=2)
    axes[0].yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    level(axes[1], numbers["entropy_of_all_alike"], "all alike")
    axes[1].set_ylim(0, 4.9)
    axes[2].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
