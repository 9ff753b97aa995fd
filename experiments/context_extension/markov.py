"""Measures methods on Markov chains, a new one for every sequence, so that context pays at every length."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.tasks import Markov
from attnjax.typing import Int
from experiments.context_extension.methods import METHODS
from experiments.context_extension.reading import (
    FACTOR,
    Losses,
    append,
    context_losses,
    decoder_of,
    factors_of,
    measured,
    position_losses,
    read_by,
    scored,
)

CHAINS, LAST, BIN = 256, 32, 32
"""Chains that are measured, symbols at the end of a window that count, and positions of a bin."""
SEARCHED = 16
"""Chains by which factors of LongRoPE are searched."""
SEED, FOR_SEARCH = 2402_11004, 1
"""Of the chains, which no training draws, and what is added for those of the search."""


def measure(
    runs: list[LoadedModel], path: pathlib.Path, chains: int = CHAINS, methods: tuple[str, ...] = METHODS
) -> None:
    """Appends the records that are missing: losses of the models, and of counting single symbols and pairs."""
    assert runs[0].run is not None
    trained = runs[0].run.task.length_max
    lengths = tuple(trained << i for i in range(FACTOR.bit_length()))
    rows, there = drawn(lengths[-1], chains, SEED), measured(path)
    for name in ("unigram", "bigram"):
        if ("", name, "zero-shot") not in there:
            counting: Losses = lambda x, name=name: np.asarray(Markov().nats(x[:, :-1], x[:, 1:])[name])
            append(path, ("", -1, name, "zero-shot"), loss_rows(counting, rows, lengths))
    for run in runs:
        assert run.run is not None
        model, factors = decoder_of(run), None
        for method in methods:
            if (run.name, method, "zero-shot") in there:
                continue
            factors = factors or factors_of(model, drawn(lengths[-1], SEARCHED, SEED + FOR_SEARCH), trained)
            read_so = read_by(method, model, trained, factors)
            found = loss_rows(lambda x, model=read_so: scored(model, x)[0], rows, lengths)
            append(path, (run.name, run.run.seed, method, "zero-shot"), found)
            print(run.name, method, flush=True)


def loss_rows(
    losses: Losses, rows: Int[np.ndarray, "B T+1"], lengths: tuple[int, ...]
) -> list[tuple[str, int, float, float]]:
    """Returns the loss at the end of windows, chain by chain, and the mean over chains by position."""
    by_context = context_losses(losses, rows, lengths, LAST)
    found = [
        ("context", length, i, float(one)) for length, values in by_context.items() for i, one in enumerate(values)
    ]
    return [*found, *(("position", lengths[-1], at, value) for at, value in position_losses(losses, rows, BIN).items())]


def drawn(length: int, count: int, seed: int) -> Int[np.ndarray, "B T+1"]:
    """Returns chains of `length` symbols, each with the one that follows."""
    draw = jax.vmap(lambda key: Markov().example(key, jnp.int32(length), length))
    examples = jax.jit(draw)(jax.random.split(jax.random.key(seed), count))
    inputs, targets = np.asarray(examples.inputs), np.asarray(examples.targets)
    return np.concatenate([inputs, targets[:, -1:]], axis=1).astype(np.int32)
