"""Optimizers by name: those of optax, as optax computes them, with rates as data; those of others; accumulation; schedules."""

import dataclasses
import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attnjax.config import OptimizerConfig, TrainConfig, parse, to_dict
from attnjax.config.names import DECAYING, OPTIMIZERS
from attnjax.config.outside import import_modules
from attnjax.train import check
from attnjax.train.optimizer import apply_gradient, optimizer, schedule
from tests.cases import slow_except

RATES, DECAYS = np.float32([1e-2, 3e-2]), np.float32([0.0, 0.1])
FOREIGN = """
import optax

def make(learning_rate, weight_decay, *, power=1.0):
    return optax.chain(optax.scale(power), optax.add_decayed_weights(weight_decay), optax.scale_by_learning_rate(learning_rate))

def schedule(steps, warmup, final):
    return lambda step: 1.0 - (1.0 - final) * step / steps

def greedy(learning_rate, weight_decay, **kwargs):
    return optax.sgd(learning_rate, **kwargs)

def forgetful(learning_rate, **kwargs):
    raise AssertionError("a function without weight_decay must not be called")

number = 3
"""
START = {"w": np.linspace(0.5, 1.5, 6, dtype=np.float32).reshape(3, 2), "b": np.ones(2, np.float32)}


def changed(run, **changes):
    """The run with changed tables."""
    values = to_dict(run)
    return parse(values | {name: values[name] | table for name, table in changes.items()})


def gradients(count):
    """A stream of gradients of a matrix and a vector."""
    draw = np.random.default_rng(0)
    return [{"w": np.float32(draw.normal(size=(3, 2))), "b": np.float32(draw.normal(size=2))} for _ in range(count)]


def followed(update, state, count=4):
    """Parameters after the updates by a stream of gradients."""
    params = jax.tree.map(jnp.asarray, START)
    for gradient in gradients(count):
        params, state = update(gradient, state, params)
    return params


@pytest.mark.parametrize("name", slow_except(OPTIMIZERS, "adamw", "lion", "adafactor"))
def test_a_population_updates_as_optax_does_with_plain_numbers(name):
    decays = DECAYS if name in DECAYING else 0 * DECAYS
    ours = optimizer(TrainConfig(clip=1.0), OptimizerConfig(name))

    @jax.jit
    @jax.vmap
    def all_of_them(rate, decay):
        update = lambda g, state, params: apply_gradient(ours, g, state, params, rate, decay)
        return followed(update, ours(rate, decay).init(START))

    together = all_of_them(RATES, decays)
    betas = {"b1": 0.9, "b2": 0.98, "eps": 1e-8} if name == "adamw" else {}
    for i, (rate, decay) in enumerate(zip(RATES.tolist(), decays.tolist())):
        given = betas | ({"weight_decay": decay} if name in DECAYING else {})
        alone = optax.chain(optax.clip_by_global_norm(1.0), getattr(optax, name)(learning_rate=rate, **given))

        def update(gradient, state, params, alone=alone):
            direction, state = alone.update(gradient, state, params)
            return optax.apply_updates(params, direction), state

        with jax.numpy_dtype_promotion("standard"):
            expected = jax.jit(lambda alone=alone, update=update: followed(update, alone.init(START)))()
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=2e-6, atol=1e-7), together, expected)
        assert all(np.any(np.asarray(a) != b) for a, b in zip(*map(jax.tree.leaves, (expected, START))))


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A module of another project, imported."""
    (tmp_path / "foreign_optimizers.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(tmp_path)
    import_modules(["foreign_optimizers:make"])
    yield
    del sys.modules["foreign_optimizers"]


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("lion", {"b3": 1}, "optimizer.options 'lion' 'b3' b1, b2, mu_dtype"),
        ("lion", {"b1": "x"}, "cannot be compiled"),
        ("lion", {"weight_decay": 1.0}, "optimizer.options 'lion' 'weight_decay'"),
        ("adamw", {"b1": 0.5}, "optimizer.options.b1 'adamw' train.b1"),
        ("adamw", {"eps": 0.5}, "optimizer.options.eps 'adamw' train.epsilon"),
        ("adamw", {"momentum": 0.5}, "optimizer.options 'adamw' 'momentum' nesterov"),
        ("not_there.at_all:make", {}, "not_there.at_all:make not imported"),
        ("foreign_optimizers:number", {}, "foreign_optimizers:number"),
        ("foreign_optimizers:forgetful", {}, "learning_rate, weight_decay no weight_decay"),
        ("foreign_optimizers:make", {"powr": 1}, "'powr' power"),
        ("shutil:rmtree", {"path": "x"}, "learning_rate, weight_decay"),
    ],
)
def test_mistakes_are_refused_before_anything_compiles(tiny, foreign, name, options, named):
    with pytest.raises(ValueError, match=".*".join(named.split(" "))):
        check(changed(tiny, optimizer={"name": name, "options": options}))


def test_functions_of_other_projects(tiny, foreign):
    theirs = OptimizerConfig("foreign_optimizers:make", {"power": 0.5})
    ours = optimizer(TrainConfig(clip=None), theirs)
    update = jax.jit(
        lambda g, state, params: apply_gradient(ours, g, state, params, jnp.float32(0.1), jnp.float32(0.5))
    )
    after = followed(update, ours(0.1, 0.5).init(START), count=1)
    expected = jax.tree.map(lambda p, g: p - 0.1 * (0.5 * g + 0.5 * p), START, gradients(1)[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), after, expected)
    changes = {"schedule": "foreign_optimizers:schedule", "final": 0.2}
    relative = schedule(dataclasses.replace(tiny.train, steps=40, **changes))
    assert [round(float(relative(step)), 6) for step in (0, 20, 40)] == [1.0, 0.6, 0.2]
    greedy = {"name": "foreign_optimizers:greedy", "options": {"momentum": 0.5}}
    check(changed(tiny, train=changes, optimizer=greedy))
    with pytest.raises(ValueError, match="train.schedule='foreign_optimizers:make' .*steps, warmup, final"):
        schedule(TrainConfig(schedule="foreign_optimizers:make"))


def test_schedules_warm_up_and_fall_to_a_fraction():
    halves = {"linear": 0.55, "cosine": 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2))}
    for name, half in halves.items():
        relative = schedule(TrainConfig(steps=110, warmup=10, schedule=name, final=0.1))
        found = [float(relative(step)) for step in (0, 9, 60, 110)]
        np.testing.assert_allclose(found, [0.1, 1.0, half, 0.1], rtol=1e-6)


def test_accumulated_gradients_are_averaged_into_one_update():
    ours = optimizer(TrainConfig(clip=None), OptimizerConfig("sgd", accumulate=2))
    rate = jnp.float32(0.5)
    update = jax.jit(lambda g, state, params: apply_gradient(ours, g, state, params, rate, jnp.float32(0)))
    one, two = (followed(update, ours(rate, 0.0).init(START), count=count) for count in (1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, START)
    expected = jax.tree.map(lambda p, a, b: p - 0.5 * (a + b) / 2, START, *gradients(2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), two, expected)
