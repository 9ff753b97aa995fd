"""A few steps of training at another length, with the encoding of a method, and the search for factors of LongRoPE.

    params' = steps of Adam on windows of T tokens, warmed up over the first tenth, then half a cosine to 0

Every method gets the same windows and as many tokens in a step. Model without RoPE is tuned at the trained length, as its
authors do (recalibration); all others at the length that is to be reached.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attnjax.config.schema import TrainConfig
from attnjax.positions import NTKAware, PositionInterpolation
from attnjax.train import compiling
from attnjax.train.mesh import platform_of
from attnjax.train.optimizer import apply_gradient, optimizer, schedule
from attnjax.typing import Array, Float, Int, PyTree
from experiments.context_extension import methods
from experiments.context_extension.methods import Extension
from experiments.context_extension.subjects import Numbers, Subject

STEP = 1.5
"""A factor of LongRoPE is tried times and over this."""


class Tuned(NamedTuple):
    """Parameters after tuning, and the loss of every step before its update."""

    params: PyTree
    losses: Float[np.ndarray, " N"]


class Tuner:
    """The compiled step of subjects that share one config."""

    def __init__(self, subject: Subject, steps: int, rate: float):
        self.subject = subject
        config = TrainConfig(steps=steps, learning_rate=rate, warmup=steps // 10, schedule="cosine")
        self._rate, self._optimizer, self._schedule = rate, optimizer(config), schedule(config)
        self._step = jax.jit(
            self._update, donate_argnums=(0, 1), compiler_options=compiling.compile_default(platform_of(None))
        )

    def __call__(self, params: PyTree, numbers: Numbers, batches: Int[np.ndarray, "N B T+1"]) -> Tuned:
        """One step per batch; the parameters given stay as they are."""
        params = jax.tree.map(jnp.array, params)
        state, losses = self._optimizer(self._rate, 0.0).init(params), []
        for step, batch in enumerate(batches):
            params, state, loss = self._step(params, state, np.int32(step), numbers, batch)
            losses.append(loss)
        return Tuned(params, np.array(jax.device_get(losses), np.float64))

    def _update(
        self, params: PyTree, state: PyTree, step: Int[Array, ""], numbers: Numbers, batch: Int[Array, "B T+1"]
    ):
        loss, gradient = jax.value_and_grad(self.subject.loss)(params, numbers, batch)
        with jax.numpy_dtype_promotion("standard"):  # schedules of optax mix int32 counts and Python floats
            rate = jnp.asarray(self._schedule(step), jnp.float32) * self._rate
        return *apply_gradient(self._optimizer, gradient, state, params, rate, jnp.float32(0)), loss


def search(subject: Subject, extension: Extension, tokens: Int[np.ndarray, "B T+1"], rounds: int) -> tuple[float, ...]:
    """Factors of LongRoPE with a low loss on these windows, found pair by pair.

    The search starts from the best of PI, NTK and NTK-by-parts, as that of Ding et al. 2024 (section 3.3) does, and in each
    round tries every factor larger and smaller by `STEP`, between 1 and that many times the factor of the extension. Like
    theirs it keeps factors from falling with the wavelength. Without rounds the result is NTK-by-parts.
    """
    if not rounds:
        return methods.by_parts(subject.base, subject.head, extension)
    loss = functools.cache(functools.partial(_loss, subject, extension, tokens))
    best = min(starts(subject, extension), key=loss)
    for _ in range(rounds):
        before = best
        for pair in range(len(best)):
            best = min([best, *_neighbours(best, pair, STEP * extension.factor)], key=loss)
        if best == before:
            break
    return best


def starts(subject: Subject, extension: Extension) -> list[tuple[float, ...]]:
    """Where a search begins: the factors that other methods amount to."""
    pairs, theta = subject.base.pairs(subject.head)[0], subject.base.theta
    plain = PositionInterpolation(1.0).radians(pairs, theta)
    rules = (PositionInterpolation(extension.factor), NTKAware(extension.factor))
    found = [tuple(map(float, plain / rule.radians(pairs, theta))) for rule in rules]
    return [*found, methods.by_parts(subject.base, subject.head, extension)]


def _neighbours(factors: tuple[float, ...], pair: int, most: float) -> list[tuple[float, ...]]:
    """The factors with one of them changed, where they still do not fall and lie in 1 .. most."""
    found = []
    for value in (factors[pair] * STEP, factors[pair] / STEP):
        value = min(max(value, 1.0), most)
        below, above = (min(f, value) for f in factors[:pair]), (max(f, value) for f in factors[pair + 1 :])
        found.append((*below, value, *above))
    return found


def _loss(
    subject: Subject, extension: Extension, tokens: Int[np.ndarray, "B T+1"], factors: tuple[float, ...]
) -> float:
    given = methods.Extension(extension.trained, extension.factor, factors)
    numbers = subject.numbers("longrope", given, tokens.shape[1] - 1)
    return float(np.mean(jax.device_get(subject.scores(subject.params, numbers, tokens).loss)))
