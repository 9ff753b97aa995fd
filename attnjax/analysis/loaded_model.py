"""A language model with its parameters, as functions of tokens, each compiled once for each shape.

`load("runs/stdlib_lm/0123456789abcdef")` is the newest sound checkpoint of a trained run, `LoadedModel(model)` any Decoder or
Encoder; `subject.weights(tokens)` are its attention weights [L, B, N, T, T].
"""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from attnjax.config import RunConfig
from attnjax.modules import Decoder, Encoder
from attnjax.records.runs import folder_of, read_config
from attnjax.sweep import find_run
from attnjax.tasks.base import Task
from attnjax.train import checkpoint
from attnjax.train.loop import CHECKPOINTS, make_task
from attnjax.train.step import Trainer
from attnjax.typing import Array, Float, Int, PyTree


class LoadedModel:
    """A model with its parameters, and if it was trained here, its run and its task.

    `tokens` are [B, T]; `gate` is a factor of each head's output, [L, N] or [L, B, N]. For a trained run, `step` is the
    step of its parameters, and `damaged` lists newer checkpoints that could not be used, with the reason for each.

    For tokens beyond the end of a learned table of positions, the encoding raises ValueError.
    """

    def __init__(
        self,
        model: Decoder | Encoder,
        name: str = "model",
        run: RunConfig | None = None,
        task: Task | None = None,
        step: int | None = None,
        damaged: tuple[tuple[int, str], ...] = (),
    ):
        self.name, self.run, self.task, self.config = name, run, task, model.config
        self.step, self.damaged = step, damaged
        self.graph, self.params = nnx.split(model, graph=False)

    @property
    def layers(self) -> int:
        """The number of layers L."""
        return self.config.layers

    @property
    def heads(self) -> int:
        """The number of heads N of each layer."""
        return self.config.heads

    def weights(self, tokens: Int[Array, "B T"], gate: Float[Array, "L *B N"] | None = None) -> Array:
        """Attention weights [L, B, N, T, T]: row t of a head is those of position t over the keys that it sees."""
        return _call(self.graph, "weights", self.params, tokens, gate)

    def hidden_states(self, tokens: Int[Array, "B T"], gate: Float[Array, "L *B N"] | None = None) -> Array:
        """The inputs of all layers, and the features after the last one: [L + 1, B, T, D]."""
        return _call(self.graph, "hidden_states", self.params, tokens, gate)

    def logits(self, tokens: Int[Array, "B T"], gate: Float[Array, "L *B N"] | None = None) -> Array:
        """Logits over the vocabulary [B, T, V]."""
        return _call(self.graph, "__call__", self.params, tokens, gate)

    def losses(self, tokens: Int[Array, "B T"], gate: Float[Array, "L *B N"] | None = None) -> Array:
        """Cross-entropy in nats of each next token, [B, T - 1]: entry t is that of token t + 1 given those up to t."""
        return next_token_losses(self.logits(tokens, gate), tokens)


def next_token_losses(logits: Float[Array, "B T V"], tokens: Int[Array, "B T"]) -> Float[Array, "B T-1"]:
    """Cross-entropy in nats of token t + 1 under the logits at t."""
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1].astype(jnp.float32), tokens[:, 1:])


def load(directory: str | pathlib.Path) -> LoadedModel:
    """The model of a trained run, at its newest sound checkpoint. Nothing in the folder is changed.

    `directory` is the run's folder, or a description of the run, such as "heads_lm/rope/0": see `attnjax.sweep.find`.

    Raises ValueError if it describes no run or several, if the folder is a link or holds no run or no sound checkpoint, and
    for models with an encoder and a decoder; OSError if a file cannot be read.
    """
    directory = find_run(directory)
    run = read_config(directory)
    if run.task.form == "encoder_decoder":
        raise ValueError(f"{directory} holds an encoder-decoder; the analysis takes an encoder or a decoder")
    task = make_task(run)
    trainer = Trainer(run, task)
    found = checkpoint.restore(folder_of(directory) / CHECKPOINTS, trainer.shapes())
    if found is None:
        raise ValueError(
            f"{directory} holds no checkpoint that can be read: train the run first, or see its status.json"
        )
    params = jax.tree.map(jnp.asarray, found.state.params)
    model: Any = trainer.model.module(params)
    return LoadedModel(model, directory.name, run, task, found.step, found.damaged)


@functools.partial(jax.jit, static_argnames=("graph", "method"))
def _call(graph: Any, method: str, params: PyTree, tokens: Array, gate: Array | None) -> Array:
    return getattr(nnx.merge(graph, params), method)(tokens, gate=gate)
