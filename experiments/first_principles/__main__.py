"""Measure training with and without the scale factor, and attention beside an LSTM.

    python -m experiments.first_principles [--out FOLDER]

Takes some minutes on two cores, and writes records.json. `python -m experiments.study first_principles` makes the page.
"""

import argparse
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax import Mask
from attnjax.config import RunConfig, parse
from attnjax.modules import AttentionOptions, MultiHeadAttention
from attnjax.sweep import manifest
from attnjax.train.data import batch
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from attnjax.typing import Array, Float, PyTree
from experiments.speed.timing import interleaved, timed

SEEDS, STEPS, WARMUP, EVERY = (0, 1, 2), 200, 20, 10
UNSEEN = 10_000
"""The data seed of the batch on which attention is looked at."""
CHANNELS, HEADS, BATCH = 64, 4, 4
LENGTHS = (16, 64, 256, 1024, 2048)
REACHES = (2, 8, 32, 128, 256)
STARTS = 10
"""Random initialisations whose gradients are measured."""

Layer = Callable[[PyTree, Float[Array, "B T D"]], Float[Array, "B T D"]]


def main() -> None:
    """Measures both and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/first_principles"), help="folder")
    out = parser.parse_args().out
    here = manifest.of_machine()
    about = {
        "date": manifest.now()[:10],
        "processor": here["processor"],
        "cores": here["threads"],
        "jax": jax.__version__,
    }
    scale = {name: train(value) for name, value in (("with", None), ("without", 1.0))}
    seconds = {T: time_at(T) for T in LENGTHS}
    reach = {name: gradients(make) for name, make in kinds().items()}
    out.mkdir(parents=True, exist_ok=True)
    found = {"about": about, "scale": scale, "seconds": seconds, "reach": reach}
    (out / "records.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def config(scale: float | None, seed: int) -> RunConfig:
    """Returns the run of a decoder of two layers, with two heads of 64 channels, that copies 16 symbols."""
    task = {"name": "copy", "options": {"variant": "cmc", "symbols": 16}, "length_min": 16, "length_max": 16}
    model = {"layers": 2, "model": 64, "heads": 2, "head": 64, "hidden": 128, "encoding": "rope", "scale": scale}
    train = {"steps": STEPS, "batch": 32, "learning_rate": 2e-3, "schedule": "constant", "warmup": WARMUP}
    return parse({"name": "scale", "task": task, "model": model, "train": train, "seed": seed, "data_seed": seed})


def train(scale: float | None) -> dict[str, list[list[float]]]:
    """Returns entropy and largest weight at every tenth step, and the mean loss of the ten steps before, by seed."""
    runs = [config(scale, seed) for seed in SEEDS]
    trainer, population = Trainer(runs[0], make_task(runs[0])), members(runs)
    state = trainer.start(population)
    unseen = batch(runs[0], trainer.task, jnp.uint32(UNSEEN), jnp.int32(0))
    look = jax.jit(jax.vmap(lambda params: spread(trainer, params, unseen)))
    looks, losses = [look(state.params)], []
    for _ in range(STEPS // EVERY):
        state, metrics = trainer.advance(state, population, EVERY)
        looks.append(look(state.params))
        losses.append(np.asarray(metrics.loss).mean(1))
    entropy, largest = (np.array([one[i] for one in looks], np.float64).T.tolist() for i in range(2))
    return {"entropy": entropy, "largest": largest, "loss": np.array(losses, np.float64).T.tolist()}


def spread(trainer: Trainer, params: PyTree, unseen: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Returns the mean entropy, as a share of its maximum, and the mean largest weight, of rows that see two keys or more."""
    model = trainer.model.module(params)
    weights = model.weights(unseen.tokens, pos=unseen.positions, mask=Mask(k_valid=unseen.valid))[..., 1:, :]
    most = jnp.log(jnp.arange(2, weights.shape[-1] + 1, dtype=jnp.float32))
    found = jax.scipy.special.entr(weights).sum(-1)
    return (found / jnp.broadcast_to(most, found.shape)).mean(), weights.max(-1).mean()


def attention(seed: int, implementation: Any = None) -> tuple[Layer, PyTree]:
    """Returns a layer of causal attention and its parameters."""
    options = AttentionOptions(implementation=implementation)
    graph, params = nnx.split(MultiHeadAttention(CHANNELS, HEADS, options=options, rngs=nnx.Rngs(seed)), graph=False)
    return lambda params, x: nnx.merge(graph, params)(x, mask=Mask(causal=True)), params


def lstm(seed: int, forget: float = 0.0) -> tuple[Layer, PyTree]:
    """Returns Flax's LSTM and its parameters; `forget` is the bias of its forget gate."""
    cell = nnx.OptimizedLSTMCell(CHANNELS, CHANNELS, rngs=nnx.Rngs(seed))
    bias = cell.dense_h.bias  # of input, forget, cell and output gate, in this order
    assert bias is not None
    bias[...] = bias[...].at[CHANNELS : 2 * CHANNELS].set(forget)
    graph, params = nnx.split(cell, graph=False)

    def call(params: PyTree, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        start = jnp.zeros((x.shape[0], CHANNELS), x.dtype)
        step = lambda carry, token: nnx.merge(graph, params)(carry, token)
        return jax.lax.scan(step, (start, start), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    return call, params


def kinds() -> dict[str, Callable[[int], tuple[Layer, PyTree]]]:
    """Returns the layers whose gradients are measured, as functions of a seed. Only "dense" has forward mode."""
    dense, open_gate = (lambda seed: attention(seed, "dense")), (lambda seed: lstm(seed, 1.0))
    return {"attention": dense, "LSTM": lstm, "LSTM, forget bias 1": open_gate}


def time_at(length: int) -> dict[str, float]:
    """Returns the median seconds of a forward and backward pass of each, taken in turns."""
    x, contenders = jax.random.normal(jax.random.key(length), (BATCH, length, CHANNELS)), {}
    for name, (call, params) in (("attention", attention(0)), ("LSTM", lstm(0))):
        loss = lambda params, x, call=call: jnp.square(call(params, x)).mean()
        contenders[name] = timed(jax.jit(jax.grad(loss, argnums=(0, 1))), params, x)
    return {name: float(np.median(taken)) for name, taken in interleaved(contenders, rounds=9, seconds=4.0).items()}


def gradients(make: Callable[[int], tuple[Layer, PyTree]]) -> dict[int, float]:
    """Returns the median norm, over seeds, of the derivative of the last output by the first token, over sqrt(channels).

    The layers are causal, so that one pass has all lengths.
    """
    call, T = make(0)[0], max(REACHES)
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(make(seed)[1] for seed in range(STARTS)))
    x = jax.random.normal(jax.random.key(0), (STARTS, T, CHANNELS))

    def one(params: PyTree, x: Float[Array, "T D"]) -> Float[Array, " T"]:
        outputs = lambda first: call(params, jnp.concatenate([first[None], x[1:]])[None])[0]
        derivative = jnp.abs(jax.jacfwd(outputs)(x[0]))
        # Squares of numbers below 1e-19 would be 0 in float32.
        top = derivative.max((1, 2))
        shares = derivative / jnp.where(top > 0, top, 1.0)[:, None, None]
        return top * jnp.sqrt(jnp.square(shares).sum((1, 2))) / jnp.float32(math.sqrt(CHANNELS))

    norms = np.median(np.asarray(jax.jit(jax.vmap(one))(params, x), np.float64), 0)
    return {reach: float(norms[reach - 1]) for reach in REACHES}


if __name__ == "__main__":
    main()
