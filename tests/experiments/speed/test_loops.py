"""The baselines of the benchmark: they learn, they compile as often as they claim, and they compute what our models do."""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from attnjax.modules import Decoder, TransformerConfig, generate
from attnjax.positions import NoPE, RoPE
from experiments.speed.harness import agree
from experiments.speed.peers import linen, loops
from experiments.speed.timing import cold, counted

SYMBOLS = 5
SIZES = {"vocab": 11, "model": 16, "layers": 2, "heads": 4, "hidden": 24}


@pytest.fixture(scope="module", autouse=True)
def as_jax_is_by_default():
    """Flax and optax are called as in their own examples; these programs are tiny, and run for milliseconds."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), cold(quick=True):
        yield


def successor(key, length):
    """Each token is followed by the next number."""
    tokens = jax.random.randint(key, (8, length), 0, SYMBOLS, jnp.int32)
    return loops.Batch(tokens, (tokens + 1) % SYMBOLS, tokens >= 0)


def table():
    """A row of logits per token: it learns the successor in a few steps."""
    init = lambda key: {"w": jnp.zeros((SYMBOLS, SYMBOLS))}
    return loops.Problem(init, lambda params, tokens: params["w"][tokens], optax.adam(0.3), successor)


def losses(loop, steps):
    return [float(loss) for loss in itertools.islice(loop, steps)]


def assert_learned(found):
    np.testing.assert_allclose(found[0], np.log(SYMBOLS), rtol=1e-6)
    assert max(found[-5:]) < 0.05


def test_a_ruoss_style_loop_learns_and_compiles_for_each_length():
    with counted() as names:
        assert_learned(losses(loops.ruoss_style(table(), loops.every_length(2, 4), log_every=3), 60))
    assert Counter(names)["jit(update)"] == Counter(names)["jit(sample)"] == 3


def test_a_nanodo_style_loop_learns_and_compiles_once():
    examples = successor(jax.random.key(0), 6)
    with counted() as names:
        assert_learned(losses(loops.nanodo_style(table(), loops.from_host(examples, 8), log_every=3), 60))
    assert Counter(names)["jit(step)"] == 1


def test_tokens_that_do_not_count_are_not_learned():
    batch = successor(jax.random.key(0), 6)
    problem, nothing = table(), batch._replace(mask=np.zeros_like(batch.mask))
    assert float(problem.loss({"w": jnp.eye(SYMBOLS)}, nothing)) == 0
    half = batch._replace(mask=np.arange(6) % 2 == np.zeros((8, 1), int))
    logits = jnp.eye(SYMBOLS)[batch.tokens]
    right = jax.nn.log_softmax(logits)[np.arange(8)[:, None], np.arange(6)[None], batch.targets]
    np.testing.assert_allclose(problem.loss({"w": jnp.eye(SYMBOLS)}, half), -right[:, ::2].mean(), rtol=1e-6)


def test_every_length_comes_equally_often():
    drawn = list(itertools.islice(loops.every_length(3, 7), 25))
    assert drawn[:5] == [3, 4, 5, 6, 7]
    blocks = [drawn[i : i + 5] for i in range(0, 25, 5)]
    assert all(sorted(block) == drawn[:5] for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1


def test_rows_from_the_host_stay_together():
    examples = successor(jax.random.key(0), 6)
    drawn = [next(loops.from_host(examples, 20, seed=seed)) for seed in (0, 0, 1)]
    for batch in drawn:
        assert batch.tokens.shape == batch.mask.shape == (20, 6)
        np.testing.assert_array_equal(batch.targets, (batch.tokens + 1) % SYMBOLS)
    np.testing.assert_array_equal(drawn[0].tokens, drawn[1].tokens)
    assert (drawn[0].tokens != drawn[2].tokens).any()


def test_testing_length_by_length_compiles_for_each():
    test = loops.length_by_length(
        lambda length: successor(jax.random.key(0), length), lambda w, batch: (w * batch.mask).sum(), 2.0
    )
    with counted() as names:
        assert [float(test(length)) for length in (1, 2, 3, 2, 1)] == [16, 32, 48, 32, 16]
    assert Counter(names)["jit(<lambda>)"] == 6


def decoder(encoding, seed=0):
    """Our decoder with random numbers for parameters."""
    model = nnx.eval_shape(lambda: Decoder(TransformerConfig(**SIZES, encoding=encoding), rngs=nnx.Rngs(0)))
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(0.6 * draw.normal(size=leaf.shape), leaf.dtype), model)


def theirs(model):
    return linen.from_ours(nnx.to_pure_dict(nnx.split(model, graph=False)[1]))


@pytest.mark.parametrize("encoding", [NoPE(), RoPE()], ids=["nope", "rope"])
def test_the_peer_in_flax_linen_is_our_decoder(encoding):
    mine, tokens = decoder(encoding), np.random.default_rng(1).integers(0, 11, (2, 8))
    peer = linen.Transformer(**SIZES, rotary=encoding == RoPE())
    ours = jax.jit(lambda model: model(tokens))(mine)
    found = jax.jit(peer.apply)(theirs(mine), tokens)
    assert agree("logits", ours, found, 1e-5) > 0
    assert np.std(found) > 0.3
    shapes = jax.tree.map(jnp.shape, jax.eval_shape(peer.init, jax.random.key(0), tokens))
    assert shapes == jax.tree.map(jnp.shape, theirs(mine))


@pytest.mark.slow
def test_both_ways_to_decode_in_flax_linen_continue_as_we_do():
    mine, steps, prompt = decoder(NoPE(), seed=5), 6, jnp.array([[3], [7]])
    peer = linen.Transformer(**SIZES, rotary=False, decode=True)
    with counted() as names:
        one_by_one = linen.token_by_token(peer, theirs(mine), prompt, steps)
        first = one_by_one()
        np.testing.assert_array_equal(first, one_by_one())
    assert sum("_next_token" in name for name in names) == 1
    np.testing.assert_array_equal(first, linen.in_one_loop(peer, theirs(mine), prompt, steps)())
    np.testing.assert_array_equal(first, generate(mine, prompt, steps))
    whole = jnp.concatenate([prompt, first], 1)
    logits = jax.jit(linen.Transformer(**SIZES, rotary=False).apply)(theirs(mine), whole)
    np.testing.assert_array_equal(first, logits[:, :-1].argmax(-1))
    assert len(np.unique(first)) > 1
