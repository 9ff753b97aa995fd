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
from attnjax.train import check, checkpoint, train
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


def changed(run, **changes):
    """The run with changed tables."""
    values = to_dict(run)
    for name, table in changes.items():
        values[name] = values[name] | table
    return parse(values)


def gradients(count):
    """A stream of gradients of a matrix and a vector."""
    draw = np.random.default_rng(0)
    return [{"w": draw.normal(size=(3, 2)), "b": draw.normal(size=2)} for _ in range(count)]


def followed(update, state, params, count=4):
    """Parameters after the updates by a stream of gradients."""
    for gradient in gradients(count):
        params, state = update(jax.tree.map(jnp.float32, gradient), state, params)
    return params


def start():
    return {"w": jnp.linspace(0.5, 1.5, 6, dtype=jnp.float32).reshape(3, 2), "b": jnp.ones(2, jnp.float32)}


@pytest.mark.parametrize("name", slow_except(OPTIMIZERS, "adamw", "lion", "adafactor", "sgd", "lamb"))
def test_a_population_updates_as_optax_does_with_plain_numbers(name):
    decays = DECAYS if name in DECAYING else 0 * DECAYS
    ours = optimizer(TrainConfig(clip=1.0), OptimizerConfig(name))

    @jax.jit
    @jax.vmap
    def all_of_them(rate, decay):
        made = ours(rate, decay)
        update = lambda g, state, params: apply_gradient(ours, g, state, params, rate, decay)
        return followed(update, made.init(start()), start())

    together = all_of_them(RATES, decays)
    betas = {"b1": 0.9, "b2": 0.98, "eps": 1e-8} if name == "adamw" else {}
    for i, (rate, decay) in enumerate(zip(RATES.tolist(), decays.tolist())):
        given = betas | ({"weight_decay": decay} if name in DECAYING else {})
        alone = optax.chain(optax.clip_by_global_norm(1.0), getattr(optax, name)(learning_rate=rate, **given))

        def update(gradient, state, params, alone=alone):
            direction, state = alone.update(gradient, state, params)
            return optax.apply_updates(params, direction), state

        with jax.numpy_dtype_promotion("standard"):
            expected = jax.jit(lambda alone=alone, update=update: followed(update, alone.init(start()), start()))()
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=2e-6, atol=1e-7), together, expected)
        assert all(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(*map(jax.tree.leaves, (expected, start()))))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            {"name": "lion", "options": {"b3": 1}},
            r"optimizer.options.b3 is no option of 'lion'; options: b1, b2, mu_dtype",
        ),
        ({"name": "lion", "options": {"b1": "x"}}, "optimizer.options.b1 must be a finite number, got 'x'"),
        ({"name": "lion", "options": {"weight_decay": 1.0}}, "weight_decay is no option of 'lion'"),
        ({"name": "lion", "options": {"mask": True}}, "mask is no option of 'lion'"),
        ({"name": "sgd", "options": {"nesterov": 1}}, "optimizer.options.nesterov must be true or false, got 1"),
        ({"options": {"b1": 0.5}}, "optimizer.options.b1 of 'adamw' is train.b1"),
        ({"options": {"eps": 0.5}}, "optimizer.options.eps of 'adamw' is train.epsilon"),
        ({"options": {"momentum": 0.5}}, "optimizer.options.momentum is no option of 'adamw'.*nesterov"),
        ({"name": "not_there.at_all:make"}, "not_there.at_all:make belongs to a module that is not imported"),
        ({"name": "foreign_optimizers:absent"}, "foreign_optimizers:absent' is no function in the module"),
        ({"name": "foreign_optimizers:number"}, "foreign_optimizers:number' is no function in the module"),
        (
            {"name": "foreign_optimizers:forgetful"},
            "must take learning_rate, weight_decay by name, and has no weight_decay",
        ),
        ({"name": "foreign_optimizers:make", "options": {"powr": 1}}, "powr is no option of .* .did you mean 'power'"),
        ({"name": "shutil:rmtree", "options": {"path": "x"}}, "must take learning_rate, weight_decay by name"),
    ],
)
def test_mistakes_are_refused_before_anything_compiles(tiny, choice, message, foreign):
    with pytest.raises(ValueError, match=message):
        check(changed(tiny, optimizer=choice))


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """A module of another project, imported."""
    (tmp_path / "foreign_optimizers.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(tmp_path)
    import_modules(["foreign_optimizers:make"])
    yield
    del sys.modules["foreign_optimizers"]


def test_functions_of_other_projects(tiny, foreign):
    theirs = OptimizerConfig("foreign_optimizers:make", {"power": 0.5})
    made = optimizer(TrainConfig(clip=None), theirs)
    update = lambda g, state, params: apply_gradient(made, g, state, params, jnp.float32(0.1), jnp.float32(0.5))
    after = followed(update, made(0.1, 0.5).init(start()), start(), count=1)
    expected = jax.tree.map(lambda p, g: p - 0.1 * (0.5 * np.float32(g) + 0.5 * p), start(), gradients(1)[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), after, expected)
    changes = {"schedule": "foreign_optimizers:schedule", "final": 0.2}
    relative = schedule(dataclasses.replace(tiny.train, **changes))
    assert [round(float(relative(step)), 6) for step in (0, 20, 40)] == [1.0, 0.6, 0.2]
    greedy = {"name": "foreign_optimizers:greedy", "options": {"momentum": 0.5}}
    check(changed(tiny, train=changes, optimizer=greedy))
    with pytest.raises(
        ValueError, match="train.schedule='foreign_optimizers:make' must take steps, warmup, final by name"
    ):
        schedule(TrainConfig(schedule="foreign_optimizers:make"))


@pytest.mark.parametrize(
    ("name", "half"), [("linear", 0.55), ("cosine", 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2)))]
)
def test_schedules_fall_to_a_fraction(name, half):
    relative = schedule(TrainConfig(steps=110, warmup=10, schedule=name, final=0.1))
    found = [float(relative(step)) for step in (0, 9, 60, 110)]
    np.testing.assert_allclose(found, [0.1, 1.0, half, 0.1], rtol=1e-6)


def test_accumulated_gradients_are_averaged_into_one_update():
    made = optimizer(TrainConfig(clip=None), OptimizerConfig("sgd", accumulate=2))
    rate = jnp.float32(0.5)
    update = lambda g, state, params: apply_gradient(made, g, state, params, rate, jnp.float32(0))
    one, two = (followed(update, made(rate, 0.0).init(start()), start(), count=count) for count in (1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, start())
    expected = jax.tree.map(lambda p, a, b: p - 0.5 * (a + b) / 2, start(), *gradients(2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), two, expected)


@pytest.mark.slow
def test_accumulation_is_resumed_amid_an_update_with_the_same_bits(population, folders, recorder):
    """Saved every 5 steps, so that every other checkpoint holds half of an update."""
    runs = [
        changed(run, optimizer={"accumulate": 2}, train={"checkpoint_every": 5, "log_every": 5}) for run in population
    ]
    whole, parts = recorder(), recorder(stop_after=3)
    train(runs, folders("whole"), whole)
    halves, saved = folders("halves"), []
    for _ in range(40):
        parts.strides = 0
        train(runs, halves, parts)
        saved += checkpoint.steps(halves[0] / "checkpoints")[-1:]
        if saved[-1] == 40:
            break
    parts.stop_after = None
    train(runs, halves, parts)
    assert any(step % 2 for step in saved)
    assert parts.notes == whole.notes
    assert parts.logs == whole.logs
