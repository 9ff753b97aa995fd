"""One training step as a pure function, and a population of runs that trains in one compiled program.

The members of a population differ in data alone: seeds, learning rate, weight decay, and the numeric options of their
encoding (the base of RoPE, the slopes of ALiBi) where the encodings compile to one program. The program loops over steps and
maps over members, vmapped or one after another, so that a sweep compiles once per shape, however many steps a call takes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from attnjax.config import RunConfig
from attnjax.positions import PositionEncoding
from attnjax.tasks.base import Task
from attnjax.tasks.forms import SequencePair, Sequences, target_of
from attnjax.train import batching, mesh as mesh_
from attnjax.train.data import batch
from attnjax.train.model import Model, build, numbers_of
from attnjax.train.optimizer import apply_gradient, optimizer, schedule
from attnjax.train.streams import stream
from attnjax.typing import Array, Float, Int, PyTree, UInt32

LONGEST = 1000
"""Steps of one call at most: the metrics of so many are returned."""


class State(NamedTuple):
    """The training state of one run."""

    params: PyTree
    optimizer: Any
    step: Int[Array, ""]


class Member(NamedTuple):
    """The data in which the runs of a population differ: scalars, or arrays [P] of a whole population."""

    seed: UInt32[Array, ""]
    data_seed: UInt32[Array, ""]
    learning_rate: Float[Array, ""]
    weight_decay: Float[Array, ""]
    encoding: PyTree = None


def members(runs: Sequence[RunConfig]) -> Member:
    """Return the members of a population, stacked [P]. Raises ValueError where their encodings differ in structure."""
    # Arrays of NumPy go to the device as they are; a list would be a program of its own, to be compiled first.
    numbers = lambda values, dtype: jnp.asarray(np.asarray(values, dtype))
    rates = lambda name: numbers([getattr(run.train, name) for run in runs], np.float32)
    seed, data_seed = (numbers([getattr(run, name) for run in runs], np.uint32) for name in ("seed", "data_seed"))
    return Member(seed, data_seed, rates("learning_rate"), rates("weight_decay"), numbers_of(runs))


def abstract_member(run: RunConfig) -> Member:
    """Return the abstract member (ShapeDtypeStructs) of a population in which this run trains."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), members([run]))


class Metrics(NamedTuple):
    """Mean cross-entropy (nats) and accuracy per counted token of one step, and the global norm of the gradient."""

    loss: Float[Array, ""]
    accuracy: Float[Array, ""]
    gradient_norm: Float[Array, ""]


