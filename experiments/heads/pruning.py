"""How much each head matters, to first order, and what a model loses with its heads.

    I_h = E_x | d loss(x) / d gate_h |        at gate = 1, x a window, loss(x) the mean over its tokens, in nats

divided by the l2 norm of its layer, so that layers compare. Heads are removed without training, the least important first, or
in random order. A gate is an array [L, N] of factors of the heads' outputs: 1 keeps a head and 0 removes it.

Reference: Michel et al. 2019 (arXiv:1905.10650), sections 3 and 4.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from attnjax.evaluation.loaded_model import LoadedModel, next_token_losses
from attnjax.tasks import Text
from attnjax.typing import Array, Float, Int

KEY = 1905_10650
"""Of the windows: the same bytes for every run of one text and one length."""
WINDOWS, ORDERS = 64, 8
"""Windows of each split, and random orders."""
Tokens = Int[np.ndarray, "B T"]


def drawn(text: Text, length: int, count: int, key: int) -> Tokens:
    """Returns random windows of a text."""
    lengths, seed = [length] * count, jax.random.key(key)
    draw = jax.jit(lambda *arrays: text.given(*arrays).sample(seed, lengths, length).inputs)
    return np.asarray(draw(*text.arrays))


def windows(text: Text, trained: int, count: int = WINDOWS) -> Tokens:
    """Returns the ends of windows of twice the trained length, so that they are those of measurements at that length too."""
    return drawn(text, 2 * trained, count, KEY)[:, -trained:]


def importance(subject: LoadedModel, tokens: Tokens) -> Float[np.ndarray, "L N"]:
    """Returns I_h of each head, each layer divided by its l2 norm; a layer of zeros stays zero."""

    def total(gates: Float[Array, "L B N"]) -> Float[Array, ""]:
        return next_token_losses(subject.logits(jnp.asarray(tokens), gates), jnp.asarray(tokens)).mean(-1).sum()

    gradients = jax.jit(jax.grad(total))(jnp.ones((subject.layers, len(tokens), subject.heads)))
    score = np.abs(np.asarray(gradients, np.float64)).mean(1)
    norm = np.linalg.norm(score, axis=1, keepdims=True)
    return score / np.where(norm > 0, norm, 1.0)


def loss_without(subject: LoadedModel, tokens: Tokens, removed: Int[np.ndarray, " R"]) -> float:
    """Returns the mean loss without some heads, which are numbered layer * N + head."""
    gate = np.ones(subject.layers * subject.heads, np.float32)
    gate[removed] = 0
    return float(
        np.asarray(
            subject.losses(jnp.asarray(tokens), jnp.asarray(gate.reshape(subject.layers, -1))), np.float64
        ).mean()
    )


def curve(subject: LoadedModel, tokens: Tokens, order: Int[np.ndarray, " heads"]) -> list[float]:
    """Returns the loss with all heads, without the first of the order, without the first two, and so on, to none."""
    return [loss_without(subject, tokens, order[:count]) for count in range(len(order) + 1)]


def measure(subject: LoadedModel, text: Text, trained: int, count: int = WINDOWS, orders: int = ORDERS) -> list[tuple]:
    """Returns rows (stage, of, measure, place, value) of a run.

    `loss` of "importance" and "random", the mean over orders, by how many heads are left; `correlation`, Spearman's, of
    importance and the loss without a head alone.
    """
    validation, test = (windows(text.for_split(split), trained, count) for split in ("validation", "test"))
    score = importance(subject, validation).reshape(-1)
    total = len(score)
    by_importance = curve(subject, test, np.argsort(score, kind="stable"))
    random = [curve(subject, test, np.random.default_rng(seed).permutation(total)) for seed in range(orders)]
    alone = [loss_without(subject, test, np.array([head])) for head in range(total)]
    curves = {"importance": by_importance, "random": np.mean(random, axis=0).tolist()}
    rows = [("trained", of, "loss", total - i, loss) for of, losses in curves.items() for i, loss in enumerate(losses)]
    return [*rows, ("trained", "importance", "correlation", 0, float(stats.spearmanr(score, alone).statistic))]
