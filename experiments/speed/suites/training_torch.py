"""Training in the steady state, against x-transformers under torch.compile: seconds of a step, compilation left out.

Both train a rotary decoder of the same layers, width, heads and hidden size with AdamW, on copying, 128 sequences of 64
tokens, no clipping and a constant rate. We draw a new batch inside each step, as always, and leave out padding and rows of
the last layer that no target depends on, see `attnjax.train.batching`; the peer is given the batches of our first steps, made
beforehand, and goes through them again and again, every token of them.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config import RunConfig, parse
from attnjax.tasks.forms import Sequences
from attnjax.train.data import batch
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from experiments.speed.harness import Settings, config_of, sizes_of
from experiments.speed.peers.torch_process import PeerError, TorchPeer, beside_torch, first_words
from experiments.speed.suites import COMPILED, EAGER

SUITE = "training_torch"
GOAL = 1.5
SIZES = ((2, 64), (4, 128))
"""Layers and width."""


@beside_torch
def training_torch(settings: Settings, peer: TorchPeer, known: dict[str, Any]) -> None:
    """One row for each size."""
    (T,) = settings.lengths(SUITE)
    for layers, width in ((1, 32),) if settings.smoke else SIZES:
        rows, steps = (4, 2) if settings.smoke else (128, 10)
        against(settings, peer, known, run_config(layers, width, rows, T), steps)


def run_config(layers: int, width: int, rows: int, T: int = 64) -> RunConfig:
    """Copying up to T / 2 - 1 tokens: begin, the tokens, separator, and the tokens again make T."""
    task = {"name": "copy", "length_min": 1, "length_max": T // 2 - 1, "begin": True}
    train = {"batch": rows, "clip": None}
    return parse(config_of(layers, width, task, train=train, model={"bias": False, "feed_forward_bias": True}))


def against(settings: Settings, peer: TorchPeer, known: dict[str, Any], run: RunConfig, steps: int) -> None:
    """The row of one size; a line in its place where one of the two does not end with a finite loss."""
    trainer = Trainer(run, make_task(run))
    sequences = _batches(trainer, steps)
    name, told, note = _prepare(peer, run, trainer.model.config.vocab, sequences, steps)
    ours, parameters, losses = _ours(trainer, steps)
    taken = settings.race({"ours": ours, "theirs": peer.run})
    case = f"{run.model.layers} layers, d {run.model.model}, one step, steady state"
    last = losses[-1], float(peer.results()["loss"][-1])
    if not np.isfinite(last).all():
        settings.say(
            f"{SUITE}: {case}: not measured, because the last losses are {last[0]} and, of the peer, {last[1]}"
        )
        return
    note = f"{parameters:,} parameters, the peer {told['parameters']:,}{note}; {steps} steps at a time"
    if trainer.batching.buckets > 1:
        note += (
            "; the peer computes every token, ours what targets depend on: "
            f"{trainer.batching.microbatches} groups of similar length, each at the next of {trainer.batching.buckets} sizes"
        )
    B, T = sequences.tokens.shape[1:]
    fields = {"case": case, "goal": GOAL, "note": note, "sizes": sizes_of(run, B=B, T=T, torch=known)}
    mine, theirs = ([seconds / steps for seconds in taken[side]] for side in ("ours", "theirs"))
    settings.row(mine, theirs, suite=SUITE, ours="scan, data on the device", peer=name, **fields)


def _batches(trainer: Trainer, steps: int) -> Sequences:
    """The batches of our first steps, [steps, B, T]."""
    draw = lambda step: batch(trainer.run, trainer.task, jnp.uint32(trainer.run.data_seed), step)
    made = jax.jit(jax.vmap(draw))(jnp.arange(steps, dtype=jnp.int32))
    assert isinstance(made, Sequences)
    return made


def _prepare(peer: TorchPeer, run: RunConfig, vocab: int, sequences: Sequences, steps: int):
    """The peer's name, what it says of itself, and a note: compiled, or eager where it cannot be compiled."""
    train = {name: getattr(run.train, name) for name in ("learning_rate", "b1", "b2", "epsilon")}
    model = {name: getattr(run.model, name) for name in ("layers", "model", "heads", "hidden")}
    case = {"kind": "training", "vocab": vocab, "steps": steps, "compile": True, **model, **train}
    targets = np.where(sequences.mask, sequences.targets, -100)
    arrays = {"tokens": np.asarray(sequences.tokens), "targets": targets}
    try:
        return COMPILED, peer.prepare(case, arrays), ""
    except PeerError as error:
        told = peer.prepare(case | {"compile": False}, arrays)
        return EAGER, told, f"; torch.compile failed: {first_words(error)}"


def _ours(trainer: Trainer, steps: int) -> tuple[Callable[[], float], int, list[float]]:
    """`steps` of our steps, how many numbers the model learns, and a list that fills with losses."""
    population = members([trainer.run])
    state, losses = trainer.start(population), []
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))

    def run() -> float:
        nonlocal state
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(trainer.advance(state, population, steps))
        seconds = time.perf_counter() - start
        losses.append(float(metrics.loss[0, -1]))
        return seconds

    return run, parameters, losses
