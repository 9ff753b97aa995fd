"""Lengths and positions of batches, as published protocols draw them, against hand calculations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax import Learned
from attnjax.config import parse
from attnjax.modules import Encoder, TransformerConfig
from attnjax.tasks.forms import SequencePair, Sequences, specials
from attnjax.train.data import batch, sequences
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.model import build
from attnjax.train.position_sampling import sample_positions

MODEL = {"layers": 2, "model": 8, "heads": 2, "hidden": 8}


def make(task=(), **tables):
    """A tiny run and its task."""
    small = {"task": {"name": "reverse_string", "length_max": 6, **dict(task)}, "model": MODEL, "train": {"batch": 4}}
    run = parse(small | {name: {**small.get(name, {}), **table} for name, table in tables.items()})
    return run, make_task(run)


def example(tokens, n):
    """Rows of tokens, so many of each real."""
    tokens = np.asarray(tokens, np.int32)
    at = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    nothing = np.zeros(len(tokens), np.int32)
    return Sequences(tokens, tokens, at < np.reshape(n, (-1, 1)), at < np.reshape(n, (-1, 1)), at, nothing, nothing)


def drawn(run, task, made, *, test=False):
    draw = jax.jit(lambda made, key: sample_positions(run, task, made, key, test=test))
    return jax.tree.map(np.asarray, draw(made, jax.random.key(1)))


def spread(policy, n, size, maximum, **options):
    """Positions of rows of `size` tokens, n of each real."""
    run, task = make({"length_max": 4}, positions={"policy": policy, "maximum": maximum, **options})
    return drawn(run, task, example(np.zeros((len(n), size)), n)).positions


def test_a_batch_has_one_length_where_it_is_asked_to_and_begins_with_a_token_where_it_is_asked_to():
    found = []
    for options in ({}, {"length_per": "batch"}, {"length_per": "batch", "begin": True}):
        run, task = make(options)
        draw = functools.partial(lambda run, task, step: batch(run, task, np.uint32(0), step), run, task)
        found.append(jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(np.arange(8, dtype=np.int32))))
    each, shared, begun = found
    assert max(len(np.unique(row)) for row in each.answer) > 1
    assert all(len(np.unique(row)) == 1 for row in shared.answer)
    assert len(np.unique(shared.answer)) > 2
    assert (begun.tokens[..., 0] == specials(task).begin).all()
    np.testing.assert_array_equal(begun.tokens[..., 1:], shared.tokens)
    np.testing.assert_array_equal(begun.mask[..., 1:], shared.mask)
    np.testing.assert_array_equal(begun.answer, shared.answer + 1)


@pytest.mark.slow
def test_the_tail_counts_in_the_loss_of_an_encoder_and_never_in_its_tests():
    # binary_addition answers with length + 1 tokens: the sum, `end`, zeros.
    tail, task = make({"name": "binary_addition", "form": "encoder", "length_min": 6, "tail": True})
    plain, _ = make({"name": "binary_addition", "form": "encoder", "length_min": 6})
    key, lengths = jax.random.key(0), jnp.array([6, 6], jnp.int32)
    kinds = [(run, training) for run in (tail, plain) for training in (True, False)]
    made = jax.jit(lambda: [sequences(run, task, key, lengths, 6, training=training).mask for run, training in kinds])()
    assert np.asarray(made[0]).sum(1).tolist() == [7, 7]
    assert np.asarray(made[2]).sum(1).max() < 7
    np.testing.assert_array_equal(made[1], made[2])
    np.testing.assert_array_equal(made[3], made[2])


@pytest.mark.parametrize("policy", ["randomized", "offset"])
def test_real_tokens_have_positions_in_order_and_padding_takes_none_of_them(policy):
    found = spread(policy, np.repeat([1, 5], 400), size=8, maximum=10)
    one, five = found[:400], found[400:]
    assert found.max() == 9
    assert {*one[:, 0]} == {*range(10)}, "padding neither thins out a sample nor narrows a start"
    steps, starts = np.diff(five[:, :5]), five[:, 0]
    assert (steps == 1).all() if policy == "offset" else (steps > 0).all()
    # Starts are uniform in 0 .. 5; of 5 of 10 in order the first is 0 in C(9, 4) / C(10, 5) = 1/2 of all samples.
    share = 1 / 6 if policy == "offset" else 1 / 2
    assert {*starts} == {*range(6)}
    assert abs(np.mean(starts == 0) - share) < 4 * np.sqrt(share * (1 - share) / 400)
    assert policy == "offset" or (five[:, 5:] == 9).all()


def test_a_batch_may_share_its_sample_and_layers_may_have_their_own():
    shared = spread("randomized", [6] * 6, size=8, maximum=99, sample_per="batch")
    assert (shared.shape, len(np.unique(shared, axis=0))) == ((6, 8), 1)
    layered = spread("randomized", [6] * 6, size=8, maximum=99, sample_per_layer=True)
    assert (layered.shape, len(np.unique(layered.reshape(12, 8), axis=0))) == ((2, 6, 8), 12)


@pytest.mark.parametrize("at_test", ["arange", "same"])
def test_positions_of_tests_are_counted_unless_they_stay_the_same(at_test):
    run, task = make(positions={"policy": "randomized", "maximum": 99, "at_test": at_test, "sample_per_layer": True})
    made = example(np.zeros((2, 7)), 7)
    found = drawn(run, task, made, test=True).positions
    assert found.ndim == (2 if at_test == "arange" else 3)
    assert np.array_equal(found, made.positions) == (at_test == "arange")


def test_abacus_counts_digits_within_numbers_and_shifts_all_of_an_example_alike_in_training():
    """95 + 7 = 102, highest digit first, as a decoder reads it, with the tokens of its padding."""
    run, task = make({"name": "addition", "length_max": 2}, positions={"policy": "abacus", "maximum": 50})
    ids = specials(task)
    made = example([[9, 5, 10, 7, ids.separator, 1, 0, 2, ids.padding]] * 200, 8)
    counted = np.array([1, 2, 0, 1, 0, 1, 2, 3, 0])
    assert (drawn(run, task, made, test=True).positions == counted).all()
    found = drawn(run, task, made).positions
    start = found[:, :1] - 1
    np.testing.assert_array_equal(found, np.where(counted > 0, counted + start, 0))
    assert {*start.ravel()} == {*range(50)}


def test_coupled_digits_share_a_position_with_those_of_equal_significance_in_both_sides_of_a_pair():
    """95 + 7 = 102, the answer lowest digit first."""
    task = {"name": "addition", "length_max": 2, "options": {"order": "reversed_answer"}, "form": "encoder_decoder"}
    run, task = make(task, positions={"policy": "coupled", "maximum": 9})
    source, target = example([[9, 5, 10, 7]] * 50, 4), example([[2, 0, 1]] * 50, 3)
    pair, counted = SequencePair(source.tokens, source.valid, source.positions, target), np.array([2, 1, 0, 1, 1, 2, 3])
    both = lambda pair: np.concatenate([pair.source_positions, pair.target.positions], axis=1)
    assert (both(drawn(run, task, pair, test=True)) == counted).all()
    start = both(drawn(run, task, pair)) - counted
    assert (start == start[:, :1]).all()
    assert {*start.ravel()} == {*range(9)}


@pytest.mark.parametrize("options", [{"sample_per_layer": True}, {"sample_per": "batch"}], ids=str)
@pytest.mark.parametrize("policy", ["abacus", "offset"])
def test_abacus_shifts_both_sides_of_a_pair_alike(policy, options):
    """Digits of equal significance share a position, in the source and in the answer; other policies draw for each side."""
    run, task = make(
        {"name": "addition", "length_max": 2, "form": "encoder_decoder"},
        positions={"policy": policy, "maximum": 500, **options},
    )
    side = example([[9, 5, 10, 7]] * 64, 4)
    made = drawn(run, task, SequencePair(side.tokens, side.valid, side.positions, side))
    source, target = made.source_positions, made.target.positions
    assert source.shape == target.shape == ((2, 64, 4) if "sample_per_layer" in options else (64, 4))
    assert (source == target).all() == (policy == "abacus")
    assert (len(np.unique(source[..., 0])) == 1) == ("sample_per" in options)
    assert "sample_per_layer" not in options or (source[0] != source[1]).any()


@pytest.mark.slow
def test_both_sequences_of_a_pair_have_positions_of_their_own():
    """Those that a policy draws reach the encoder and the decoder."""
    positions = {"policy": "randomized", "maximum": 60}
    chosen = {"form": "encoder_decoder", "length_min": 6}
    run, task = make(chosen, positions=positions, model={**MODEL, "encoding": "sinusoidal"})
    pair = jax.jit(lambda step: batch(run, task, np.uint32(0), step))(np.int32(0))
    model = build(run, task)
    params = model.init(jax.random.key(0))
    logits = jax.jit(lambda pair: model.apply(params, pair))
    one = logits(pair)
    for other in (
        pair._replace(source_positions=pair.source_positions + 1),
        pair._replace(target=pair.target._replace(positions=pair.target.positions + 1)),
    ):
        assert np.abs(np.asarray(logits(other) - one)).max() > 1e-3


def test_embeddings_take_the_positions_of_the_first_layer():
    draw = np.random.default_rng(0)
    config = TransformerConfig(**MODEL, vocab=7, encoding=Learned(10))
    abstract = jax.eval_shape(lambda: Encoder(config, rngs=nnx.Rngs(0)))
    model = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(leaf.dtype), abstract)
    tokens, pos = np.array([[1, 2, 3]], np.int32), np.array([[[4, 5, 9]], [[0, 1, 2]]], np.int32)
    run = jax.jit(lambda model, pos: (model(tokens, pos=pos), model(tokens, pos=pos[0])))
    np.testing.assert_array_equal(*run(model, pos))
    weights = jax.eval_shape(lambda model: model.weights(tokens, pos=pos), model)
    assert weights.shape == (2, 1, 2, 3, 3)


@pytest.mark.slow
def test_dropout_in_tests_is_off_unless_asked_for_and_repeats():
    found = {}
    for drops in (False, True):
        evaluate = {"lengths": [4], "validation_lengths": [4], "count": 8, "batch": 4, "dropout": drops}
        run, task = make(evaluate=evaluate, model={**MODEL, "residual_dropout": 0.5})
        model = build(run, task)
        params = jax.jit(jax.vmap(model.init))(jnp.stack([jax.random.key(0)] * 2))
        evaluator = Evaluator(run, task, model)
        found[drops] = [[one.records for one in next(evaluator.measure(params))] for _ in range(2)]
    loss = {drops: [{r["metric"]: r["value"] for r in one}["loss"] for one in found[drops][0]] for drops in found}
    assert found[True][0] == found[True][1]
    assert abs(loss[True][0] - loss[False][0]) > 1e-3
    # Runs that train together are tested with the same draws, so that a run's number is its own.
    assert loss[True][0] == pytest.approx(loss[True][1], rel=1e-6)
