"""Microbatches in length buckets: a step is that of the whole batch, whoever trains beside it."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.config.mesh import MeshShape
from attnjax.train import batching
from attnjax.train.batching import Batching, choose_batching, members_in_turn, sum_over_microbatches
from attnjax.train.loop import make_task
from attnjax.train.mesh import make_mesh, platform_of
from attnjax.train.step import Trainer, members
from tests.cases import slow_except
from tests.train.test_microbatches import numbered

STEPS = 8
CASES = {
    "one_answer": ("missing_duplicate_string", "decoder", "batch", {"begin": True}),
    "copy": ("copy", "decoder", "example", {"begin": True}),
    "encoder": ("binary_addition", "encoder", "example", {"tail": True}),
    "encoder_decoder": ("binary_addition", "encoder_decoder", "example", {}),
}


def lowered(trainer, platform, count=2):
    """The text of the program of a population for a platform."""
    return jax.jit(trainer.program).trace(*trainer.arguments(count)).lower(lowering_platforms=(platform,)).as_text()


@pytest.fixture
def small(monkeypatch):
    """Buckets for batches as small as those of tests; two of them take half of the time to compile."""
    for name, value in {"MIN_BATCH_TOKENS": 0, "MIN_RUN_TOKENS": 0, "BUCKETS": 2, "MICROBATCHES": 4}.items():
        monkeypatch.setattr(batching, name, value)


def of(tiny, case, **fields):
    task, form, per, options = CASES[case]
    asked = {"name": task, "form": form, "length_per": per, **options}
    return dataclasses.replace(tiny, task=dataclasses.replace(tiny.task, **asked), **fields)


def trained(trainer, population):
    """Parameters and metrics after some steps."""
    state, metrics = trainer.advance(trainer.start(population), population, STEPS)
    return jax.device_get(state.params), jax.device_get(metrics)


@pytest.mark.parametrize("case", slow_except(CASES, "copy"))
def test_steps_are_those_of_whole_batches(tiny, case, small, monkeypatch):
    """Adam with its usual epsilon would make steps of the rounding of gradients that are 0, as those of biases of keys are."""
    train = dataclasses.replace(tiny.train, epsilon=1e-3)
    positions = {"policy": "randomized", "maximum": 64, "at_test": "same", "sample_per_layer": True}
    positions = dataclasses.replace(tiny.positions, **positions)
    # The last layer makes only the answers, where they are few.
    model = dataclasses.replace(tiny.model, layers=2 if case == "one_answer" else 1)
    run = of(tiny, case, model=model, positions=positions, train=train)
    trainer, population = Trainer(run, make_task(run)), members([run])
    assert trainer.batching == Batching(1 if case == "one_answer" else 4, 2)
    cut = trained(trainer, population)
    monkeypatch.setattr(batching, "MIN_BATCH_TOKENS", 10**9)
    trainer = Trainer(run, make_task(run))
    assert trainer.batching == Batching()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5), cut, trained(trainer, population))


@pytest.mark.slow
def test_a_run_trains_in_a_population_as_alone(tiny, population, small):
    runs = [of(tiny, "encoder", seed=one.seed, data_seed=one.data_seed, train=one.train) for one in population]
    trainer = Trainer(runs[0], make_task(runs[0]))
    together = trained(trainer, members(runs))
    for i, run in enumerate(runs):
        alone = trained(trainer, members([run]))
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b[0]), together, alone)


@pytest.mark.slow
def test_what_is_dropped_follows_from_seed_and_step(tiny, small):
    run = of(tiny, "encoder", model=dataclasses.replace(tiny.model, residual_dropout=0.5))
    trainer = Trainer(run, make_task(run))
    first, again = (trained(trainer, members([run])) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert np.isfinite(first[1].loss).all()


def test_every_example_is_in_one_microbatch_beside_those_of_its_length():
    """Of ten tokens, example b has 1 + 7 b mod 8."""
    count = 1 + 7 * np.arange(8) % 8
    made = numbered(8, 10)
    real = jnp.asarray(np.arange(10) < count[:, None])
    made = made._replace(valid=real, mask=real)
    seen = []

    def f(group, i, capacity):
        assert capacity is None
        seen.append(group.tokens.shape)
        mine = jnp.zeros(8, jnp.int32).at[group.answer].set(1)
        return {
            "groups": jnp.zeros(4, jnp.int32).at[i].add(group.mask.sum(dtype=jnp.int32)),
            "examples": mine,
            "size": group.tokens.shape[1],
        }

    zero = {"groups": jnp.zeros(4, jnp.int32), "examples": jnp.zeros(8, jnp.int32), "size": 0}
    found = jax.jit(lambda made: sum_over_microbatches(f, made, Batching(4, 5), zero))(made)
    assert found["groups"].tolist() == [1 + 2, 3 + 4, 5 + 6, 7 + 8]
    assert found["examples"].tolist() == [1] * 8
    assert sorted(set(seen)) == [(2, size) for size in (3, 5, 7, 9, 10)]
    assert int(found["size"]) == 3 + 5 + 7 + 9


def test_a_batch_is_split_where_that_pays(tiny):
    task = dataclasses.replace(tiny.task, name="missing_duplicate_string", length_min=1, length_max=40)
    train = dataclasses.replace(tiny.train, batch=128, steps=2000)

    def found(train=train, platform="cpu", **fields):
        run = dataclasses.replace(tiny, task=dataclasses.replace(task, **fields), train=train)
        return choose_batching(run, make_task(run), platform)

    whole = Batching()
    assert found() == Batching(4, 4)
    assert found(length_per="batch") == Batching(1, 4)
    assert found(train=dataclasses.replace(train, batch=130)) == Batching(2, 4), "a divisor of the batch"
    assert found(train=dataclasses.replace(train, steps=100)) == whole, "over before it is compiled"
    assert found(train=dataclasses.replace(train, batch=16, steps=10**6)) == whole, "small"
    assert found(length_min=30) == whole, "little to cut"
    assert found(platform="gpu") == whole


def test_members_train_in_turn_where_their_batches_are_large(tiny):
    task = make_task(tiny)
    tokens = tiny.task.length_max if task.aligned else tiny.task.length_max + task.output_size(tiny.task.length_max)

    def found(batch, platform="cpu", buckets=1):
        run = dataclasses.replace(tiny, train=dataclasses.replace(tiny.train, batch=batch))
        return members_in_turn(run, task, platform, Batching(buckets=buckets))

    enough = -(-512 // tokens)
    assert (found(enough - 1), found(enough)) == (False, True)
    assert not found(enough, platform="gpu")
    assert found(1, buckets=4), "a switch under vmap computes every branch"


@pytest.mark.slow
def test_members_in_turn_have_the_numbers_of_vmapped_members(tiny):
    """The programs round differently: after three steps parameters agree to 1e-5 of the largest."""
    runs = [dataclasses.replace(tiny, seed=seed, data_seed=seed) for seed in range(3)]
    task, found = make_task(runs[0]), []
    for in_turn in (False, True):
        trainer = Trainer(runs[0], task)
        trainer.in_turn = in_turn
        state, metrics = trainer.advance(trainer.start(members(runs)), members(runs), 3)
        found.append((state.params, metrics.loss))
    chex.assert_trees_all_close(*found, rtol=1e-5, atol=1e-5)
    losses = found[1][1]
    assert losses.shape == (3, 3)
    assert len(set(losses[:, 0].tolist())) == 3, "each member has its own seed"


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", pytest.param("tpu", marks=pytest.mark.slow)])
def test_a_program_for_an_accelerator_is_made_on_a_cpu_without_a_switch(tiny, small, platform):
    """Where it is made does not matter: members are mapped there, not taken in turns, and no padding is cut."""
    run = of(tiny, "copy")
    task = make_task(run)
    here, there = Trainer(run, task), Trainer(run, task, platform=platform)
    assert (here.batching, there.batching) == (Batching(4, 2), Batching())
    own, text = lowered(here, "cpu"), lowered(there, platform)
    assert "stablehlo.case" in own
    assert "stablehlo.case" not in text
    # One loop, over the steps; those over members and microbatches are gone.
    assert text.count("stablehlo.while") == 1 < own.count("stablehlo.while")


def test_the_platform_is_that_of_the_devices_that_compute():
    """As `attnjax compile --topology` makes a mesh, of devices that are not here."""

    class Device:
        platform = "cuda"

    class Mesh:
        devices = np.array([[[Device()]]])

    assert platform_of(Mesh()) == "cuda"
    assert platform_of(make_mesh(MeshShape(data=2))) == platform_of(None) == jax.devices()[0].platform
    with jax.default_device("cpu"):
        assert jax.jit(lambda: platform_of(None) == "cpu")()
