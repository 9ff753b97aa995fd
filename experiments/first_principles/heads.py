"""Several heads: split the channels, attend in each part, put the parts side by side again.

    out = concat(head_1 .. head_N) W^O,    head_n = attend(Q_n, K_n, V_n)

Four tokens of four channels: channels 0 and 1 tell cat from sat, channels 2 and 3 tell The from down. W^Q, W^V and W^O
are the identity; W^K is one of four presets. A head whose query and key agree in one channel gives that key the weight
e^(1/tau) / (e^(1/tau) + 3), with the temperature tau = sqrt(d_k) = sqrt(2) unless said otherwise.

Reference: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

import attnjax as aj
from attnjax.report.drawing import FAINT, new_figure
from attnjax.report.formatting import decimal, markdown_table
from experiments.first_principles.arrays import heads, one_head, plain
from experiments.first_principles.drawing import BLUE, WIDTH, heat
from experiments.first_principles.words import code, grid, row

TITLE = "Split, attend, concatenate"
CAPTION = (
    "Who looks at whom (rows: queries, columns: keys) in both heads, for four matrices W_K; at the right one head over all "
    "four channels, and the weight of the match against temperature."
)

TOKENS = ("The", "cat", "sat", "down")
X = ((0, 0, 1, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 1))
HEAD_1, HEAD_2 = (0.5, -0.3), (0.8, 0.1)
TEMPERATURES = (0.1, 0.25, 0.5, 1.0, math.sqrt(2), 2.0, 4.0, 10.0, 100.0)
PRESETS = ("identity", "swapped", "negated", "random")


def key_matrix(preset: str) -> np.ndarray:
    """W^K [4, 4]: nothing changed; the blocks of both heads exchanged; head 2 negated; normal numbers of seed 0."""
    return {
        "identity": np.eye(4),
        "swapped": np.roll(np.eye(4), 2, axis=1),
        "negated": np.diag([1.0, 1.0, -1.0, -1.0]),
        "random": np.random.default_rng(0).normal(size=(4, 4)),
    }[preset]


def numbers() -> dict[str, Any]:
    """Concatenation, the four presets, one head against two, and the temperatures."""
    x = np.array(X, np.float64)
    q, match = heads(x, 2), []
    for tau in TEMPERATURES:
        match.append(plain(aj.attention_weights(q, q, scale=1 / tau)[0, 0, 1, 1]))
    halves = jnp.asarray([[[HEAD_1, HEAD_2]]], jnp.float32)
    return {
        "head_1": list(HEAD_1),
        "head_2": list(HEAD_2),
        "concatenated": plain(jnp.einsum("btnh,nhd->btd", halves, jnp.eye(4).reshape(2, 2, 4))[0, 0]),
        "tokens": list(TOKENS),
        "x": plain(x),
        "presets": {name: attended(x, key_matrix(name)) for name in PRESETS},
        "one_head": plain(aj.attention_weights(one_head(x), one_head(x))[0, 0]),
        "tau": list(TEMPERATURES),
        "match": match,
    }


def attended(x: np.ndarray, w_k: np.ndarray) -> dict[str, Any]:
    """Weights of both heads and the concatenated output."""
    q, k = heads(x, 2), heads(x @ w_k, 2)
    out = aj.attend(q, k, q)
    return {
        "w_k": w_k.tolist(),
        "weights": plain(aj.attention_weights(q, k)[0]),
        "output": plain(out.reshape(1, len(x), -1)[0]),
    }


def text(numbers: dict[str, Any]) -> str:
    """What each preset does, in tables, and the temperatures."""
    tokens, presets = numbers["tokens"], numbers["presets"]
    said = {
        "identity": "W_K = I: head 1 (channels 0, 1) matches cat with cat and sat with sat, head 2 The and down",
        "swapped": "blocks of W_K swapped: the queries of each head meet the channels of the other",
        "negated": "head 2 negated: what attracted now repels; head 1 is the same",
        "random": "a random W_K: the rows differ of all tokens that have something in the channels of a head",
    }
    shown = []
    for name in PRESETS:
        first, second = (grid(weights, tokens, tokens).split("\n") for weights in presets[name]["weights"])
        wide = max(map(len, first)) + 6
        sides = [f"{a:<{wide}}{b}" for a, b in zip(first, second, strict=True)]
        shown.append("\n".join([said[name], f"{'head 1':<{wide}}head 2", *sides, ""]))
    match, tau = numbers["presets"]["identity"]["weights"][0][1][1], math.sqrt(2)
    repelled = numbers["presets"]["negated"]["weights"][1][0][0]
    rows = [[decimal(t, 3), decimal(m, 4)] for t, m in zip(numbers["tau"], numbers["match"], strict=True)]
    together = row(numbers["concatenated"], 1)
    return "\n\n".join(
        [
            f"Heads stand side by side: {row(numbers['head_1'], 1)} and {row(numbers['head_2'], 1)} concatenate to "
            f"{together}, and W_O = I passes it through.",
            'Four tokens with d_model = 4, two heads of d_k = 2; rows are queries, columns keys, of "The cat sat down":',
            code("\n".join(shown).rstrip()),
            f"A match has e^(1/sqrt 2) / (e^(1/sqrt 2) + 3) = {decimal(math.exp(1 / tau), 4)} / "
            f"{decimal(math.exp(1 / tau) + 3, 4)} = {decimal(match, 4)} of the weight; a repelled key has "
            f"{decimal(repelled, 4)}. One head over all four channels finds every token at once, but shares one row among "
            f"all reasons: {decimal(numbers['one_head'][0][0], 4)}, for its temperature is sqrt(4).",
            "Temperature tau divides the scores: a cold head looks at one token, a hot one at all alike.",
            markdown_table(["tau", "weight of the match"], rows).rstrip(),
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """Two rows of heads for four presets, and a column for one head and the temperatures."""
    figure, axes = new_figure(WIDTH, 3.9, 2, 5)
    tokens = numbers["tokens"]
    for column, name in enumerate(PRESETS):
        for head in range(2):
            axis = axes[5 * head + column]
            weights = numbers["presets"][name]["weights"][head]
            left = tokens if column == 0 else ()
            heat(axis, weights, left, tokens if head else (), title="" if head else name, limits=(0, 0.6))
            shrink(axis)
        axes[5].set_ylabel("head 2")
        axes[0].set_ylabel("head 1")
    heat(axes[4], numbers["one_head"], (), (), title="one head", limits=(0, 0.6))
    shrink(axes[4])
    curve = axes[9]
    curve.plot(numbers["tau"], numbers["match"], color=BLUE, linewidth=1.8)
    curve.axhline(0.25, color=FAINT, linewidth=1.2, dashes=(1.2, 1.6))
    curve.set_xscale("log")
    curve.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"], fontsize=8)
    curve.minorticks_off()
    curve.set_ylim(0, 1.03)
    curve.tick_params(labelsize=8)
    curve.set_xlabel("temperature", fontsize=9)
    curve.set_title("weight of match", fontsize=9)
    return figure


def shrink(axis: Any) -> None:
    """Letters for cells half as wide."""
    axis.tick_params(labelsize=8)
    axis.tick_params(axis="x", rotation=90)
    for cell in axis.texts:
        cell.set_fontsize(7.5)
