"""Heads made by hand, and which of them matters: four heads made by hand, and gates that tell which of them matters.

Each head looks for one thing, as heads of trained models do (Clark et al. 2019): the previous token, the next token,
separators, the same word. A match adds SHARPNESS to the score, so the key it points at gets
e^SHARPNESS / (e^SHARPNESS + T - 1). The task is to name the previous word; the output reads head n with the factor READ_n:

    logits = sum_n gate_n READ_n attend_n(words),    importance of head n = mean |d loss / d gate_n| at gates of 1

Pruning sets gates to 0, one by one.

References: Clark et al. 2019 (arXiv:1906.04341); Michel et al. 2019 (arXiv:1905.10650), eq. 2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attnjax as aj
from attnjax.report.drawing import new_figure
from attnjax.report.formatting import decimal, markdown_table
from attnjax.typing import Array, Float
from experiments.first_principles.arrays import plain
from experiments.first_principles.drawing import BLUE, RED, WIDTH, heat

TITLE = "Heads made by hand, and which of them matters"
CAPTION = (
    "Above and left: what four heads made by hand look at (rows: queries, columns: keys). Their importance for naming the "
    "previous word, and what removing them one by one does, in both orders."
)

SENTENCE = ("the", "dog", "ran", ".", "the", "cat", "sat", ".")
HEADS = ("previous", "next", "separator", "same word")
SHARPNESS = 4.0
READ = (3.0, 0.4, 0.2, 0.6)


def numbers() -> dict[str, Any]:
    """Weights of the heads, their importance, and accuracy and loss while heads are removed."""
    q, k, _ = sentence()
    importance = jnp.abs(jax.jacrev(losses)(jnp.ones(len(HEADS), jnp.float32))).mean(0)
    ascending = np.argsort(np.asarray(importance)).tolist()
    return {
        "sentence": list(SENTENCE),
        "heads": list(HEADS),
        "read": list(READ),
        "sharpness": SHARPNESS,
        "weights": plain(aj.attention_weights(q, k, scale=1.0)[0]),
        "importance": plain(importance),
        "least_first": removed(ascending),
        "most_first": removed(ascending[::-1]),
    }


def sentence() -> tuple[Float[Array, "1 T N H"], ...]:
    """Queries, keys and values of all heads: places and words as one-hot vectors of width T."""
    T, words = len(SENTENCE), list(dict.fromkeys(SENTENCE))
    place, word = np.eye(T), np.eye(T)[[words.index(w) for w in SENTENCE]]
    separator = np.tile(np.eye(T)[words.index(".")], (T, 1))
    before, after = np.eye(T, k=-1), np.eye(T, k=1)
    q = SHARPNESS * np.stack([before, after, separator, word], axis=1)
    k = np.stack([place, place, word, word], axis=1)
    v = np.stack([word] * len(HEADS), axis=1)
    return tuple(jnp.asarray(x[None], jnp.float32) for x in (q, k, v))


def logits(gate: Float[Array, " N"]) -> Float[Array, "T-1 H"]:
    """Of the previous word, at every place that has one."""
    q, k, v = sentence()
    out = aj.gate_heads(aj.attend(q, k, v, scale=1.0, implementation="dense"), gate * jnp.asarray(READ, jnp.float32))
    return out[0, 1:].sum(1)


def answers() -> np.ndarray:
    """The index of the previous word at every place that has one."""
    words = list(dict.fromkeys(SENTENCE))
    return np.array([words.index(word) for word in SENTENCE[:-1]])


def losses(gate: Float[Array, " N"]) -> Float[Array, " T-1"]:
    """Cross-entropy in nats at every place."""
    logs = jax.nn.log_softmax(logits(gate), axis=-1)
    return -logs[np.arange(len(SENTENCE) - 1), answers()]


def removed(order: list[int]) -> dict[str, Any]:
    """Accuracy and mean loss with all heads, and after each removal in this order, until one is left."""
    gate, accuracy, loss = np.ones(len(HEADS), np.float32), [], []
    for head in [None, *order[:-1]]:
        if head is not None:
            gate[head] = 0
        right = np.asarray(logits(jnp.asarray(gate))).argmax(-1) == answers()
        accuracy.append(float(right.mean()))
        loss.append(plain(losses(jnp.asarray(gate)).mean()))
    return {"order": [HEADS[head] for head in order], "accuracy": accuracy, "loss": loss}


def text(numbers: dict[str, Any]) -> str:
    """Importance and both orders of pruning."""
    pairs = zip(numbers["heads"], numbers["read"], numbers["importance"], strict=True)
    rows = [[name, decimal(read, 1), decimal(importance, 3)] for name, read, importance in pairs]
    steps = []
    for kept in range(len(numbers["heads"]), 0, -1):
        place, cells = len(numbers["heads"]) - kept, [str(kept)]
        for name in ("least_first", "most_first"):
            found = numbers[name]
            gone = found["order"][place - 1] if place else "nothing"
            cells += [gone, f"{100 * found['accuracy'][place]:.0f} %", decimal(found["loss"][place], 3)]
        steps.append(cells)
    header = [
        "heads kept",
        "removed: least important first",
        "accuracy",
        "loss",
        "most important first",
        "accuracy",
        "loss",
    ]
    there = numbers["weights"][0][1][0]
    return "\n\n".join(
        [
            f'Four heads read "{" ".join(numbers["sentence"])}". Each finds its thing: the head of the previous token gives '
            f"it {decimal(there, 3)} of the weight. Asked for the previous word, the importance of a head is the mean of "
            "|d loss / d gate|:",
            markdown_table(["head", "read with", "importance"], rows).rstrip(),
            "Removing the least important first costs nothing here; removing the most important first costs all at once:",
            markdown_table(header, steps).rstrip(),
            "These heads are made by hand for this task. [Trained models](../heads/) lost something with every half of "
            "their heads that was removed, at the trained length.",
        ]
    )


def draw(numbers: dict[str, Any]) -> Any:
    """Four maps, importance, and accuracy against heads kept."""
    figure, axes = new_figure(WIDTH, 5.2, 2, 3)
    words = numbers["sentence"]
    for axis, name, weights in zip(axes[:2] + axes[3:5], numbers["heads"], numbers["weights"], strict=True):
        heat(axis, weights, words, words, digits=None, title=f"head: {name}")
        axis.tick_params(labelsize=8)
        axis.tick_params(axis="x", rotation=90)
    bars, curve = axes[2], axes[5]
    places = range(len(numbers["heads"]))
    bars.barh(places, numbers["importance"], color=BLUE, height=0.6)
    bars.set_yticks(places, numbers["heads"], fontsize=8)
    bars.invert_yaxis()
    bars.grid(visible=False)
    bars.set_title("importance", fontsize=10)
    bars.set_xlabel("mean |d loss / d gate|", fontsize=9)
    kept = range(len(numbers["heads"]), 0, -1)
    looks = (("least_first", "least first", BLUE, "o"), ("most_first", "most first", RED, "s"))
    for name, label, color, marker in looks:
        accuracy = 100 * np.array(numbers[name]["accuracy"])
        curve.plot(kept, accuracy, color=color, marker=marker, linewidth=1.9, label=label)
    curve.invert_xaxis()
    curve.set_ylim(-4, 104)
    curve.set_title("accuracy, %", fontsize=10)
    curve.set_xlabel("heads kept", fontsize=9)
    for axis in (bars, curve):
        axis.tick_params(labelsize=8.5)
    curve.legend(title="removed", fontsize=8, title_fontsize=8)
    return figure
