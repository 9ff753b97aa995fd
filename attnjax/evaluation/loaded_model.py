"""A language model with its parameters, as functions of tokens, each compiled once for each shape.

`load("runs/stdlib_lm/0123456789abcdef")` is the newest sound checkpoint of a trained run, `LoadedModel(model)` any Decoder or
Encoder; `subject.weights(tokens)` are its attention weights [L, B, N, T, T].
"""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from attnjax.attention import Mask
from attnjax.config import RunConfig
from attnjax.modules import Decoder, Encoder
from attnjax.records.runs import folder_of, read_config
from attnjax.sweep import find_run
from attnjax.tasks.base import Task
from attnjax.train import checkpoint
from attnjax.train.loop import CHECKPOINTS, make_task
from attnjax.train.step import Trainer
from attnjax.typing import Array, Bool, Float, Int, PyTree


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
        self.name, self.run, self.task, self.step, self.damaged = name, run, task, step, damaged
        self.config, self.layers, self.heads = model.config, model.config.layers, model.config.heads
        self.graph, self.params = nnx.split(model, graph=False)

    def weights(
        self,
        tokens: Int[Array, "B T"],
        gate: Float[Array, "L *B N"] | None = None,
        pos: Int[Array, "*L B T"] | None = None,
    ) -> Array:
        """Returns attention weights [L, B, N, T, T]: row t of a head is those of position t over the keys that it sees."""
        return _call(self.graph, "weights", self.params, tokens, gate=gate, pos=pos)

    def hidden_states(self, tokens: Int[Array, "B T"], gate: Float[Array, "L *B N"] | None = None) -> Array:
        """Returns the inputs of all layers, and the features after the last one: [L + 1, B, T, D]."""
        return _call(self.graph, "hidden_states", self.params, tokens, gate=gate)

    def logits(self, tokens: Int[Array, "B T"], gate: Float[Array, "L *B N"] | None = None) -> Array:
        """Returns logits over the vocabulary [B, T, V]."""
        return _call(self.graph, "__call__", self.params, tokens, gate=gate)

    def losses(self, tokens: Int[Array, "B T"], gate: Float[Array, "L *B N"] | None = None) -> Array:
        """Returns the cross-entropy in nats of each next token, [B, T - 1]: entry t is that of token t + 1."""
        return _losses(self.graph, self.params, tokens, gate)

    def module(self) -> Decoder | Encoder:
        """Returns the model with its parameters."""
        return nnx.merge(self.graph, self.params)

    def check_tokens(self, tokens: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
        """Returns the tokens as int32. Raises ValueError unless they are integers [B, T], T > 0, in the vocabulary."""
        tokens, vocab = np.asarray(tokens), self.config.vocab
        if tokens.ndim != 2 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
            raise ValueError(f"tokens must be integers [B, T], at least one, got {tokens.dtype}{list(tokens.shape)}")
        if not 0 <= tokens.min() <= tokens.max() < vocab:
            raise ValueError(
                f"tokens must be in 0..{vocab - 1} for {self.name}, got values in {tokens.min()}..{tokens.max()}"
            )
        return tokens.astype(np.int32)

    def visible_keys(self, length: int) -> Bool[np.ndarray, "T T"]:
        """Returns which keys each query of a text of this length sees. Raises ValueError if layers have different windows."""
        windows = set(self.config.layer_windows)
        if len(windows) > 1:
            raise ValueError(f"all layers of {self.name} must see equally far, got windows {self.config.windows}")
        causal = isinstance(self.module(), Decoder)
        span = Mask(causal=causal, window=windows.pop(), first=self.config.window_first).span
        left, right = (length if one is None else one for one in (span.left, span.right))
        index = np.arange(length)
        distance = index[:, None] - index
        return (distance >= -right) & ((distance <= left) | (index < span.first))


def next_token_losses(logits: Float[Array, "B T V"], tokens: Int[Array, "B T"]) -> Float[Array, "B T-1"]:
    """Returns the cross-entropy in nats of token t + 1 under the logits at t."""
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1].astype(jnp.float32), tokens[:, 1:])


def restore(path: str | pathlib.Path) -> tuple[Trainer, checkpoint.Restored]:
    """Returns what trained a run, and the run's newest sound checkpoint. Nothing in the folder is changed.

    `path` is the run's folder, or a description of the run, such as "heads_lm/rope/0": see `attnjax.sweep.find`.

    Raises ValueError if it describes no run or several, or if the folder is a link or holds no run or no sound checkpoint;
    OSError if a file cannot be read.
    """
    directory = find_run(path)
    run = read_config(directory)
    trainer = Trainer(run, make_task(run))
    found = checkpoint.restore(folder_of(directory) / CHECKPOINTS, trainer.shapes())
    if found is None:
        raise ValueError(
            f"{directory} holds no checkpoint that can be read: train the run first, or see its status.json"
        )
    return trainer, found


def load(path: str | pathlib.Path) -> LoadedModel:
    """Returns the model of a trained run, as `restore` finds it. Raises ValueError also for an encoder with a decoder."""
    directory = find_run(path)
    if read_config(directory).task.form == "encoder_decoder":
        raise ValueError(f"{directory} holds an encoder-decoder; the analysis takes an encoder or a decoder")
    trainer, found = restore(directory)
    model: Any = trainer.model.module(jax.tree.map(jnp.asarray, found.state.params))
    return LoadedModel(model, directory.name, trainer.run, trainer.task, found.step, found.damaged)


@functools.partial(jax.jit, static_argnames=("graph", "method"))
def _call(graph: Any, method: str, params: PyTree, tokens: Array, **options: Array | None) -> Array:
    return getattr(nnx.merge(graph, params), method)(tokens, **options)


@functools.partial(jax.jit, static_argnames="graph")
def _losses(graph: Any, params: PyTree, tokens: Array, gate: Array | None) -> Array:
    return next_token_losses(nnx.merge(graph, params)(tokens, gate=gate), tokens)
