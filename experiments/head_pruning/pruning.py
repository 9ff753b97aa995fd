"""Removing heads one after another: in which order, and what it costs.

    order = importance_order(subject, validation)                    I_h of the whole model, the least important first
    order = importance_order(subject, validation, recompute=True)    I_h anew after each removal: greedy
    curve = pruning_curve(subject, test, order)                      loss and accuracy against heads kept
    curves = pruning_curves(subject, test, random_orders(subject, seeds=range(16)))          the control
    ablation(subject, test)                                          loss without each head alone: the ground truth

Orders and costs are found on documents that the caller chooses apart. Gates are data: one program measures all.

Reference: Michel et al. 2019 (arXiv:1905.10650), sections 3 and 4.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.evaluation.loaded_model import LoadedModel, next_token_losses
from attnjax.typing import Array, ArrayLike, Float, Int, PyTree
from experiments.head_pruning.gates import check_gate, gate_without, predicted
from experiments.head_pruning.importance import head_importance

Order = Sequence[int] | Int[np.ndarray, " heads"]
"""Every head of a model once, numbered as in `gates`, the first to go first."""


class Measured(NamedTuple):
    """Of each document: mean cross-entropy of the next token in nats, and how often it was the likeliest."""

    loss: Float[np.ndarray, " B"]
    accuracy: Float[np.ndarray, " B"]


class PruningCurve(NamedTuple):
    """`loss` and `accuracy` of each document with the last `kept` heads of `order`, from all heads to none."""

    order: Int[np.ndarray, " heads"]
    kept: Int[np.ndarray, " points"]
    loss: Float[np.ndarray, "points B"]
    accuracy: Float[np.ndarray, "points B"]


def measure(
    subject: LoadedModel, tokens: Int[ArrayLike, "B T"], gate: Float[ArrayLike, "L N"], last: int | None = None
) -> Measured:
    """Loss and accuracy under a gate, over the `last` tokens of each document, by default all that have one before them.

    Raises ValueError for a gate of another shape, and where a document has not so many tokens to predict.
    """
    count = predicted(tokens, last)
    check_gate(subject, gate)
    arguments = (subject.params, jnp.asarray(tokens), jnp.asarray(gate, jnp.float32))
    loss, accuracy = _measure(subject.graph, *arguments, count=count)
    return Measured(np.asarray(loss, np.float64), np.asarray(accuracy, np.float64))


def ablation(
    subject: LoadedModel, tokens: Int[ArrayLike, "B T"], last: int | None = None
) -> Float[np.ndarray, "B L N"]:
    """Increase of each document's loss when one head alone is removed, in nats per token. Errors as in `measure`."""
    total = subject.layers * subject.heads
    gates = [gate_without(subject), *(gate_without(subject, [head]) for head in range(total))]
    whole, *without = (measure(subject, tokens, gate, last).loss for gate in gates)
    return np.stack([loss - whole for loss in without], -1).reshape(-1, subject.layers, subject.heads)


def importance_order(
    subject: LoadedModel,
    tokens: Int[ArrayLike, "B T"],
    *,
    recompute: bool = False,
    stops: Sequence[int] | None = None,
) -> Int[np.ndarray, " heads"]:
    """Heads by I_h divided by the norm of its layer, the least important first; of equals, the first in the model.

    With `recompute`, I_h is computed anew at each of the `stops` (numbers of heads kept, by default every one) with the heads
    removed so far gated off. Their gradients still enter the norm of their layer: otherwise the last head of a layer
    would have the largest score there is, whatever it does.
    """
    total = subject.layers * subject.heads
    stops = _checked_stops(every_head(total) if stops is None else stops, total) if recompute else [total, 0]
    removed: list[int] = []
    for kept, left in itertools.pairwise(stops):
        score = head_importance(subject, tokens, gate_without(subject, removed)).normalized.reshape(-1)
        ranked = [head for head in np.argsort(score, kind="stable").tolist() if head not in removed]
        removed += ranked[: kept - left]
    return np.asarray(removed)


def random_orders(subject: LoadedModel, seeds: Iterable[int]) -> list[Int[np.ndarray, " heads"]]:
    """A uniform order of the heads for each seed, the same for every model with as many heads."""
    return [np.random.default_rng(seed).permutation(subject.layers * subject.heads) for seed in seeds]


def every_head(total: int) -> list[int]:
    """Numbers of heads kept when they go one by one: total, total - 1, .. 0."""
    return list(range(total, -1, -1))


def tenths(total: int) -> list[int]:
    """Numbers of heads kept when they go in steps of 10 % of all heads, rounded; each once."""
    return list(dict.fromkeys(total - round(total * step / 10) for step in range(11)))


def pruning_curve(
    subject: LoadedModel,
    tokens: Int[ArrayLike, "B T"],
    order: Order,
    *,
    stops: Sequence[int] | None = None,
    last: int | None = None,
) -> PruningCurve:
    """What is left when heads go in this order. Arguments and errors as in `pruning_curves`."""
    return pruning_curves(subject, tokens, [order], stops=stops, last=last)[0]


def pruning_curves(
    subject: LoadedModel,
    tokens: Int[ArrayLike, "B T"],
    orders: Sequence[Order],
    *,
    stops: Sequence[int] | None = None,
    last: int | None = None,
) -> list[PruningCurve]:
    """The curves of several orders, at these numbers of heads kept (by default every one); equal gates are measured once.

    Raises ValueError for an order that is none of all heads, for stops that do not descend from all heads to none, and
    as `measure` does.
    """
    total = subject.layers * subject.heads
    stops = _checked_stops(every_head(total) if stops is None else stops, total)
    if not (given := [_checked_order(order, total) for order in orders]):
        return []
    gates = np.array([[gate_without(subject, order[: total - kept]).reshape(-1) for kept in stops] for order in given])
    distinct, place = np.unique(gates.reshape(-1, total), axis=0, return_inverse=True)
    found = [measure(subject, tokens, gate.reshape(subject.layers, -1), last) for gate in distinct]
    loss, accuracy = (np.stack(values)[place.reshape(len(given), -1)] for values in zip(*found, strict=True))
    return [PruningCurve(order, np.array(stops), *both) for order, *both in zip(given, loss, accuracy, strict=True)]


def _checked_order(order: Order, total: int) -> Int[np.ndarray, " heads"]:
    numbers = np.asarray(order)
    if sorted(numbers.reshape(-1).tolist()) != list(range(total)):
        raise ValueError(f"an order must name each of the heads 0..{total - 1} once, got {numbers.tolist()}")
    return numbers.astype(int)


def _checked_stops(stops: Sequence[int], total: int) -> list[int]:
    stops = list(stops)
    if stops != sorted(set(stops), reverse=True) or stops[:1] != [total] or stops[-1] != 0:
        raise ValueError(f"stops must descend from all {total} heads to 0, got {stops}")
    return stops


@functools.partial(jax.jit, static_argnames=("graph", "count"))
def _measure(graph: Any, params: PyTree, tokens: Array, gate: Array, count: int) -> tuple[Array, Array]:
    logits = nnx.merge(graph, params)(tokens, gate=gate)
    losses = next_token_losses(logits, tokens)
    likeliest = jax.lax.argmax(logits[:, :-1], 2, jnp.int32)
    right = (likeliest == tokens[:, 1:].astype(jnp.int32)).astype(jnp.float32)
    return losses[:, -count:].mean(-1), right[:, -count:].mean(-1)
