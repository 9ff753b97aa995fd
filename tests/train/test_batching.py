"""Microbatches, length buckets and target gather change no number, and cut padding where that pays."""

import dataclasses
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.config import ModelConfig
from attnjax.config.mesh import MeshShape
from attnjax.tasks.forms import Sequences, target_of
from attnjax.train import batching
from attnjax.train.batching import (
    Batching,
    choose_batching,
    map_microbatches,
    members_in_turn,
    microbatch_size,
    smallest_bucket,
    sum_over_microbatches,
    truncate,
)
from attnjax.train.data import batch
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.mesh import make_mesh, platform_of
from attnjax.train.model import build
from attnjax.train.step import Trainer, members
from tests.cases import slow_except


def numbered(batch, tokens, layers=None):
    """Sequences in which no two numbers are equal, with positions for each layer if there are layers."""
    table = np.arange(batch * tokens, dtype=np.int32).reshape(batch, tokens)
    positions = table if layers is None else np.stack([table + 1000 * i for i in range(layers)])
    each = np.arange(batch, dtype=np.int32)
    return Sequences(*map(jnp.asarray, (table, table, table > 0, table > 0, positions, each, each)))


@pytest.mark.parametrize("size", [1, 2, 3, 6, None])
@pytest.mark.parametrize("layers", [None, 4])
def test_microbatches_keep_the_order_of_examples(size, layers):
    made, seen = numbered(6, 5, layers), []

    def rows(made):
        seen.append(made.tokens.shape[0])
        own = made.positions if layers is None else made.positions[-1]
        return {"sum": (own + made.tokens).sum(-1), "answer": made.answer}

    found = map_microbatches(rows, made, size)
    table = np.arange(30).reshape(6, 5)
    expected = (2 * table + (0 if layers is None else 3000)).sum(-1)
    np.testing.assert_array_equal(found["sum"], expected)
    np.testing.assert_array_equal(found["answer"], np.arange(6))
    assert set(seen) == {size or 6}


def test_a_microbatch_fits_the_cache_and_divides_the_batch():
    model = ModelConfig(model=64, hidden=256)
    sizes = lambda batch, tokens, population=1: microbatch_size(model, numbered(batch, tokens), population, "cpu")
    assert 4 * 256 * 460 * sizes(64, 460) == 4 * 256 * 460 * 16 <= batching.MICROBATCH_BYTES < 4 * 256 * 460 * 32
    assert sizes(64, 460, population=4) == 4
    assert sizes(64, 100) == 64, "short ones all at once"
    assert sizes(60, 460) == 15
    assert sizes(7, 5000) == 1
    assert sizes(64, 128, population=1000) == 4, "so many that products have 512 rows"


def test_an_accelerator_takes_all_at_once():
    assert microbatch_size(ModelConfig(), numbered(64, 5000), 8, "gpu") is None


def test_microbatches_change_no_record(tiny, population, monkeypatch):
    """Members, numbers of examples that are no multiple of the batch, and lengths of a whole evaluation."""
    positions = dataclasses.replace(
        tiny.positions, policy="randomized", maximum=64, at_test="same", sample_per_layer=True
    )
    run = dataclasses.replace(tiny, positions=positions, model=dataclasses.replace(tiny.model, layers=2))
    trainer = Trainer(run, make_task(run))
    params = trainer.start(members([dataclasses.replace(run, seed=one.seed) for one in population])).params
    evaluator = lambda: Evaluator(run, trainer.task, trainer.model)
    whole = list(evaluator()(params))
    monkeypatch.setattr(batching, "MICROBATCH_BYTES", 1)
    monkeypatch.setattr(batching, "MIN_MICROBATCH_TOKENS", 100)
    one = jax.eval_shape(lambda: evaluator()._examples(jax.random.key(0), jnp.int32(4), (), 12))
    assert microbatch_size(run.model, one, 2, "cpu") == 4 < run.evaluate.batch
    for before, after in zip(whole, evaluator()(params), strict=True):
        records = (itertools.chain.from_iterable(one) for one in (before, after))
        for a, b in zip(*records, strict=True):
            assert a["value"] == pytest.approx(b["value"], rel=1e-6), a
            assert {**a, "value": 0} == {**b, "value": 0}


BUCKET_FORMS = {"decoder": {"begin": True}, "encoder": {"tail": True}, "encoder_decoder": {}}


BUCKET_STEPS, BUCKETS = 40, 4


@pytest.fixture(scope="module", params=BUCKET_FORMS)
def drawn(request, tiny):
    """Batches of 40 steps, of one length each, 1 .. 6; the answers have one token more."""
    asked = {"name": "binary_addition", "form": request.param, "length_per": "batch", **BUCKET_FORMS[request.param]}
    run = dataclasses.replace(tiny, task=dataclasses.replace(tiny.task, **asked))
    task = make_task(run)
    made = jax.jit(jax.vmap(lambda step: batch(run, task, jnp.uint32(0), step)))(
        jnp.arange(BUCKET_STEPS, dtype=jnp.int32)
    )
    return [jax.tree.map(lambda leaf, step=step: leaf[step], jax.device_get(made)) for step in range(BUCKET_STEPS)]


