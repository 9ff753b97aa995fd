"""Microbatches, length buckets and target gather change no number, and cut padding where that pays."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.config import ModelConfig
from attnjax.tasks.forms import SequencePair, Sequences, target_of
from attnjax.train import batching
from attnjax.train.batching import (
    Batching,
    choose_batching,
    members_in_turn,
    microbatch_size,
    smallest_bucket,
    sum_over_microbatches,
)
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.model import encoding_of
from attnjax.train.step import Trainer, members
from tests.cases import slow_except
from tests.train.conftest import with_encoding, with_train


def numbered(batch, tokens):
    """Sequences in which no two numbers are equal."""
    table = np.arange(batch * tokens, dtype=np.int32).reshape(batch, tokens)
    each = np.arange(batch, dtype=np.int32)
    return Sequences(table, table, table > 0, table > 0, table, each, each)


def test_a_microbatch_fits_the_cache_and_divides_the_batch():
    model = ModelConfig(model=64, hidden=256)
    sizes = lambda batch, tokens, population=1: microbatch_size(model, numbered(batch, tokens), population, "cpu")
    assert 4 * 256 * 460 * sizes(64, 460) == 4 * 256 * 460 * 16 <= batching.MICROBATCH_BYTES < 4 * 256 * 460 * 32
    assert sizes(64, 460, population=4) == 4
    assert sizes(64, 100) == 64, "short ones all at once"
    assert sizes(60, 460) == 15
    assert sizes(7, 5000) == 1
    assert sizes(64, 128, population=1000) == 4, "so many that products have 512 rows"
    assert microbatch_size(model, numbered(64, 5000), 8, "gpu") is None, "an accelerator takes all at once"


def test_microbatches_and_answers_alone_change_no_score(tiny, monkeypatch):
    """Of two members, in a model whose last layer computes two queries of an example; 24 examples in batches of 16."""
    positions = {"policy": "randomized", "maximum": 64, "at_test": "same", "sample_per_layer": True}
    run = dataclasses.replace(
        tiny,
        positions=dataclasses.replace(tiny.positions, **positions),
        model=dataclasses.replace(tiny.model, layers=2),
        task=dataclasses.replace(tiny.task, name="missing_duplicate_string"),
    )
    runs = [with_encoding(run, "rope", theta=theta) for theta in (2.0, 500.0)]
    population = members(runs)
    trainer = Trainer(run, make_task(run), encoding=encoding_of(runs))
    params = trainer.start(population).params

    def measured():
        evaluator = Evaluator(run, trainer.task, trainer.model)
        return [one for length in evaluator.measure(params, numbers=population.encoding) for one in length]

    monkeypatch.setattr(batching, "MICROBATCH_BYTES", 1)
    monkeypatch.setattr(batching, "MIN_MICROBATCH_TOKENS", 100)
    seen, real = set(), batching.gather_targets

    def gather(made, count):
        target, indices = real(made, count)
        seen.add(indices.shape)
        return target, indices

    monkeypatch.setattr(batching, "gather_targets", gather)
    parts = measured()
    assert seen == {(8, 2)}
    monkeypatch.setattr(batching, "gather_targets", lambda made, count: (target_of(made), None))
    monkeypatch.setattr(batching, "microbatch_size", lambda *_: None)
    for one, other in zip(parts, measured(), strict=True):
        assert [row | {"value": 0} for row in one.records] == [row | {"value": 0} for row in other.records]
        np.testing.assert_allclose(*([row["value"] for row in each.records] for each in (one, other)), rtol=1e-6)
        # Of each example, in its order.
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), one.scores, other.scores)
    losses = [row["value"] for one in parts for row in one.records if row["metric"] == "loss"]
    assert len({*losses}) == len(losses), "each member has the numbers of its own encoding"


# Length buckets


def up_to(counts, tokens):
    return np.arange(tokens) < np.asarray(counts)[:, None]


def batch_of(read, counted, answer, tokens=20):
    """Examples of so many tokens that are read, and that end with the last of so many that count, the first at `answer`."""
    made = numbered(len(read), tokens)
    mask = up_to(counted, tokens) & ~up_to(answer, tokens)
    return made._replace(valid=up_to(read, tokens), mask=mask, answer=np.asarray(answer, np.int32))


def test_the_smallest_bucket_holds_every_token_and_every_target():
    """Of 20 tokens the four buckets have 6, 11, 16 and 20."""
    free = (None,) * 4
    cases = [([1, 6], [3, 6], 0), ([1, 7], [3, 3], 1), ([1, 3], [11, 3], 1), ([12, 3], [3, 3], 2), ([17, 1], [3, 3], 3)]
    bucket = jax.jit(smallest_bucket, static_argnames="capacities")
    for read, counted, expected in cases:
        made = batch_of(read, counted, [2, 2])
        assert bucket(made, capacities=free) == expected
    target = batch_of([1, 3], [2, 3], [1, 1])
    pair = SequencePair(target.tokens, up_to([12, 2], 20), target.positions, target)
    assert bucket(pair, capacities=free) == 2, "a long source"
    # Four targets, from the third token to the sixth.
    made = batch_of([5, 5], [4, 6], [2, 2])
    for capacities, expected in (((3, 3, 4, None), 2), ((3, 4, 5, 6), 1), ((4, 4, 4, 4), 0), ((3, 3, 3, None), 3)):
        assert bucket(made, capacities=capacities) == expected


def test_every_example_is_in_one_microbatch_beside_those_of_its_length():
    """Of ten tokens, example b has 1 + 7 b mod 8."""
    made = numbered(8, 10)
    real = up_to(1 + 7 * np.arange(8) % 8, 10)
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


# Training


CASES = {
    "copy": ("copy", "decoder", "example", {"begin": True}),
    "one_answer": ("missing_duplicate_string", "decoder", "batch", {"begin": True}),
    "encoder": ("binary_addition", "encoder", "example", {"tail": True}),
    "encoder_decoder": ("binary_addition", "encoder_decoder", "example", {}),
}


@pytest.fixture
def small(monkeypatch):
    """Buckets for batches as small as those of tests; two of them take half of the time to compile."""
    for name, value in {"MIN_BATCH_TOKENS": 0, "MIN_RUN_TOKENS": 0, "BUCKETS": 2}.items():
        monkeypatch.setattr(batching, name, value)


def of(tiny, case, **fields):
    task, form, per, options = CASES[case]
    asked = {"name": task, "form": form, "length_per": per, **options}
    return dataclasses.replace(tiny, task=dataclasses.replace(tiny.task, **asked), **fields)


@pytest.mark.parametrize("case", slow_except(CASES, "copy"))
def test_steps_are_those_of_whole_batches_and_all_rows(tiny, case, small, monkeypatch):
    """Two members, in turn in four microbatches of two buckets, beside vmapped members whose every logit is computed."""
    positions = {"policy": "randomized", "maximum": 64, "at_test": "same", "sample_per_layer": True}
    run = of(
        tiny,
        case,
        positions=dataclasses.replace(tiny.positions, **positions),
        # The last layer makes only the answers, where they are few.
        model=dataclasses.replace(tiny.model, layers=2 if case == "one_answer" else 1),
        optimizer=dataclasses.replace(tiny.optimizer, name="sgd"),
        train=dataclasses.replace(tiny.train, learning_rate=0.3, warmup=0),
    )
    runs = [with_encoding(run, "rope", theta=theta) for theta in (2.0, 500.0)]
    population = members(runs)

    def trained():
        trainer = Trainer(run, make_task(run), encoding=encoding_of(runs))
        state, metrics = trainer.advance(trainer.start(population), population, 2)
        return trainer, jax.device_get((state.params, metrics))

    cut, found = trained()
    assert cut.batching == Batching(1 if case == "one_answer" else 4, 2)
    assert cut.in_turn
    monkeypatch.setattr(batching, "MIN_BATCH_TOKENS", 10**9)
    monkeypatch.setattr(batching, "gather_targets", lambda made, count: (target_of(made), None))
    whole, expected = trained()
    assert (whole.batching, whole.in_turn) == (Batching(), False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6), found, expected)
    assert len({*found[1].loss[:, 0].tolist()}) == 2, "each member has the numbers of its own encoding"


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
    # Members train in turn where a switch under vmap would compute every branch, or where a batch has 512 tokens.
    in_turn = lambda batch, *rest: members_in_turn(with_train(tiny, batch=batch), make_task(tiny), *rest)
    assert [in_turn(batch, "cpu", whole) for batch in (63, 64)] == [False, True]
    assert not in_turn(64, "gpu", whole)
    assert in_turn(1, "cpu", Batching(1, 4))
