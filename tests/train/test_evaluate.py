"""Accuracy by length: free-running exact match is what decoding gives, and buckets do not change it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.modules import Decoder, generate
from attnjax.tasks.forms import specials
from attnjax.train.data import sequences
from attnjax.train.evaluate import Evaluator, padded_size
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from tests.cases import slow_except

ENCODINGS = ("rope", "alibi", "cope")


@pytest.fixture(scope="module", params=slow_except(ENCODINGS, "cope"))
def trained(request, tiny):
    """A model that has learned something: of its answers to four tokens about a third are right."""
    encoding = dataclasses.replace(tiny.model.encoding, name=request.param)
    model, task = dataclasses.replace(tiny.model, encoding=encoding), dataclasses.replace(tiny.task, name="bucket_sort")
    steps = dataclasses.replace(tiny.train, steps=100, learning_rate=1e-2, batch=16)
    run = dataclasses.replace(tiny, model=model, task=task, train=steps)
    trainer = Trainer(run, make_task(run))
    state, _ = trainer.advance(trainer.start(members([run])), members([run]), run.train.steps)
    return run, trainer, state.params


def test_exact_match_is_that_of_greedy_decoding(trained):
    run, trainer, params = trained
    task, length, stop = trainer.task, 4, specials(trainer.task).stop
    draw = lambda lengths: sequences(run, task, jax.random.key(9), lengths, length)
    made = jax.jit(draw)(jnp.full((32,), length, jnp.int32))
    one = jax.tree.map(lambda leaf: leaf[0], params)
    scores = jax.jit(Evaluator(run, task, trainer.model)._scores)
    found, _ = scores(one, made=made, counted=jnp.ones(32, bool))
    model = _decoder(trainer, one)
    answer = np.asarray(generate(model, made.tokens[:, : length + 1], length + 1, stop=stop))
    right = (answer == np.asarray(made.targets[:, length : 2 * length + 1])).all(1)
    assert 0 < right.sum() < 32, "a test in which all or nothing is right shows little"
    assert np.array_equal(found["exact_match"], right)
    given = (answer[:, :-1] == np.asarray(made.targets[:, length : 2 * length])).all(1)
    assert np.array_equal(found["exact_match_oracle_length"], given), "all but the token that ends the answer"


@pytest.mark.slow
def test_logits_that_are_nan_answer_nothing(trained):
    """The largest of them would be that of token 0, which is often right."""
    run, trainer, params = trained
    made = sequences(run, trainer.task, jax.random.key(9), jnp.full((8,), 4, jnp.int32), 4)
    assert (np.asarray(made.targets)[np.asarray(made.mask)] == 0).any()
    lost = jax.tree.map(lambda leaf: jnp.full_like(leaf[0], jnp.nan), params)
    found, by_position = jax.jit(Evaluator(run, trainer.task, trainer.model)._scores)(
        lost, made=made, counted=jnp.ones(8, bool)
    )
    assert not np.asarray(found["token_accuracy"]).any()
    assert not np.asarray(by_position["accuracy"]).any()


def _decoder(trainer, params):
    model = Decoder(trainer.model.config, rngs=nnx.Rngs(0))
    state = nnx.state(model)
    nnx.replace_by_pure_dict(state, params)
    nnx.update(model, state)
    return model


@pytest.mark.slow
def test_padding_to_a_larger_bucket_changes_nothing(trained):
    run, trainer, params = trained
    tight = dataclasses.replace(run, evaluate=dataclasses.replace(run.evaluate, bucket_sizes=(6, 9)))
    assert (padded_size(tight, 4), padded_size(run, 4)) == (6, 12)
    records = [list(Evaluator(one, trainer.task, trainer.model)(params)) for one in (tight, run)]
    for narrow, padded in zip(*records, strict=True):
        for a, b in zip(narrow[0], padded[0], strict=True):
            assert a["value"] == pytest.approx(b["value"], rel=1e-5), a
            assert {**a, "value": 0} == {**b, "value": 0}


def test_buckets_are_few_and_cover(tiny):
    sizes = buckets(tiny, tuple(range(1, 501)))
    assert all(size >= length for length, size in sizes.items())
    assert len(set(sizes.values())) <= 13, "each is a compilation"
    assert all(size < 1.5 * length + 1 for length, size in sizes.items() if length > 9)


def test_lengths_that_are_far_apart_are_not_padded(tiny):
    """`length_max` is 6."""
    assert buckets(tiny, (4, 6, 12, 24)) == {4: 6, 6: 6, 12: 12, 24: 24, 5: 6}
    assert buckets(tiny, (10, 14, 20), validation=(9,)) == {9: 10, 10: 10, 14: 20, 20: 20}
    assert buckets(tiny, (2, 3), validation=()) == {2: 3, 3: 3}


def buckets(tiny, lengths, validation=(5,)):
    """The padded size of each length."""
    asked = dataclasses.replace(tiny.evaluate, lengths=lengths, validation_lengths=validation, bucket_sizes=())
    run = dataclasses.replace(tiny, evaluate=asked)
    return {length: padded_size(run, length) for length in (*lengths, *validation)}


def test_scores_of_examples_and_positions_are_those_of_the_records(trained):
    run, trainer, params = trained
    evaluator = Evaluator(run, trainer.task, trainer.model)
    for measured, records in zip(evaluator.measure(params), evaluator(params), strict=True):
        (one,), (same,) = measured, records
        assert one.records == same
        length = same[0]["length"]
        values = {(r["split"], length, r["metric"]): r["value"] for r in same}
        assert one.scores.keys() == {key for key in values if key[2] != "token_accuracy"}
        for key, scores in one.scores.items():
            assert scores.shape == (run.evaluate.count,)
            assert scores.mean() == values[key]
        split = same[0]["split"]
        # Every example has as many targets, so that means over examples and over targets are the same.
        by_position = [one.by_position[split, length, name] for name in ("loss", "accuracy")]
        assert [len(x) for x in by_position] == [length + 1] * 2
        assert by_position[0].mean() == pytest.approx(values[split, length, "loss"], rel=1e-5)
        assert by_position[1].mean() == pytest.approx(values[split, length, "token_accuracy"], rel=1e-5)
