"""Which heads of a model are there: a gate is an array [L, N] of factors of each head's output, 1 keeps and 0 removes.

A head is named by one number, layer * N + head in the layer: 0 .. L N - 1. Gates are data: a program that was compiled for
one of them serves all.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.typing import ArrayLike, Float, Int


def gate_without(subject: LoadedModel, removed: Sequence[int] | Int[np.ndarray, " R"] = ()) -> Float[np.ndarray, "L N"]:
    """The gate that removes these heads. Raises ValueError for a number that is no head of the model, or stands twice."""
    total = subject.layers * subject.heads
    numbers = np.asarray(removed)
    if numbers.ndim != 1 or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
        raise ValueError(f"heads to remove must be a list of whole numbers, got {removed!r}")
    unknown = [int(number) for number in numbers if not 0 <= number < total]
    if unknown:
        raise ValueError(f"heads are numbered 0..{total - 1} (layer * {subject.heads} + head), got {unknown}")
    if len(set(numbers.tolist())) < numbers.size:
        raise ValueError(f"each head can be removed once, got {numbers.tolist()}")
    gate = np.ones(total, np.float32)
    gate[numbers.astype(int)] = 0
    return gate.reshape(subject.layers, subject.heads)


def check_gate(subject: LoadedModel, gate: ArrayLike) -> None:
    """Raise ValueError unless the gate is [L, N] of the model."""
    shape = (subject.layers, subject.heads)
    if np.shape(gate) != shape:
        raise ValueError(f"gate must have shape {shape}, one factor per layer and head, got {np.shape(gate)}")


def predicted(tokens: Int[ArrayLike, "B T"], last: int | None = None) -> int:
    """How many tokens of each document count: its `last`, by default all but the first, which nothing predicts.

    Raises ValueError unless there is at least one document, and so many tokens to predict in each.
    """
    whole = hasattr(tokens, "dtype") and jnp.issubdtype(tokens.dtype, jnp.integer)
    if not whole or tokens.ndim != 2:
        came = f"{tokens.dtype} {tokens.shape}" if hasattr(tokens, "dtype") else type(tokens).__name__
        raise ValueError(f"tokens must be an array of integers [documents, length], got {came}")
    if tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise ValueError(
            f"tokens must hold a document of 2 tokens or more, so that one can be predicted, got {tokens.shape}"
        )
    most = tokens.shape[1] - 1
    if last is not None and not 1 <= last <= most:
        raise ValueError(f"last must be in 1..{most} for documents of {tokens.shape[1]} tokens, got {last}")
    return most if last is None else last
