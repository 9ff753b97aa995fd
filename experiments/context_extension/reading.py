"""Trained runs read by a method: the loss of every token, factors of LongRoPE, and a few steps of fine-tuning."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from flax import nnx

from attnjax.config import TrainConfig
from attnjax.evaluation.extension import extended
from attnjax.evaluation.loaded_model import LoadedModel, load
from attnjax.modules import Decoder
from attnjax.sweep import load as load_sweep
from attnjax.train.optimizer import apply_gradient, optimizer, schedule
from attnjax.typing import Array, Float, Int, PyTree
from experiments.context_extension.factors import searched

FACTOR = 8
"""The longest length over the trained one."""
COLUMNS = ("run", "seed", "method", "stage", "measure", "length", "place", "value")
"""Of the records: `place` is a depth, a bin of positions or a chain."""
Tokens = Int[np.ndarray, "B T+1"]
Losses = Callable[[Tokens], Float[np.ndarray, "B T"]]


def runs_of(folder: pathlib.Path) -> list[LoadedModel]:
    """Returns the runs of a sweep. Raises ValueError where one is not done, since the comparison is of all."""
    store = load_sweep(folder)
    unfinished = [entry.run for entry in store.runs if store.status(entry.run).state != "done"]
    if unfinished:
        raise ValueError(f"{folder} has {len(unfinished)} runs that are not done")
    return [load(store.directory(entry.run)) for entry in store.runs]


def decoder_of(run: LoadedModel) -> Decoder:
    """Returns the model of a run. Raises ValueError for one that is no decoder."""
    model = run.module()
    if not isinstance(model, Decoder):
        raise ValueError(f"{run.name} is no decoder")
    return model


def read_by(method: str, model: Decoder, trained: int, factors: tuple[float, ...]) -> Decoder:
    """Returns the model under a method; `factors` are those of LongRoPE."""
    options: dict[str, Any] = {"factors": factors} if method == "longrope" else {}
    return model if method == "none" else extended(model, method, trained=trained, factor=FACTOR, **options)


def factors_of(model: Decoder, rows: Tokens, trained: int) -> tuple[float, ...]:
    """Returns factors of LongRoPE, searched on the first of these rows."""
    rows = rows[:, :-1]
    return searched(model, rows.reshape(-1).tolist(), rows.shape[1], trained=trained, factor=FACTOR)


def scored(model: Decoder, rows: Tokens, most: int = 16_384) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cross-entropy of each token but the first in nats, and whether it is the likeliest, `most` tokens a call."""
    graph, params = nnx.split(model, graph=False)
    size, parts = max(1, most // (rows.shape[1] - 1)), []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        full = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])
        parts.append([np.asarray(x, np.float64)[: len(part)] for x in _scored(graph, params, full)])
    loss, right = (np.concatenate(x) for x in zip(*parts, strict=True))
    return loss, right


@functools.partial(jax.jit, static_argnames="graph")
def _scored(graph: Any, params: PyTree, rows: Int[Array, "B T+1"]) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    logits, targets = nnx.merge(graph, params)(rows[:, :-1]).astype(jnp.float32), rows[:, 1:]
    right = jax.lax.argmax(logits, 2, jnp.int32) == targets.astype(jnp.int32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets), right.astype(jnp.float32)


def fine_tuned(model: Decoder, batches: Int[np.ndarray, "N B T+1"], rate: float) -> Decoder:
    """Returns the model after a step of Adam on each batch: a tenth of them warm up, then half a cosine to 0."""
    graph, params = nnx.split(model, graph=False)
    steps = len(batches)
    config = TrainConfig(steps=steps, learning_rate=rate, warmup=steps // 10, schedule="cosine")
    state, relative = optimizer(config)(rate, 0.0).init(params), schedule(config)
    for step, batch in enumerate(batches):
        params, state = _step(graph, config, params, state, rate * jnp.float32(relative(step)), batch)
    return nnx.merge(graph, params)


@functools.partial(jax.jit, static_argnames=("graph", "config"))
def _step(
    graph: Any, config: TrainConfig, params: PyTree, state: PyTree, rate: Float[Array, ""], batch: Int[Array, "B T+1"]
) -> tuple[PyTree, PyTree]:
    gradient = jax.grad(lambda p: _scored(graph, p, batch)[0].mean())(params)
    return apply_gradient(optimizer(config), gradient, state, params, rate, jnp.float32(0))


def context_losses(losses: Losses, rows: Tokens, lengths: tuple[int, ...], last: int) -> dict[int, np.ndarray]:
    """Returns by length the loss of the last tokens of each row, with windows of that length that all end with the row."""
    return {length: losses(rows[:, -length - 1 :])[:, -last:].mean(1) for length in lengths}


def position_losses(losses: Losses, rows: Tokens, size: int) -> dict[int, float]:
    """Returns the mean loss of whole rows by position, from the start of each bin of `size`."""
    mean = losses(rows).mean(0)
    return {start: float(mean[start : start + size].mean()) for start in range(0, len(mean), size)}


def measured(path: pathlib.Path) -> set[tuple[str, str, str]]:
    """Returns (run, method, stage) of what the records hold."""
    if not path.is_file():
        return set()
    return set(map(tuple, pd.read_csv(path, keep_default_na=False)[["run", "method", "stage"]].values.tolist()))


def append(path: pathlib.Path, key: tuple[str, int, str, str], rows: list[tuple[str, int, float, float]]) -> None:
    """Adds the rows (measure, length, place, value) of one run, seed, method and stage to the records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame([(*key, *row) for row in rows], columns=COLUMNS)
    table.to_csv(path, mode="a", header=not path.is_file(), index=False, float_format="%.5g")
