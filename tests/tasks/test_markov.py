"""Markov chains: sequences have the distribution that the docstring says, and end alike whatever their length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.tasks import Markov, task

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


def test_no_symbol_and_no_place_is_special(sequences):
    share = np.stack([(sequences == symbol).mean(0) for symbol in range(3)])
    assert share.shape == (3, LENGTH + 1)
    # Symbols of one place are of different chains: the error of a share of COUNT is at most 0.008.
    np.testing.assert_allclose(share, 1 / 3, atol=0.035)


def test_what_followed_once_follows_again_as_often_as_with_a_uniform_prior(sequences):
    """P(the second symbol after a state is the first one) = sum_j E[p_j^2] = k 2 / (k (k + 1)) = 1/2 for k = 3."""
    same = []
    for row in sequences:
        for state in range(3):
            after = row[1:][row[:-1] == state][:2]
            same += [after[0] == after[1]] if len(after) == 2 else []
    assert len(same) > 10_000
    assert np.mean(same) == pytest.approx(1 / 2, abs=0.02)


def test_sequences_of_one_key_end_alike():
    t, key = Markov(symbols=5), jax.random.key(2)
    whole = t.sample(key, [30, 30], 30)
    for length, size in ((7, 7), (7, 12), (30, 41)):
        made = t.sample(key, [length, length], size)
        np.testing.assert_array_equal(made.inputs[:, :length], whole.inputs[:, 30 - length :])
        np.testing.assert_array_equal(made.targets[:, :length], whole.targets[:, 30 - length :])
        assert not np.asarray(made.inputs[:, length:]).any()


def test_one_symbol_is_no_chain():
    with pytest.raises(ValueError, match=r"^Markov: symbols must be an int of at least 2, got 1$"):
        task("markov", symbols=1)


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