@pytest.mark.parametrize("drawn", slow_except(BUCKET_FORMS, "decoder"), indirect=True)
def test_the_smallest_bucket_that_fits_loses_no_token(drawn):
    found = set()
    for made in drawn:
        i = int(smallest_bucket(made, (None,) * BUCKETS))
        found.add(i)
        assert [real(truncate(made, size, BUCKETS)) == real(made) for size in range(BUCKETS)] == [
            size >= i for size in range(BUCKETS)
        ]
        np.testing.assert_array_equal(target_of(truncate(made, BUCKETS - 1, BUCKETS)).tokens, target_of(made).tokens)
    assert found > {1, 3}, "one bucket only, which shows little"


def test_buckets_are_fractions_of_the_longest():
    made = numbered(3, 42, layers=2)
    shapes = [{name: leaf.shape for name, leaf in truncate(made, i, BUCKETS)._asdict().items()} for i in range(BUCKETS)]
    assert [shape["tokens"] for shape in shapes] == [(3, 13), (3, 24), (3, 34), (3, 42)]
    assert [shape["positions"] for shape in shapes] == [(2, 3, 13), (2, 3, 24), (2, 3, 34), (2, 3, 42)]
    assert {shape["answer"] for shape in shapes} == {(3,)}


def test_a_bucket_without_capacity_for_the_targets_is_passed_over(drawn):
    """The answers of this task are longer than its inputs, so only a capacity made by hand is less than they need."""
    for made in drawn:
        longest = int(np.asarray(target_of(made).mask).sum(1).max())
        free = int(smallest_bucket(made, (None,) * BUCKETS))
        assert int(smallest_bucket(made, (longest - 1, longest - 1, longest, None))) == max(free, 2)
        assert int(smallest_bucket(made, (longest, longest, longest, None))) == free


def real(made):
    """How many tokens are real, and how many count."""
    target = target_of(made)
    sources = 0 if target is made else int(made.source_valid.sum())
    return int(target.mask.sum()), int(target.valid.sum()), sources


ENCODINGS = ("rope", "alibi", "t5")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["decoder", "encoder"])
@pytest.mark.parametrize("name", ENCODINGS)
def test_an_evaluation_of_the_answer_alone_is_that_of_all_rows(tiny, name, form):
    if (name, form) == ("alibi", "encoder"):
        encoding = dataclasses.replace(tiny.model.encoding, name=name, options={"symmetric": True})
    else:
        encoding = dataclasses.replace(tiny.model.encoding, name=name)
    model = dataclasses.replace(tiny.model, encoding=encoding, layers=2)
    task = dataclasses.replace(tiny.task, name="missing_duplicate_string", form=form)
    run = dataclasses.replace(tiny, model=model, task=task)
    made_task = make_task(run)
    built = build(run, made_task)
    params = jax.tree.map(lambda leaf: leaf[None], jax.jit(built.init)(jax.random.key(0)))
    few = Evaluator(run, made_task, built)
    asked = []
    apply = lambda *args, query_indices, **spread: _all(built, asked, *args, query_indices=query_indices, **spread)
    every = Evaluator(run, made_task, built._replace(apply=apply))
    for mine, whole in zip(few(params), every(params), strict=True):
        for a, b in zip(mine[0], whole[0], strict=True):
            assert a["value"] == pytest.approx(b["value"], rel=1e-6), a
            assert {**a, "value": 0} == {**b, "value": 0}
    assert asked == [2 if form == "decoder" else 1], "one padded size, or nothing was asked for"


def _all(built, asked, *args, query_indices, **spread):
    asked.append(query_indices.shape[1])
    logits = built.apply(*args, **spread)
    return jnp.take_along_axis(logits, query_indices[:, :, None], axis=1)


@pytest.mark.parametrize(
    ("name", "form"), slow_except([("rope", "decoder"), ("alibi", "decoder"), ("t5", "encoder")], ("t5", "encoder"))
)
def test_training_on_answers_alone_is_training_on_all_rows(tiny, name, form, monkeypatch):
    encoding = dataclasses.replace(tiny.model.encoding, name=name)
    model = dataclasses.replace(tiny.model, encoding=encoding, layers=2)
    task = dataclasses.replace(tiny.task, name="missing_duplicate_string", form=form)
    run = dataclasses.replace(tiny, model=model, task=task)
    trainer = Trainer(run, make_task(run))
    made = jax.jit(lambda: batch(run, trainer.task, jnp.uint32(0), jnp.int32(0)))()
    params = jax.jit(trainer.model.init)(jax.random.key(0))
    loss = lambda: jax.jit(jax.value_and_grad(lambda params: trainer.loss(params, made), has_aux=True))(params)
    few = loss()
    assert batching.gather_targets(made, trainer.max_targets)[1].shape == (
        run.train.batch,
        2 if form == "decoder" else 1,
    )
    monkeypatch.setattr(batching, "gather_targets", lambda made, count: (made, None))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), few, loss())


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
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
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
