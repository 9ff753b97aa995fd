"""Training: our scan over steps, of few padded sizes and with data made on the device, against the loops of `loops.py`.

    Ruoss-style    2,000 steps of lengths 1 .. 40, compilation included: padding costs steps, a shape per length programs
    nanodo-style   a step of T = 64 in steady state: what dispatch, host batches, padding and the model's own code cost

Ours are the steps of every run: without the padding that a part of a batch does not need, and of the last layer only what
targets ask for, see `attnjax.train.batching`. The peers' loops have neither.

The peers train `linen.Transformer`: the same function of the same number of parameters, which is asserted on a batch, for
the loss and for every gradient. Optimizer, batch and distribution of lengths are the same too.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attnjax.config import RunConfig, parse
from attnjax.tasks.forms import Sequences
from attnjax.train import data
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from attnjax.typing import Array
from experiments.speed.harness import Settings, agree, config_of, random_parameters, sizes_of
from experiments.speed.peers import linen, loops
from experiments.speed.timing import cold, counted, timed

STEPS = 2000
TASK = "missing_duplicate_string"
LINKS = 2
"""Tokens of a sequence beside its input: the separator, and the answer."""
SAME = "the peer's model, in flax linen, is the same function of equally many parameters"
POOL = 16
"""Batches that the host keeps ready for the nanodo-style loop."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a model and its batches: lengths are 1 .. `lengths` for the Ruoss-style loop, T is `tokens` for the other."""

    layers: int
    model: int
    batch: int = 128
    lengths: int = 40
    tokens: int = 64
    block: int = 20

    def __str__(self) -> str:
        return f"{self.layers} layers, d {self.model}"


FULL = (Size(2, 64), Size(4, 128))
SMOKE = (Size(1, 16, batch=16, lengths=2, tokens=6, block=20),)


def training(settings: Settings) -> None:
    """Rows of all sizes against both loops."""
    for size in SMOKE if settings.smoke else FULL:
        with cold(quick=settings.smoke):
            error = same_step(config(size, size.tokens - LINKS, stride=size.block))
        for against in (against_ruoss, against_nanodo):
            with cold(quick=settings.smoke):
                against(settings, size, error)


@dataclasses.dataclass
class Lap:
    """A loop that goes on for `turns` turns when it is called, and the losses that it had in each call."""

    loop: Iterator[Array]
    turns: int = 1
    losses: list[list[Array]] = dataclasses.field(default_factory=list)

    def __call__(self) -> list[Array]:
        self.losses.append(list(itertools.islice(self.loop, self.turns)))
        return self.losses[-1]

    def __str__(self) -> str:
        first, last = (float(np.mean(jax.device_get(self.losses[i]))) for i in (0, -1))
        return f"{first:.2f} to {last:.2f}"


def against_ruoss(settings: Settings, size: Size, error: float) -> None:
    """Time of 2,000 steps from nothing, of a step without compilation, and the number of programs."""
    run = config(size, size.lengths, stride=size.lengths, length_per="batch")
    loop = loops.ruoss_style(peer(run), loops.every_length(1, size.lengths), log_every=size.lengths)
    mine, theirs = Lap(ours(run)), Lap(loop, size.lengths)
    with counted() as our_programs:
        our_first = timed(mine)()
    with counted() as their_programs:
        their_first = timed(theirs)()
    taken = race(settings, mine, theirs, warm=0)
    totals = [
        whole(first, times, STEPS, size.lengths) for first, times in zip((our_first, their_first), taken, strict=True)
    ]
    common: dict[str, Any] = {"suite": "training", "ours": "four padded sizes, scan", "peer": "Ruoss-style loop"}
    common |= {"sizes": sizes_of(run, B=size.batch, T=size.lengths + LINKS), "error": error}
    lengths = f"of lengths 1..{size.lengths}"
    note = (
        f"the first {size.lengths} steps (the peer's: one of each length) are measured once, with compilation: "
        f"{our_first:.3g} s and {their_first:.3g} s; the others are {size.lengths} steps of every round, repeated; {SAME}"
    )
    case = f"{size}, {STEPS:,} steps {lengths}, compilation included"
    settings.row(*totals, case=case, goal=5.0, note=note, **common)
    note = f"ours pads to the next of four sizes, the peer has none to pad; {learned(mine, theirs)}"
    settings.row(*taken, case=f"{size}, {size.lengths} steps {lengths}, steady state", note=note, **common)
    programs = [float(len(our_programs))], [float(len(their_programs))]
    common["error"] = None
    settings.row(*programs, unit="programs", case=f"{size}, programs compiled", **common)


