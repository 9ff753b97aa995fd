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


def test_rows_are_uniform_over_distributions_and_pi_is_stationary():
    chains, stationary = jax.vmap(Markov(symbols=4).chain)(jax.random.split(jax.random.key(1), 5000))
    chains, stationary = np.asarray(chains, np.float64), np.asarray(stationary, np.float64)
    np.testing.assert_allclose(np.einsum("ni,nij->nj", stationary, chains), stationary, atol=2e-6)
    np.testing.assert_allclose(stationary.sum(-1), 1, atol=1e-6)
    # Dirichlet(1, 1, 1, 1): means 1/4; second moments 2/20, of two different entries 1/20.
    np.testing.assert_allclose(chains.mean(0), 1 / 4, atol=0.02)
    np.testing.assert_allclose((chains**2).mean(0), 1 / 10, atol=0.015)
    np.testing.assert_allclose((chains[..., 0] * chains[..., 1]).mean(0), 1 / 20, atol=0.008)


@pytest.mark.parametrize(("symbols", "far", "worst"), [(2, 28, 0.007), (3, 0, 3e-6), (8, 0, 2**-22)])
def test_few_chains_are_too_periodic_for_their_stationary_distribution(symbols, far, worst):
    """Of 20,000 chains, those that another step changes by more than 1e-5, and the largest change: of 8 symbols, rounding."""
    chains, stationary = jax.vmap(Markov(symbols=symbols).chain)(jax.random.split(jax.random.key(0), 20_000))
    chains, stationary = np.asarray(chains, np.float64), np.asarray(stationary, np.float64)
    off = np.abs(np.einsum("ni,nij->nj", stationary, chains) - stationary).max(-1)
    assert (off > 1e-5).sum() == pytest.approx(far, abs=2)  # rounding may move one that is close to 1e-5
    assert off.max() < worst


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_no_product_is_rounded_to_fewer_bits_on_an_accelerator(platform):
    """By default a GPU has 10 bits of a factor's mantissa (TF32) and a TPU 7, and so chains and symbols of their own."""
    sample = jax.jit(lambda key: Markov(symbols=5).sample(key, [9, 4], 9))
    text = sample.trace(jax.random.key(0)).lower(lowering_platforms=(platform,)).as_text()
    products = re.findall(r"stablehlo\.dot_general.*", text)
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in product for product in products), products


@pytest.mark.parametrize("symbols", [2, 3, 8, 16])
def test_chains_on_a_cpu_have_the_bits_that_recorded_runs_trained_on(symbols):
    """Those of the formula with products of the default precision."""

    def recorded(key):
        weight = -jnp.log1p(-jax.random.uniform(key, (symbols, symbols), jnp.float32))
        chain = power = weight / weight.sum(-1, keepdims=True)
        for _ in range(8):
            power = power @ power
            power = power / power.sum(-1, keepdims=True)
        return chain, power[0]

    keys = jax.random.split(jax.random.key(3), 64)
    ours, theirs = (jax.jit(jax.vmap(function))(keys) for function in (Markov(symbols=symbols).chain, recorded))
    for mine, before in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(mine).view(np.uint32), np.asarray(before).view(np.uint32))


def test_pairs_have_the_probabilities_of_the_chain():
    """Counted along one long sequence."""
    t, key = Markov(symbols=3), jax.random.key(5)
    length = 40_000
    x = np.asarray(jax.jit(lambda key: t.example(key, jnp.int32(length), length).inputs)(key))
    chain, stationary = t.chain(jax.random.split(key)[0])
    pairs = np.zeros((3, 3))
    np.add.at(pairs, (x[:-1], x[1:]), 1)
    np.testing.assert_allclose(pairs / pairs.sum(1, keepdims=True), chain, atol=0.02)
    np.testing.assert_allclose(pairs.sum(1) / pairs.sum(), stationary, atol=0.02)


def test_what_followed_once_follows_again_as_often_as_with_a_uniform_prior(sequences):
    """P(the second symbol after a state is the first one) = sum_j E[p_j^2] = k 2 / (k (k + 1)) = 1/2 for k = 3."""
    same = []
    for row in sequences:
        for state in range(3):
            after = row[1:][row[:-1] == state][:2]
            same += [after[0] == after[1]] if len(after) == 2 else []
    assert len(same) > 10_000
    assert np.mean(same) == pytest.approx(1 / 2, abs=0.02)


@pytest.mark.slow
def test_sequences_of_one_key_end_alike():
    t, key = Markov(symbols=5), jax.random.key(2)
    whole = t.sample(key, [30, 30], 30)
    for length, size in ((7, 7), (7, 12), (30, 41)):
        made = t.sample(key, [length, length], size)
        np.testing.assert_array_equal(made.inputs[:, :length], whole.inputs[:, 30 - length :])
        np.testing.assert_array_equal(made.targets[:, :length], whole.targets[:, 30 - length :])
        assert not np.asarray(made.inputs[:, length:]).any()


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