class Trainer:
    """The compiled functions of all runs that share a shape. It holds programs and a corpus on the device, and no state.

    Args:
      run, task: what is trained; the task on its training split.
      mesh: the devices; None for one.
      encoding: in place of the run's own, see `train.model.encoding_of`.
    """

    def __init__(
        self,
        run: RunConfig,
        task: Task,
        mesh: jax.sharding.Mesh | None = None,
        encoding: PositionEncoding | None = None,
    ):
        platform = mesh_.platform_of(mesh)
        self.run, self.task, self.mesh = run, task, mesh
        self.model: Model = build(run, task, encoding)
        self.zigzag = mesh_.is_zigzag(run.task.form, self.model.config.encodings, mesh)
        self.optimizer, self.schedule = optimizer(run.train, run.optimizer), schedule(run.train)
        # Devices that share a batch have rows of all lengths, which buckets would sort over all of them, and vmapped members,
        # whose gradients are summed over devices at once.
        apart = mesh is None or mesh.size == mesh.shape[mesh_.MEMBERS]
        self.batching = batching.choose_batching(run, task, platform) if apart else batching.Batching()
        self.in_turn = apart and batching.members_in_turn(run, task, platform, self.batching)
        self.max_targets = batching.max_targets(run, task, run.task.length_max)
        self.start = jax.jit(jax.vmap(self._start), compiler_options=mesh_.compiler_options(platform, 0))
        self.program = mesh_.over_devices(self._advance, mesh, (True, True, False, False), (0, 1))
        self._compiled = jax.jit(self.program, donate_argnums=0, compiler_options=mesh_.compiler_options(platform))

    @functools.cached_property
    def _arrays(self) -> tuple[Array, ...]:
        """The corpus that examples are cut from, on the device from the first step on."""
        return jax.device_put(self.task.arrays)

    def shapes(self) -> State:
        """Return the abstract state (ShapeDtypeStructs) of one run. Nothing is compiled."""
        return jax.eval_shape(self._start, abstract_member(self.run))

    def arguments(self, count: int) -> tuple[State, Member, PyTree, Any]:
        """Return the abstract arguments of `program` for a population of this size: states, members, corpus, steps."""
        lead = lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype)
        states, members = jax.tree.map(lead, (self.shapes(), abstract_member(self.run)))
        corpus = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self.task.arrays)
        return states, members, corpus, jax.ShapeDtypeStruct((), np.int32)

    def _start(self, member: Member) -> State:
        params = self.model.init(stream(member.seed, "parameters"))
        made = self.optimizer(member.learning_rate, member.weight_decay)
        return State(params, made.init(params), jnp.int32(0))

    def advance(self, state: State, members: Member, count: int) -> tuple[State, Metrics]:
        """Return the states [P, ...] after `count` steps of every member, and their metrics [P, count] on the host.

        The count is data: one program serves every count from 1 to `LONGEST`, and its result does not depend on how steps
        are parted among calls. Raises ValueError for other counts.
        """
        if not 1 <= count <= LONGEST:
            raise ValueError(f"count must be 1 .. {LONGEST}, got {count}")
        state, logged = self._compiled(state, members, self._arrays, np.int32(count))
        return state, jax.tree.map(lambda rows: rows[:count].T, mesh_.on_host(logged, self.mesh))

    def _advance(
        self, state: State, members: Member, arrays: tuple[Array, ...], count: Int[Array, ""]
    ) -> tuple[State, Metrics]:
        """Return the states after `count` steps, and metrics [LONGEST, P] of which the first `count` rows are written."""
        chex.assert_equal_shape_prefix([*jax.tree.leaves(state), *jax.tree.leaves(members)], 1)
        one = lambda state, member: self.step(state, member, *arrays)
        # vmap is inside the loop, because the vmap of a loop traces its body twice: once for one member, once for all.
        each = jax.vmap(one)
        if self.in_turn:
            each = lambda *members: jax.lax.map(lambda member: one(*member), members)
        rows = lambda dtype: jnp.zeros((LONGEST, *members.seed.shape), dtype)
        empty = Metrics(rows(jnp.float32), rows(jnp.float32), rows(_norm_dtype(state.params)))
        empty = mesh_.varying_over_members(empty, self.mesh)

        def one_step(i: Int[Array, ""], carry: tuple[State, Metrics]) -> tuple[State, Metrics]:
            state, metrics = each(carry[0], members)
            write = lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, i, 0)
            return state, jax.tree.map(write, carry[1], metrics)

        return jax.lax.fori_loop(jnp.int32(0), count, one_step, (state, empty))

    def step(self, state: State, member: Member, *arrays: Array) -> tuple[State, Metrics]:
        """Return the state of one run after one update, and its metrics; `arrays` is the corpus of the task, if it has one."""
        chex.assert_rank((state.step, *member[:4]), 0)
        whole = batch(self.run, self.task.given(*arrays), member.data_seed, state.step)
        rows = mesh_.rows_of_device(whole, self.mesh)
        sequences = mesh_.tokens_of_device(rows, self.mesh, zigzag=self.zigzag)
        key = jax.random.fold_in(stream(member.seed, "dropout"), state.step) if self.run.model.drops else None
        found = self.gradient(state.params, sequences, key, member.encoding, _counted(whole))
        # The gradient is summed already, because parameters are the same on all devices that share a batch.
        (value, accuracy), gradient = mesh_.sum_over_batch(found[0], self.mesh), found[1]
        with jax.numpy_dtype_promotion("standard"):
            rate = member.learning_rate * jnp.asarray(self.schedule(state.step), jnp.float32)
        params, new = apply_gradient(self.optimizer, gradient, state.optimizer, state.params, rate, member.weight_decay)
        norm = optax.tree.norm(gradient).astype(_norm_dtype(params))
        return State(params, new, state.step + 1), Metrics(value, accuracy, norm)

    def gradient(
        self,
        params: PyTree,
        sequences: Sequences | SequencePair,
        key: Array | None = None,
        numbers: PyTree = None,
        total: Float[Array, ""] | None = None,
    ):
        """Return ((loss, accuracy), gradient of the loss), summed over microbatches.

        `total`: of how many tokens that count these are a part; of themselves unless given.
        """
        total = _counted(sequences) if total is None else total
        nothing = mesh_.varying_over_members(jnp.zeros((), jnp.float32), self.mesh)

        def of(part: Sequences | SequencePair, i: Int[Array, ""] | int, capacity: int | None):
            mine = key if key is None or self.batching.microbatches == 1 else jax.random.fold_in(key, i)
            shares = lambda params: self._shares(params, part, mine, numbers, total, capacity)
            return jax.value_and_grad(shares, has_aux=True)(params)

        zero = (nothing, nothing), jax.tree.map(jnp.zeros_like, params)
        return batching.sum_over_microbatches(of, sequences, self.batching, zero, max_targets=self.max_targets)

    def _shares(
        self,
        params: PyTree,
        sequences: Sequences | SequencePair,
        key: Array | None,
        numbers: PyTree,
        total: Float[Array, ""],
        capacity: int | None,
    ):
        """Return these examples' share of loss and accuracy of a batch in which `total` tokens count.

        `capacity`: how many targets of an example are gathered, see `batching.gather_targets`.
        """
        params = mesh_.varying_over_batch(params, self.mesh)
        model, places = functools.partial(self.model.apply, params), {"mesh": self.mesh, "zigzag": self.zigzag}
        target, logits = target_logits(model, sequences, key, numbers, capacity, **places)
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, target.targets)
        right = (jax.lax.argmax(logits, logits.ndim - 1, jnp.int32) == target.targets).astype(jnp.float32)
        weight = target.mask.astype(jnp.float32)
        return (entropy * weight).sum() / total, (right * weight).sum() / total


