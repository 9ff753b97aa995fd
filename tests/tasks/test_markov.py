"""Markov chains: sequences have the distribution that the docstring says, and end alike whatever their length."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.tasks import Markov

COUNT, LENGTH = 4000, 60


@pytest.fixture(scope="module")
def sequences():
    """[COUNT, LENGTH + 1] symbols of chains of three states."""
    sample = jax.jit(lambda key: Markov(symbols=3).sample(key, jnp.full(COUNT, LENGTH), LENGTH))
    made = jax.tree.map(np.asarray, sample(jax.random.key(0)))
    assert np.array_equal(made.inputs[:, 1:], made.targets[:, :-1])
    assert (made.weight == 1).all()
    return np.concatenate([made.inputs, made.targets[:, -1:]], axis=1)


def chains(symbols, seed, count):
    """Chains and their stationary distributions in float64."""
    make = jax.jit(lambda key: jax.vmap(Markov(symbols=symbols).chain)(jax.random.split(key, count)))
    return (np.asarray(one, np.float64) for one in make(jax.random.key(seed)))


def test_rows_are_uniform_over_distributions():
    chain, stationary = chains(4, 1, 5000)
    np.testing.assert_allclose(stationary.sum(-1), 1, atol=1e-6)
    # Dirichlet(1, 1, 1, 1): means 1/4; second moments 2/20, of two different entries 1/20.
    np.testing.assert_allclose(chain.mean(0), 1 / 4, atol=0.02)
    np.testing.assert_allclose((chain**2).mean(0), 1 / 10, atol=0.015)
    np.testing.assert_allclose((chain[..., 0] * chain[..., 1]).mean(0), 1 / 20, atol=0.008)


@pytest.mark.parametrize(("symbols", "far", "worst"), [(2, 28, 0.007), (8, 0, 2**-22)])
def test_few_chains_are_too_periodic_for_their_stationary_distribution(symbols, far, worst):
    """Of 20,000 chains, those that another step changes by more than 1e-5, and the largest change: of 8 symbols, rounding."""
    chain, stationary = chains(symbols, 0, 20_000)
    off = np.abs(np.einsum("ni,nij->nj", stationary, chain) - stationary).max(-1)
    assert (off > 1e-5).sum() == pytest.approx(far, abs=2)  # rounding may move one that is close to 1e-5
    assert off.max() < worst


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_no_product_is_rounded_to_fewer_bits_on_an_accelerator(platform):
    """By default a GPU has 10 bits of a factor's mantissa (TF32) and a TPU 7, and so chains and symbols of their own."""
    sample = jax.jit(lambda key: Markov(symbols=5).sample(key, [9, 4], 9))
    text = sample.trace(jax.random.key(0)).lower(lowering_platforms=(platform,)).as_text()
    products = re.findall(r"stablehlo\.dot_general.*", text)
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in product for product in products), products


def test_pairs_have_the_probabilities_of_the_chain():
    """Counted along one long sequence."""
    t, key = Markov(symbols=3), jax.random.key(5)
    length = 40_000
    x = np.asarray(jax.jit(lambda key: t.example(key, jnp.int32(length), length).inputs)(key))
    chain, stationary = jax.jit(lambda key: t.chain(jax.random.split(key)[0]))(key)
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (x[:-1], x[1:]), 1)
    np.testing.assert_allclose(pairs / pairs.sum(1, keepdims=True), chain, atol=0.02)
    np.testing.assert_allclose(pairs.sum(1) / pairs.sum(), stationary, atol=0.02)


def test_sequences_of_one_key_end_alike():
    one, key = Markov(symbols=5), jax.random.key(2)
    sample = jax.jit(lambda lengths: one.sample(key, lengths, 30))
    whole, short = sample(np.array([30, 30])), sample(np.array([7, 12]))
    for row, length in enumerate((7, 12)):
        np.testing.assert_array_equal(short.inputs[row, :length], whole.inputs[row, 30 - length :])
        np.testing.assert_array_equal(short.targets[row, :length], whole.targets[row, 30 - length :])
        assert not np.asarray(short.inputs)[row, length:].any()


def test_counting_pairs_is_the_best_prediction_there_is(sequences):
    """The posterior over chains by sampling, after every symbol: its prediction is that of the counts."""
    inputs, targets = sequences[:300, :12], sequences[:300, 1:13]
    found = Markov(symbols=3).nats(inputs, targets)
    chains = np.random.default_rng(0).dirichlet(np.ones(3), (20_000, 3))
    for row in range(20):
        weight = np.ones(len(chains))
        for t, (now, after) in enumerate(zip(inputs[row], targets[row], strict=True)):
            share = (weight * chains[:, now, after]).sum() / weight.sum()
            assert found["bigram"][row, t] == pytest.approx(-np.log(share), abs=0.1)
            weight = weight * chains[:, now, after]
    assert found["bigram"][:, -1].mean() < found["unigram"][:, -1].mean() < np.log(3)
