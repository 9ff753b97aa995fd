"""Options of tasks that follow the data of published generators, against those generators' own arithmetic, written out here."""

import jax
import numpy as np
from scipy import stats

from attnjax.tasks import task
from tests.tasks import cases, oracle


def published_bits(length: int, low: int, high: int, period: int = 3) -> int:
    """Bits of each string, as algorithmic/language_modeling_train.py of lacoco-lab/length_generalization computes them."""
    each = round(length / period)
    if each * period > high:
        each -= 1
    if each * period < low:
        each += 1
    return each


def test_interleaved_strings_have_the_published_lengths():
    """Lengths 3 to 50 in training, 51 to 100 and 101 to 150 in tests; rounding down would give 99 for 101."""
    of_ours = task("interleaved_majority", ranges=50)
    for low, high in ((3, 50), (51, 100), (101, 150)):
        for length in range(low, high + 1):
            assert of_ours.bits(length) == published_bits(length, low, high), length
            assert low <= 3 * of_ours.bits(length) <= high
    assert task("interleaved_majority").bits(101) == 33


def test_interleaved_strings_of_a_range_fill_their_batch():
    """Lengths 4, 5, 6 and 8 of ranges of 6 have 3, 6, 6 and 9 tokens, and answers that follow from them."""
    ours = task("interleaved_majority", ranges=6)
    lengths = np.array([4, 5, 6, 8], np.int32)
    example = jax.tree.map(np.asarray, cases.compiled(lambda n: ours.sample(jax.random.key(0), n, 8))(lengths))
    assert example.input_length.tolist() == [3, 6, 6, 9]
    assert example.inputs.shape[1] == ours.input_size(8) == 9
    wider = cases.compiled(lambda n: ours.sample(jax.random.key(0), n, 11))(lengths)
    np.testing.assert_array_equal(wider.inputs[:, :9], example.inputs)
    for x, y in zip(
        cases.rows(example.inputs, example.input_length), cases.rows(example.targets, np.full(4, 3)), strict=True
    ):
        assert oracle.interleaved_majority(ours, x)[0] == y


def test_addition_has_the_published_pairs_of_digits():
    """At longer operand 6 the pairs of lengths from 4 on are 6+4, 6+5, 6+6, 4+6, 5+6, each as often."""
    ours = task("addition", shortest=4)
    sample = cases.compiled(lambda n: ours.sample(jax.random.key(3), n, 6))
    example = jax.tree.map(np.asarray, sample(np.full(4000, 6, np.int32)))
    found = [tuple(map(len, oracle.split_at(x, 10))) for x in cases.rows(example.inputs, example.input_length)]
    pairs = {(6, 4), (6, 5), (6, 6), (4, 6), (5, 6)}
    assert set(found) == pairs
    assert stats.chisquare([found.count(pair) for pair in pairs]).pvalue > 1e-4
    assert ours.minimum_length == 4