def against_nanodo(settings: Settings, size: Size, error: float) -> None:
    """Time of some steps of one shape, once everything is compiled."""
    run = config(size, size.tokens - LINKS, stride=size.block)
    loop = loops.nanodo_style(peer(run), loops.from_host(examples(run), size.batch), log_every=size.block)
    mine, theirs = Lap(ours(run)), Lap(loop, size.block)
    taken = race(settings, mine, theirs, warm=1)
    common: dict[str, Any] = {"suite": "training", "ours": "scan, data on the device", "peer": "nanodo-style loop"}
    common |= {"sizes": sizes_of(run, B=size.batch, T=size.tokens), "error": error}
    case = f"{size}, {size.block} steps of T = {size.tokens}, steady state"
    note = (
        f"the peer's batches are ready in memory, without a tokenizer or workers; it pads all to T = {size.tokens}, ours to "
        f"the next of four sizes; {SAME}; {learned(mine, theirs)}"
    )
    settings.row(*taken, case=case, goal=1.3, note=note, **common)


def race(settings: Settings, mine: Lap, theirs: Lap, *, warm: int) -> tuple[list[float], list[float]]:
    """Seconds of both in each round."""
    taken = settings.race({"ours": timed(mine), "peer": timed(theirs)}, warm=warm)
    return taken["ours"], taken["peer"]


def learned(mine: Lap, theirs: Lap) -> str:
    """What both learned meanwhile."""
    return f"the loss went from {mine}, the peer's from {theirs}"


def config(size: Size, longest: int, stride: int, **task: Any) -> RunConfig:
    """A run of this size on lengths 1 .. longest, logged every `stride` steps."""
    train = {"batch": size.batch, "learning_rate": 3e-3, "steps": STEPS, "log_every": stride}
    return parse(config_of(size.layers, size.model, {"name": TASK, "length_max": longest, **task}, train=train))


def ours(run: RunConfig) -> Iterator[Array]:
    """Our loop: each turn is `log_every` steps of one program, and yields their losses."""
    trainer, population = Trainer(run, make_task(run)), members([run])
    state = trainer.start(population)
    while True:
        state, metrics = trainer.advance(state, population, run.train.log_every)
        yield metrics.loss[0]


def peer(run: RunConfig) -> loops.Problem:
    """The problem of a run for the loops of others."""
    task = make_task(run)
    sizes = {name: getattr(run.model, name) for name in ("model", "layers", "heads", "hidden")}
    model, train = linen.Transformer(Trainer(run, task).model.config.vocab, **sizes), run.train

    def sample(key: Array, length: int) -> loops.Batch:
        lengths = jnp.full((train.batch,), length, jnp.int32)
        return batch_of(data.sequences(run, task, key, lengths, length, training=True))

    optimizer = optax.chain(
        optax.clip_by_global_norm(train.clip or math.inf),
        optax.adamw(train.learning_rate, train.b1, train.b2, train.epsilon, weight_decay=train.weight_decay),
    )
    init = lambda key: model.init(key, jnp.zeros((1, 1), jnp.int32))
    apply: Any = model.apply
    return loops.Problem(init, apply, optimizer, sample)


def batch_of(made: Any) -> loops.Batch:
    """What a plain loop reads of sequences in the decoder's form: padding is behind, so a causal mask suffices."""
    assert isinstance(made, Sequences)
    return loops.Batch(made.tokens, made.targets, made.mask)


def same_step(run: RunConfig) -> float:
    """The largest relative difference of loss and gradients between us and the peer, with the same parameters and batch.

    Raises ValueError where it is too large.
    """
    trainer = Trainer(run, make_task(run))
    params = random_parameters(trainer.shapes().params)
    batch = jax.jit(lambda: data.batch(run, trainer.task, jnp.uint32(0), jnp.int32(0)))()
    ours = jax.jit(lambda params: trainer.gradient(params, batch))
    theirs = jax.jit(lambda params: jax.value_and_grad(peer(run).loss)(params, batch_of(batch)))
    (loss, _), gradient = ours(params)
    return agree("training", (loss, linen.from_ours(gradient)), theirs(linen.from_ours(params)))


def examples(run: RunConfig) -> loops.Batch:
    """Examples on the host, as many as `POOL` batches."""
    make = jax.jit(lambda step: batch_of(data.batch(run, make_task(run), jnp.uint32(run.data_seed), step)))
    made = [jax.device_get(make(np.int32(step))) for step in range(POOL)]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *made)


def whole(first: float, blocks: list[float], steps: int, block: int) -> list[float]:
    """Seconds of `steps` steps, of which the first `block` took `first` and any other `block` what each round measured."""
    return [first + (steps - block) / block * taken for taken in blocks]
