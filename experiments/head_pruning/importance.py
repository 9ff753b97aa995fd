"""How much each head matters, to first order: the gradient of the loss in the head's gate.

    I_h = E_x | d loss(x) / d gate_h |        at gate = 1, x a document, loss(x) the mean over its tokens, in nats

and, so that layers compare, each layer divided by its l2 norm. One backward pass gives every head and every document: gates
[L, B, N] belong to their documents alone, so the gradient of the summed loss in them is that of each document.

Reference: Michel et al. 2019 (arXiv:1905.10650), section 4.1, eq. 2; the division by layer after Molchanov et al. 2017
(arXiv:1611.06440).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.evaluation.loaded_model import LoadedModel, next_token_losses
from attnjax.typing import Array, ArrayLike, Float, Int, PyTree
from experiments.head_pruning.gates import check_gate, predicted


class Importance(NamedTuple):
    """I_h, the same divided by the l2 norm of its layer, and |d loss(x) / d gate_h| of each document."""

    score: Float[np.ndarray, "L N"]
    normalized: Float[np.ndarray, "L N"]
    documents: Float[np.ndarray, "B L N"]


def gate_gradients(
    subject: LoadedModel,
    tokens: Int[ArrayLike, "B T"],
    gate: Float[ArrayLike, "L N"] | None = None,
    last: int | None = None,
) -> Float[np.ndarray, "B L N"]:
    """d loss(x) / d gate_h of every document and head, at `gate`, by default all ones; `last` as in `measure`.

    Raises ValueError where a document has no next token or not so many, and for a gate of another shape.
    """
    count = predicted(tokens, last)
    gate = jnp.ones((subject.layers, subject.heads)) if gate is None else gate
    check_gate(subject, gate)
    gates = jnp.repeat(jnp.asarray(gate, jnp.float32)[:, None], tokens.shape[0], axis=1)
    found = _gradients(subject.graph, subject.params, jnp.asarray(tokens), gates, count=count)
    return np.asarray(found, np.float64).transpose(1, 0, 2)


def head_importance(
    subject: LoadedModel,
    tokens: Int[ArrayLike, "B T"],
    gate: Float[ArrayLike, "L N"] | None = None,
    last: int | None = None,
) -> Importance:
    """I_h of every head. With a `gate`, that of the model as it is gated. Errors as in `gate_gradients`."""
    documents = np.abs(gate_gradients(subject, tokens, gate, last))
    score = documents.mean(0)
    return Importance(score, normalize_layers(score), documents)


def normalize_layers(score: Float[np.ndarray, "L N"]) -> Float[np.ndarray, "L N"]:
    """score_l / ||score_l||_2; a layer of zeros stays zero."""
    norm = np.linalg.norm(score, axis=1, keepdims=True)
    return score / np.where(norm > 0, norm, 1.0)


@functools.partial(jax.jit, static_argnames=("graph", "count"))
def _gradients(
    graph: Any, params: PyTree, tokens: Array, gates: Float[Array, "L B N"], count: int
) -> Float[Array, "L B N"]:
    def total(gates: Float[Array, "L B N"]) -> Float[Array, ""]:
        logits = nnx.merge(graph, params)(tokens, gate=gates)
        return next_token_losses(logits, tokens)[:, -count:].mean(-1).sum()

    return jax.grad(total)(gates)
