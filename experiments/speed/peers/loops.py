"""Training and testing as other code bases write it: small baselines with the habits of each, and nothing slower.

A training loop is an iterator over steps that yields their losses. What is trained, on what and by which optimizer is
the same for all of them and for us; how steps are compiled, fed and dispatched is what differs.
"""

import functools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from attnjax.typing import Array, ArrayLike, Bool, Float, Int, Key, PyTree


class Batch(NamedTuple):
    """What a step reads: tokens, the token that follows each, and which of those count."""

    tokens: Int[ArrayLike, "B T"]
    targets: Int[ArrayLike, "B T"]
    mask: Bool[ArrayLike, "B T"]


class Problem(NamedTuple):
    """What is trained. `sample(key, length)` draws a batch in which every example has this length, without padding."""

    init: Callable[[Key[Array, ""]], PyTree]
    apply: Callable[[PyTree, ArrayLike], Float[Array, "B T V"]]
    optimizer: optax.GradientTransformation
    sample: Callable[[Key[Array, ""], int], Batch]

    def loss(self, params: PyTree, batch: Batch) -> Float[Array, ""]:
        """Mean cross-entropy over the tokens that count."""
        entropy = optax.softmax_cross_entropy_with_integer_labels(self.apply(params, batch.tokens), batch.targets)
        weight = jnp.asarray(batch.mask).astype(jnp.float32)
        return (entropy * weight).sum() / jnp.maximum(weight.sum(), 1.0)

    def update(self, params: PyTree, state: Any, batch: Batch) -> tuple[PyTree, Any, Float[Array, ""]]:
        """One step of the optimizer."""
        loss, gradient = jax.value_and_grad(self.loss)(params, batch)
        direction, state = self.optimizer.update(gradient, state, params)
        return optax.apply_updates(params, direction), state, loss


def ruoss_style(problem: Problem, lengths: Iterable[int], *, log_every: int, seed: int = 0) -> Iterator[Array]:
    """After `experiments/training.py` of google-deepmind/randomized_positional_encodings.

    One length per batch, drawn on the host; the batch has the shape of its length, so the sampler and the update compile
    once for each. One call per step, nothing donated, the loss read at steps that are logged.
    """
    key = jax.random.key(seed)

    @functools.partial(jax.jit, static_argnames="length")
    def sample(step: Int[Array, ""], length: int) -> Batch:
        return problem.sample(jax.random.fold_in(key, step), length)

    update, params = jax.jit(problem.update), jax.jit(problem.init)(key)
    state = jax.jit(problem.optimizer.init)(params)
    for step, length in enumerate(lengths):
        params, state, loss = update(params, state, sample(np.uint32(step), length))
        if step % log_every == 0:
            float(loss)
        yield loss


def nanodo_style(problem: Problem, batches: Iterable[Batch], *, log_every: int, seed: int = 0) -> Iterator[Array]:
    """After `nanodo/train.py` of google-deepmind/nanodo.

    One jitted step with the state donated, at one padded length; each batch comes from the host. The next step is
    dispatched before the loss of the last one is read.
    """

    @functools.partial(jax.jit, donate_argnames="state")
    def step(state: tuple[PyTree, Any], batch: Batch) -> tuple[tuple[PyTree, Any], Array]:
        params, optimizer, loss = problem.update(*state, batch)
        return (params, optimizer), loss

    params = jax.jit(problem.init)(jax.random.key(seed))
    state, pending = (params, jax.jit(problem.optimizer.init)(params)), None
    for number, batch in enumerate(batches):
        state, loss = step(state, batch)
        if pending is not None and number % log_every == 0:
            float(pending)
        pending = loss
        yield loss


def every_length(low: int, high: int, *, seed: int = 0) -> Iterator[int]:
    """Lengths low .. high, first in their order, then again and again in a random one.

    Each is drawn as often as by a uniform choice, but without its luck: any high - low + 1 steps cost the same.
    """
    lengths, generator = list(range(low, high + 1)), random.Random(seed)  # noqa: S311 (no secret)
    while True:
        yield from lengths
        generator.shuffle(lengths)


def from_host(examples: Batch, size: int, *, seed: int = 0) -> Iterator[Batch]:
    """Batches of `size` rows of NumPy arrays, drawn with replacement."""
    generator = np.random.default_rng(seed)
    arrays = Batch(*(np.asarray(part) for part in examples))
    while True:
        rows = generator.integers(0, len(arrays.tokens), size)
        yield Batch(*(part[rows] for part in arrays))


def length_by_length(
    draw: Callable[[int], Any], measure: Callable[[PyTree, Any], PyTree], params: PyTree
) -> Callable[[int], PyTree]:
    """After `experiments/range_evaluation.py` of google-deepmind/randomized_positional_encodings.

    The function returned tests one length, at the shape of that length: sampler and model compile once for each.
    """
    drawn, measured = jax.jit(draw, static_argnums=0), jax.jit(measure)
    return lambda length: jax.device_get(measured(params, drawn(length)))
