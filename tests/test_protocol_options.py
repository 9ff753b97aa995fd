"""What published protocols need, against hand calculations: lengths, positions, forms, dropout and parts of the model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax import Learned
from attnjax.config import parse
from attnjax.modules import Decoder, Encoder, TransformerConfig
from attnjax.modules.models import TokenEmbedding
from attnjax.modules.stack import Stack
from attnjax.tasks.forms import Sequences, specials
from attnjax.train.data import batch, sequences
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.model import build
from attnjax.train.position_sampling import sample_positions
from tests.cases import slow_except

MODEL = {"layers": 1, "model": 8, "heads": 2, "hidden": 8}


def make(task="reverse_string", **tables):
    """A tiny run and its task."""
    named = task if isinstance(task, dict) else {"name": task}
    small = {"task": {"length_max": 6, **named}, "model": MODEL, "train": {"batch": 4}}
    run = parse({**small, **{name: {**small.get(name, {}), **table} for name, table in tables.items()}})
    return run, make_task(run)


def training(run, task, step=0):
    made = jax.jit(lambda step: batch(run, task, jnp.uint32(0), step))(jnp.int32(step))
    return jax.tree.map(np.asarray, made)


def example(tokens, n):
    """Rows of tokens, the first n of each real."""
    tokens = jnp.asarray(tokens, jnp.int32)
    valid = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None] < n, tokens.shape)
    at = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
    nothing = jnp.zeros(tokens.shape[:1], jnp.int32)
    return Sequences(tokens, tokens, valid, valid, at, nothing, nothing)


def placed(run, task, made, seed=1, *, test=False):
    found = jax.jit(lambda made, key: sample_positions(run, task, made, key, test=test).positions)(
        made, jax.random.key(seed)
    )
    return np.asarray(found)


def spread(policy, n, size, maximum=10, rows=400, layers=2, **options):
    """Positions of `rows` examples with n of `size` tokens real."""
    positions = {"policy": policy, "maximum": maximum, **options}
    run, task = make(
        {"name": "reverse_string", "length_max": 4}, positions=positions, model={**MODEL, "layers": layers}
    )
    return placed(run, task, example(np.zeros((rows, size)), n))


# Lengths and forms


def test_a_batch_has_one_length_where_it_is_asked_to():
    lengths = {}
    for per in ("example", "batch"):
        run, task = make({"name": "reverse_string", "length_per": per})
        answers = functools.partial(lambda run, task, step: batch(run, task, jnp.uint32(0), step).answer, run, task)
        lengths[per] = [set(row.tolist()) for row in jax.jit(jax.vmap(answers))(jnp.arange(8, dtype=jnp.int32))]
    assert all(len(one) == 1 for one in lengths["batch"])
    assert len(set.union(*lengths["batch"])) > 2
    assert max(len(one) for one in lengths["example"]) > 1


def test_begin_stands_before_the_input():
    plain, task = make()
    begun, _ = make({"name": "reverse_string", "begin": True})
    a, b = (training(run, task) for run in (plain, begun))
    assert (b.tokens[:, 0] == specials(task).begin).all()
    np.testing.assert_array_equal(b.tokens[:, 1:], a.tokens)
    np.testing.assert_array_equal(b.mask[:, 1:], a.mask)
    np.testing.assert_array_equal(b.answer, a.answer + 1)


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


@pytest.mark.parametrize(
    ("chosen", "policy", "words"),
    [
        ({"name": "induction", "begin": True}, "arange", "task.begin 'induction'"),
        ({"name": "addition", "form": "encoder"}, "abacus", "positions.policy='abacus' task.form 'encoder'"),
        ({"name": "copy"}, "abacus", "positions.policy='abacus' 'copy' digits"),
    ],
)
def test_options_that_a_task_cannot_have_are_refused(chosen, policy, words):
    run, task = make(chosen, positions={"policy": policy})
    with pytest.raises(ValueError, match=".*".join(words.split())):
        build(run, task)


# Positions


@pytest.mark.slow
def test_both_sequences_of_a_pair_have_positions_of_their_own():
    """Those that a policy draws reach the encoder and the decoder."""
    positions = {"policy": "randomized", "maximum": 60}
    chosen = {"name": "reverse_string", "form": "encoder_decoder", "length_min": 6}
    run, task = make(chosen, positions=positions, model={**MODEL, "encoding": "sinusoidal"})
    pair = training(run, task)
    model = build(run, task)
    params = model.init(jax.random.key(0))
    logits = jax.jit(lambda pair: model.apply(params, pair))
    one = logits(pair)
    for other in (
        pair._replace(source_positions=pair.source_positions + 1),
        pair._replace(target=pair.target._replace(positions=pair.target.positions + 1)),
    ):
        assert np.abs(np.asarray(logits(other) - one)).max() > 1e-3


def test_padding_neither_thins_out_a_sample_nor_narrows_a_start():
    for policy in ("randomized", "offset"):
        found = spread(policy, n=1, size=8)
        assert set(found[:, 0]) == set(range(10)), policy
        assert found.max() == 9, policy


def test_randomized_positions_ascend_over_the_real_tokens():
    found = spread("randomized", n=5, size=8)
    assert (np.diff(found[:, :5]) > 0).all()
    assert (found[:, 5:] == 9).all()
    assert len(np.unique(found, axis=0)) > 100
    # Of 5 of 10 in order, the first is 0 in C(9, 4) / C(10, 5) = 1/2 of all samples.
    assert abs(np.mean(found[:, 0] == 0) - 0.5) < 4 * np.sqrt(0.25 / 400)


@pytest.mark.parametrize("policy", slow_except(["randomized", "offset"], "randomized"))
def test_a_batch_may_share_its_sample_and_layers_may_have_their_own(policy):
    shared = spread(policy, n=6, size=8, maximum=99, rows=6, sample_per="batch")
    assert shared.shape == (6, 8)
    assert len(np.unique(shared, axis=0)) == 1
    layered = spread(policy, n=6, size=8, maximum=99, rows=6, layers=3, sample_per_layer=True)
    assert layered.shape == (3, 6, 8)
    assert len(np.unique(layered.reshape(18, 8), axis=0)) == 18
    both = spread(policy, n=6, size=8, maximum=99, rows=6, layers=3, sample_per="batch", sample_per_layer=True)
    assert len(np.unique(both.reshape(18, 8), axis=0)) == 3
    assert (both == both[:, :1]).all()


def test_positions_of_tests_are_counted_unless_they_stay_the_same():
    for at_test, counted in (("arange", True), ("same", False)):
        options = {"policy": "randomized", "maximum": 99, "at_test": at_test, "sample_per_layer": True}
        run, task = make(positions=options)
        made = example(np.zeros((2, 7)), 7)
        found = placed(run, task, made, test=True)
        assert found.ndim == (2 if counted else 3)
        assert np.array_equal(found, made.positions) == counted


def test_abacus_counts_digits_within_numbers_and_shifts_all_of_an_example_alike_in_training():
    """95 + 7 = 102, highest digit first, as a decoder reads it, with the tokens of its padding."""
    run, task = make({"name": "addition", "length_max": 2}, positions={"policy": "abacus", "maximum": 50})
    ids = specials(task)
    made = example([[9, 5, 10, 7, ids.separator, 1, 0, 2, ids.padding]] * 200, 8)
    counted = np.array([1, 2, 0, 1, 0, 1, 2, 3, 0])
    assert (placed(run, task, made, test=True) == counted).all()
    found = placed(run, task, made)
    start = found[:, :1] - 1
    np.testing.assert_array_equal(found, np.where(counted > 0, counted + start, 0))
    assert set(start.ravel().tolist()) == set(range(50))


@pytest.mark.parametrize(
    "options",
    slow_except([{}, {"sample_per_layer": True}, {"sample_per": "batch"}], {"sample_per_layer": True}),
    ids=str,
)
def test_abacus_shifts_both_sides_of_a_pair_alike(options):
    """Digits of equal significance share a position, in the source and in the answer; other policies draw for each side."""
    for policy, alike in (("abacus", True), ("offset", False)):
        run, task = make(
            {"name": "addition", "length_max": 2, "form": "encoder_decoder", "options": {"order": "reversed"}},
            positions={"policy": policy, "maximum": 500, **options},
            model={**MODEL, "layers": 2},
            train={"batch": 64},
        )
        made = training(run, task)
        source, target = made.source_positions, made.target.positions
        assert source.shape[:-1] == target.shape[:-1] == ((2, 64) if "sample_per_layer" in options else (64,))
        first, answer = source[..., 0], target[..., 1 if alike else 0]  # behind the token `begin`, which is no digit
        assert (first == answer).all() == alike
        assert not alike or (len(np.unique(first)) == 1) == ("sample_per" in options)
        assert "sample_per_layer" not in options or (first[0] != first[1]).any()


# Modules


def config(**fields):
    return TransformerConfig(**{"vocab": 7, **MODEL, **fields})


def filled(kind, **fields):
    """A module with random numbers for all parameters."""
    draw = np.random.default_rng(0)
    abstract = jax.eval_shape(lambda: kind(config(**fields), rngs=nnx.Rngs(0)))
    return jax.tree.map(lambda leaf: jnp.asarray(0.5 * draw.normal(size=leaf.shape), leaf.dtype), abstract)


def test_embeddings_take_the_positions_of_the_first_layer():
    model = filled(Encoder, encoding=Learned(10), layers=2)
    tokens = jnp.array([[1, 2, 3]], jnp.int32)
    pos = jnp.array([[[4, 5, 9]], [[0, 1, 2]]], jnp.int32)
    run = jax.jit(lambda model, pos: model(tokens, pos=pos))
    np.testing.assert_array_equal(run(model, pos), run(model, pos[0]))
    weights = jax.eval_shape(lambda model: model.weights(tokens, pos=pos), model)
    assert weights.shape == (2, 1, 2, 3, 3)


def silent(**fields):
    """A decoder whose sublayers add nothing, so that only what happens to embeddings shows."""
    model = filled(Decoder, **fields)
    for block in model.stack.blocks:
        for part in (block.attention.w_o, block.attention.b_o, block.feed_forward.w_out, block.feed_forward.b_out):
            part[...] = jnp.zeros_like(part[...])
    return model


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"residual_dropout": 0.5}, True),
        pytest.param({"residual_dropout": 0.5, "embedding_dropout": 0.0}, False, marks=pytest.mark.slow),
        pytest.param({"embedding_dropout": 0.5}, True, marks=pytest.mark.slow),
        pytest.param({}, False, marks=pytest.mark.slow),
    ],
)
def test_embeddings_are_dropped_where_it_is_said(fields, dropped):
    model, tokens = silent(**fields), jnp.array([[1, 2, 3]], jnp.int32)
    run = jax.jit(lambda model, key: model.features(tokens, key=key))
    plain, made = run(model, None), run(model, jax.random.key(0))
    assert np.array_equal(plain, made) != dropped


def test_start_of_embeddings_and_bias_of_the_output():
    fields = {"vocab": 300, "model": 64, "tie_embeddings": False, "output_bias": True}
    for std, expected in ((0.02, 0.02), (None, 1 / 8)):
        embedding = TokenEmbedding(config(**fields, embed_std=std), rngs=nnx.Rngs(0))
        np.testing.assert_allclose(np.std(embedding.table[...]), expected, rtol=0.02)
        np.testing.assert_allclose(np.std(embedding.w_out[...]), 1 / 8, rtol=0.02)
    x = jnp.ones((1, 1, 64))
    before = embedding.logits(x)
    embedding.b_out[...] = jnp.arange(300, dtype=jnp.float32)
    np.testing.assert_allclose(embedding.logits(x) - before, np.arange(300.0)[None, None], atol=1e-4)


@pytest.mark.parametrize("scan_layers", slow_except([False, True], True))
def test_layers_can_start_as_those_of_gpt2(scan_layers):
    """Deviation 0.02 of all matrices, and 0.02 / sqrt(2 L) of the two that write to the residual stream."""
    fields = {"vocab": 5, "model": 64, "heads": 4, "hidden": 256, "layers": 8, "activation": "swiglu"}
    blocks = Stack(
        config(**fields, kernel_std=0.02, residual_start=True, scan_layers=scan_layers), rngs=nnx.Rngs(0)
    ).blocks
    block = blocks if scan_layers else blocks[3]
    inside = [block.attention.w_q, block.attention.w_k, block.attention.w_v]
    inside += [block.feed_forward.w_in, block.feed_forward.w_gate]
    for w in inside:
        np.testing.assert_allclose(np.std(w[...]), 0.02, rtol=0.05)
    for w in (block.attention.w_o, block.feed_forward.w_out):
        np.testing.assert_allclose(np.std(w[...]), 0.02 / 4, rtol=0.05)


# Dropout in tests


@pytest.mark.slow
def test_dropout_in_tests_is_off_unless_asked_for_and_repeats():
    found = {}
    for drops in (False, True):
        evaluate = {"lengths": [4], "validation_lengths": [4], "count": 8, "batch": 4, "dropout": drops}
        run, task = make(evaluate=evaluate, model={**MODEL, "residual_dropout": 0.5})
        model = build(run, task)
        params = jax.jit(jax.vmap(model.init))(jnp.stack([jax.random.key(0)] * 2))
        evaluator = Evaluator(run, task, model)
        found[drops] = [next(iter(evaluator(params))) for _ in range(2)]
    loss = {drops: [{r["metric"]: r["value"] for r in one}["loss"] for one in found[drops][0]] for drops in found}
    assert found[True][0] == found[True][1]
    assert abs(loss[True][0] - loss[False][0]) > 1e-3
    # Runs that train together are tested with the same draws, so that a run's number is its own.
    assert loss[True][0] == pytest.approx(loss[True][1], rel=1e-6)
