"""Optimizers by name, with learning rate and weight decay as data, so that runs with different ones train in one population.

    parameters + transformation(rate * schedule(step), decay).update(clipped gradient)

An optimizer of optax is a function of its hyper-parameters. It is called while the step is traced, with the rate and the
decay of each run as traced scalars, as `optax.inject_hyperparams` does it too; the rates then need no place in the state, so
that a checkpoint holds what the optimizer remembers and nothing else.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax

from attnjax.config import OptimizerConfig, TrainConfig
from attnjax.config.outside import lookup
from attnjax.typing import Array, Float, PyTree

Optimizer = Callable[[Any, Any], optax.GradientTransformation]
"""From a learning rate, already scaled by the schedule, and a weight decay to a transformation of gradients."""


ADAMW = OptimizerConfig()


def optimizer(train: TrainConfig, choice: OptimizerConfig = ADAMW) -> Optimizer:
    """Return the optimizer of a config, after clipping by the global norm, as a function of learning rate and weight decay.

    Raises ValueError for a function of a module that is not imported, and for options that it does not take.

    Example:
      >>> import jax.numpy as jnp
      >>> sgd = optimizer(TrainConfig(clip=None), OptimizerConfig("sgd"))(0.5, 0.0)
      >>> params = {"w": jnp.float32([1.0])}
      >>> sgd.update({"w": jnp.float32([4.0])}, sgd.init(params), params)[0]["w"].tolist()
      [-2.0]
    """
    clip = optax.identity() if train.clip is None else optax.clip_by_global_norm(train.clip)
    parts = _adamw(train, choice) if choice.name == "adamw" else _named(choice)

    def make(rate: Any, decay: Any) -> optax.GradientTransformation:
        chain = optax.chain(clip, *parts(rate, decay))
        if choice.accumulate == 1:
            return chain
        return optax.MultiSteps(chain, choice.accumulate).gradient_transformation()

    return make


def apply_gradient(
    optimizer: Optimizer, gradient: PyTree, state: Any, params: PyTree, rate: Float[Array, ""], decay: Float[Array, ""]
) -> tuple[PyTree, Any]:
    """Return parameters and state of the optimizer after one update.

    `rate` (already scaled by the schedule) and `decay` are scalars; both are rounded to the type of the parameters.

    Example:
      >>> import jax.numpy as jnp
      >>> adamw, params = optimizer(TrainConfig()), {"w": jnp.float32([1.0, 1.0])}
      >>> gradient, state = {"w": jnp.float32([3.0, -3.0])}, adamw(0.0, 0.0).init(params)
      >>> new, _ = apply_gradient(adamw, gradient, state, params, jnp.float32(0.25), jnp.float32(0.0))
      >>> new["w"].round(4).tolist()
      [0.75, 1.25]
    """
    chex.assert_rank((rate, decay), 0)
    chex.assert_trees_all_equal_shapes(gradient, params)
    # Optax mixes int32 counts and Python floats, which a caller's strict promotion would refuse.
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*jax.tree.leaves(params))
        updates, state = optimizer(rate.astype(dtype), decay.astype(dtype)).update(gradient, state, params)
        return optax.apply_updates(params, updates), state


def schedule(train: TrainConfig) -> optax.Schedule:
    """Return the learning rate at each step, relative to its peak: a linear warm-up, then the decay of the config.

    The decay is "constant", or "linear" or "cosine" (half a cosine) to the fraction `train.final` at step `train.steps`, one
    after the last update. A function of another project is called with `steps`, `warmup` and `final`, by name, and returns
    the whole schedule.

    Raises ValueError for a function of a module that is not imported, or that does not take these.

    Example:
      >>> relative = schedule(TrainConfig(steps=8, warmup=4, schedule="linear"))
      >>> [float(relative(step)) for step in (0, 3, 6)]
      [0.25, 1.0, 0.5]
    """
    if ":" in train.schedule:
        made = _function("train.schedule", train.schedule, ("steps", "warmup", "final"))
        return made(steps=train.steps, warmup=train.warmup, final=train.final)
    rest = max(train.steps - train.warmup, 1)
    after = {
        "constant": optax.constant_schedule(1.0),
        "linear": optax.linear_schedule(1.0, train.final, rest),
        "cosine": optax.cosine_decay_schedule(1.0, rest, train.final),
    }[train.schedule]
    if train.warmup == 0:
        return after
    # Steps count from 0; the first update already has a rate above 0.
    warm = optax.linear_schedule(1.0 / train.warmup, 1.0, max(train.warmup - 1, 1))
    return optax.join_schedules([warm, after], [train.warmup])


def _adamw(
    train: TrainConfig, choice: OptimizerConfig
) -> Callable[[Any, Any], tuple[optax.GradientTransformation, ...]]:
    """Return `optax.adamw` as its parts: in one chain with clipping their state lies as in checkpoints of every version.

    Reference: Kingma & Ba 2015 (arXiv:1412.6980); Loshchilov & Hutter 2019 (arXiv:1711.05101).
    """
    given = {"b1": train.b1, "b2": train.b2, "eps": train.epsilon}
    if twice := sorted(given.keys() & choice.options.keys()):
        raise ValueError(f"optimizer.options.{twice[0]} of 'adamw' is train.{twice[0].replace('eps', 'epsilon')}")
    _check_options(choice, optax.scale_by_adam, given)
    adam = optax.scale_by_adam(**given, **choice.options)
    return lambda rate, decay: (adam, optax.add_decayed_weights(decay), optax.scale_by_learning_rate(rate))


def _named(choice: OptimizerConfig) -> Callable[[Any, Any], tuple[optax.GradientTransformation, ...]]:
    """Return an optimizer of optax or of another project."""
    foreign = ":" in choice.name
    data = ("learning_rate", "weight_decay")
    function = _function("optimizer.name", choice.name, data) if foreign else getattr(optax, choice.name)
    decays = "weight_decay" in inspect.signature(function).parameters
    given = lambda rate, decay: {"learning_rate": rate} | ({"weight_decay": decay} if decays else {})
    _check_options(choice, function, given(0.0, 0.0))
    return lambda rate, decay: (function(**given(rate, decay), **choice.options),)


def _function(field: str, path: str, needs: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function of another project; only one that has these parameters is ever called."""
    function = lookup(path)
    if not callable(function):
        raise ValueError(f"{field}={path!r} is no function in the module {path.partition(':')[0]}")
    parameters = inspect.signature(function).parameters
    if missing := [one for one in needs if one not in parameters]:
        raise ValueError(f"{field}={path!r} must take {', '.join(needs)} by name, and has no {missing[0]}")
    return function


def _check_options(choice: OptimizerConfig, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise ValueError for options that the function does not take beside the given ones, and for missing ones."""
    signature = inspect.signature(function)
    try:
        signature.bind(**given, **choice.options)
    except TypeError as error:
        options = ", ".join(name for name in signature.parameters if name not in given)
        raise ValueError(f"optimizer.options of {choice.name!r}: {error}; options: {options}") from None
