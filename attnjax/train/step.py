"""One training step as a pure function, and many of them as one compiled program for a population of runs.

A member of a population differs from the others in data alone: its seeds, its rates, and the numbers of its encoding (the
base of RoPE, the slopes of ALiBi) where the encodings are one program. The program scans over steps and maps over members,
so that a sweep compiles once per shape and dispatches once per `count` steps.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attnjax.config import RunConfig
from attnjax.positions import EncodingParams
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair, Sequences, target_of
from attnjax.train import answers, compiling
from attnjax.train.data import batch
from attnjax.train.model import Model, build, numbers_of
from attnjax.train.optimizer import apply, optimizer, shape
from attnjax.train.parts import in_parts, parts
from attnjax.typing import Array, Float, Int, PyTree


class State(NamedTuple):
    """What changes from step to step, of one run."""

    params: PyTree
    optimizer: Any
    step: Int[Array, ""]


class Member(NamedTuple):
    """What distinguishes runs of one population."""

    seed: Int[Array, ""]
    data_seed: Int[Array, ""]
    learning_rate: Float[Array, ""]
    weight_decay: Float[Array, ""]
    encoding: EncodingParams = EncodingParams()


def members(runs: Sequence[RunConfig]) -> Member:
    """The members of a population, stacked. Raises ValueError where their encodings are different programs."""
    # Arrays of NumPy go to the device as they are; a list would be a program of its own, to be compiled first.
    numbers = lambda values, dtype: jnp.asarray(np.asarray(values, dtype))
    rates = lambda name: numbers([getattr(run.train, name) for run in runs], np.float32)
    seed, data_seed = (numbers([getattr(run, name) for run in runs], np.uint32) for name in ("seed", "data_seed"))
    return Member(seed, data_seed, rates("learning_rate"), rates("weight_decay"), numbers_of(runs))


def one_member(run: RunConfig) -> Member:
    """A member of a population that this run trains in, by shapes alone."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), members([run]))


class Metrics(NamedTuple):
    """Of one step: mean cross-entropy (nats) and accuracy per counted token, and the norm of the gradient."""

    loss: Float[Array, ""]
    accuracy: Float[Array, ""]
    gradient_norm: Float[Array, ""]


class Trainer:
    """The compiled functions of all runs that share a shape. Holds no state but the programs, and a corpus on the device."""

    def __init__(self, run: RunConfig, task: Task):
        self.run, self.task = run, task
        self.model: Model = build(run, task)
        self.optimizer, self.shape = optimizer(run.train), shape(run.train)
        self.parts, self.most = parts(run, task), answers.most(run, task, run.task.length_max)
        self.start = jax.jit(jax.vmap(self._start), compiler_options=compiling.once())
        options = compiling.often()
        self._compiled = jax.jit(self._advance, static_argnames="count", donate_argnums=0, compiler_options=options)

    @functools.cached_property
    def _arrays(self) -> tuple[Array, ...]:
        """What examples are cut from, on the device from the first step on."""
        return jax.device_put(self.task.arrays)

    def shapes(self) -> State:
        """The state of one run, by shapes alone: nothing is compiled."""
        return jax.eval_shape(self._start, one_member(self.run))

    def _start(self, member: Member) -> State:
        params = self.model.init(jax.random.key(member.seed))
        return State(params, self.optimizer.init(params), jnp.int32(0))

    def advance(self, state: State, members: Member, count: int) -> tuple[State, Metrics]:
        """`count` steps of every member: the new states, and metrics [P, count]."""
        return self._compiled(state, members, self._arrays, count=count)

    def _advance(self, state: State, members: Member, arrays: tuple[Array, ...], count: int) -> tuple[State, Metrics]:
        one = lambda state, member: self.step(state, member, *arrays)
        # Mapped inside the scan, because the map of a scan traces its body twice: once for one member, once for all.
        each = jax.vmap(one)
        if self.parts.sizes > 1:
            # One after another, because a choice of sizes that is mapped computes all of them.
            each = lambda *members: jax.lax.map(lambda member: one(*member), members)
        state, metrics = jax.lax.scan(lambda state, _: each(state, members), state, length=count)
        return state, jax.tree.map(lambda leaf: leaf.T, metrics)

    def step(self, state: State, member: Member, *arrays: Array) -> tuple[State, Metrics]:
        """One update of one run, on examples from `arrays` where the task has some."""
        sequences = batch(self.run, self.task.given(*arrays), member.data_seed, state.step)
        key = jax.random.fold_in(jax.random.key(member.seed), state.step) if self.run.model.drops else None
        (value, accuracy), gradient = self.gradient(state.params, sequences, key, member.encoding)
        # Optax mixes int32 counts and Python floats, which a caller's strict promotion would refuse.
        with jax.numpy_dtype_promotion("standard"):
            direction, new = self.optimizer.update(gradient, state.optimizer, state.params)
            share = jnp.asarray(self.shape(state.step), jnp.float32)
        rate = member.learning_rate * share
        params = apply(direction, state.params, rate, member.weight_decay)
        return State(params, new, state.step + 1), Metrics(value, accuracy, optax.tree.norm(gradient))

    def loss(
        self,
        params: PyTree,
        sequences: Sequences | SequencePair,
        key: Array | None = None,
        numbers: EncodingParams = EncodingParams(),
    ):
        """Mean cross-entropy over the counted tokens of the batch, and their accuracy."""
        return self._shares(params, sequences, key, numbers, _counted(sequences), self.most)

    def gradient(
        self,
        params: PyTree,
        sequences: Sequences | SequencePair,
        key: Array | None = None,
        numbers: EncodingParams = EncodingParams(),
    ):
        """((loss, accuracy), gradient of the loss), part by part."""
        total, nothing = _counted(sequences), jnp.zeros((), jnp.float32)

        def of(part: Sequences | SequencePair, i: Int[Array, ""] | int, most: int | None):
            mine = key if key is None or self.parts.groups == 1 else jax.random.fold_in(key, i)
            shares = lambda params: self._shares(params, part, mine, numbers, total, most)
            return jax.value_and_grad(shares, has_aux=True)(params)

        zero = (nothing, nothing), jax.tree.map(jnp.zeros_like, params)
        return in_parts(of, sequences, self.parts, zero, most=self.most)

    def _shares(
        self,
        params: PyTree,
        sequences: Sequences | SequencePair,
        key: Array | None,
        numbers: EncodingParams,
        total: Float[Array, ""],
        most: int | None,
    ):
        """What these examples have of loss and accuracy, where `total` tokens count in all, `most` of an example."""
        target, rows = answers.asked(sequences, most if key is None else None)
        logits = self.model.apply(params, sequences, key, numbers, rows=rows).astype(jnp.float32)
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, target.targets)
        right = (jax.lax.argmax(logits, logits.ndim - 1, jnp.int32) == target.targets).astype(jnp.float32)
        weight = target.mask.astype(jnp.float32)
        return (entropy * weight).sum() / total, (right * weight).sum() / total


def _counted(sequences: Sequences | SequencePair) -> Float[Array, ""]:
    """How many tokens count; 1 where none do."""
    return jnp.maximum(target_of(sequences).mask.sum(dtype=jnp.float32), 1.0)
