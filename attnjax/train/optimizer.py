"""AdamW, with rate and decay left out: they are data, so that runs with different ones are one population.

    update = -rate * shape(step) * (adam(clipped gradient) + decay * parameter)

Reference: Kingma & Ba 2015 (arXiv:1412.6980); Loshchilov & Hutter 2019 (arXiv:1711.05101).
"""

from typing import Any

import jax
import optax

from attnjax.config import TrainConfig
from attnjax.typing import Array, Float, PyTree


def optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """The direction of Adam, after clipping the gradient by its global norm."""
    clip = optax.identity() if config.clip is None else optax.clip_by_global_norm(config.clip)
    return optax.chain(clip, optax.scale_by_adam(config.b1, config.b2, config.epsilon))


def shape(config: TrainConfig) -> optax.Schedule:
    """Share of the peak rate at each step: a linear warm-up, then constant, linear to 0, or half a cosine to 0."""
    rest = max(config.steps - config.warmup, 1)
    after = {
        "constant": optax.constant_schedule(1.0),
        "linear": optax.linear_schedule(1.0, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(1.0, rest),
    }[config.schedule]
    if config.warmup == 0:
        return after
    # Steps count from 0; the first update already has a rate above 0.
    warm = optax.linear_schedule(1.0 / config.warmup, 1.0, max(config.warmup - 1, 1))
    return optax.join_schedules([warm, after], [config.warmup])


def apply(direction: Any, params: PyTree, rate: Float[Array, ""], decay: Float[Array, ""]) -> PyTree:
    """The parameters after one update."""

    def one(p: Array, d: Array) -> Array:
        return p - rate.astype(p.dtype) * (d + decay.astype(p.dtype) * p)

    return jax.tree.map(one, params, direction)