def target_logits(
    model: Callable[..., Float[Array, "B T V"]],
    sequences: Sequences | SequencePair,
    key: Array | None,
    numbers: PyTree,
    capacity: int | None,
    *,
    mesh: jax.sharding.Mesh | None,
    zigzag: bool,
) -> tuple[Sequences, Float[Array, "B T V"]]:
    """Return the targets of these examples and their logits in float32, each device its own.

    `model` is `Model.apply` with its parameters. At most `capacity` targets of an example are gathered, see
    `batching.gather_targets`: not under dropout, which draws for every token, nor from tokens that are spread over devices.
    """
    axis_name = mesh_.axis_of_tokens(mesh)
    target, rows = batching.gather_targets(sequences, capacity if key is None and axis_name is None else None)
    index = mesh_.indices_of_tokens(target_of(sequences).tokens.shape[-1], mesh, zigzag=zigzag)
    logits = model(sequences, key, numbers, query_indices=rows, axis_name=axis_name, index=index)
    return target, logits.astype(jnp.float32)


def _norm_dtype(params: PyTree) -> Any:
    """Return the type of the gradient's norm: float32, or float64 where parameters are."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(jnp.float32, *jax.tree.leaves(params))


def _counted(sequences: Sequences | SequencePair) -> Float[Array, ""]:
    """Return the number of tokens that count, 1 where none do."""
    return jnp.maximum(target_of(sequences).mask.sum(dtype=jnp.float32), 1.0)
