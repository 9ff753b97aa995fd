"""AdamW with learning rate and weight decay as data, so that runs with different ones train in one population.

    update = -rate * schedule(step) * (adam(clipped gradient) + decay * parameter)

Reference: Kingma & Ba 2015 (arXiv:1412.6980); Loshchilov & Hutter 2019 (arXiv:1711.05101).
"""

from typing import Any

import chex
import jax
import optax

from attnjax.config import TrainConfig
from attnjax.typing import Array, Float, PyTree


def optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """Return the transformation of a gradient into the direction of Adam, after clipping by the global norm."""
    clip = optax.identity() if config.clip is None else optax.clip_by_global_norm(config.clip)
    return optax.chain(clip, optax.scale_by_adam(config.b1, config.b2, config.epsilon))


def schedule(config: TrainConfig) -> optax.Schedule:
    """Return the learning rate at each step, relative to its peak: a linear warm-up, then the decay of the config.

    The decay is "constant", "linear" to 0, or "cosine": half a cosine to 0.

    Example:
      >>> relative = schedule(TrainConfig(steps=8, warmup=4, schedule="linear"))
      >>> [float(relative(step)) for step in (0, 3, 6)]
      [0.25, 1.0, 0.5]
    """
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


def apply_update(direction: Any, params: PyTree, rate: Float[Array, ""], decay: Float[Array, ""]) -> PyTree:
    """Return the parameters after one update; `rate` (already scaled by the schedule) and `decay` are scalars."""
    chex.assert_rank((rate, decay), 0)
    chex.assert_trees_all_equal_shapes(direction, params)

    def one(p: Array, d: Array) -> Array:
        return p - rate.astype(p.dtype) * (d + decay.astype(p.dtype) * p)

    return jax.tree.map(one, params, direction)
