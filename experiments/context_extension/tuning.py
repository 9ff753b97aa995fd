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
from attnjax.evaluation.factors import STEP, search_factors
from attnjax.evaluation.methods import factors_of
from attnjax.train.mesh import compiler_options, platform_of
from attnjax.train.optimizer import apply_gradient, optimizer, schedule
from attnjax.typing import Array, Float, Int, PyTree
from experiments.context_extension import methods
from experiments.context_extension.methods import Extension
from experiments.context_extension.subjects import Numbers, Subject


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
        self._step = jax.jit(self._update, donate_argnums=(0, 1), compiler_options=compiler_options(platform_of(None)))

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
    """Factors of LongRoPE with a low loss on these windows, found pair by pair (`attnjax.evaluation.factors`).

    They lie within 1 and `STEP` times the factor of the extension. Without rounds the result is NTK-by-parts.
    """
    if not rounds:
        return starts(subject, extension)[-1]
    loss = functools.partial(_loss, subject, extension, tokens)
    return search_factors(loss, starts(subject, extension), rounds=rounds, most=STEP * extension.factor)


def starts(subject: Subject, extension: Extension) -> list[tuple[float, ...]]:
    """Where a search begins: the factors that other methods amount to, those of NTK-by-parts last."""
    return factors_of(subject.base, subject.head, extension.factor, extension.trained)


def _loss(
    subject: Subject, extension: Extension, tokens: Int[np.ndarray, "B T+1"], factors: tuple[float, ...]
) -> float:
    given = methods.Extension(extension.trained, extension.factor, factors)
    numbers = subject.numbers("longrope", given, tokens.shape[1] - 1)
    return float(np.mean(jax.device_get(subject.scores(subject.params, numbers, tokens).loss)))
