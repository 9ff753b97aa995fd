"""The inputs are distributed as the definitions say: 10,000 draws of a fixed seed against exact probabilities.

A count is compared with its binomial mean within 5 standard deviations: a right sampler fails one cell in two million.
"""

import collections
import math

import numpy as np
import pytest

from attnjax.tasks import task
from tests.tasks import cases, oracle

pytestmark = pytest.mark.slow


def expect(values, probabilities):
    """`values` occur as often as a dict of probabilities says, and no other value occurs."""
    counts = collections.Counter(values)
    assert counts.keys() <= probabilities.keys()
    n = counts.total()
    assert math.isclose(sum(probabilities.values()), 1.0)
    for value, p in probabilities.items():
        assert abs(counts[value] - n * p) <= 5 * math.sqrt(n * p * (1 - p)), (value, counts[value], n * p)


def expect_uniform(values, choices):
    choices = list(choices)
    expect(values, dict.fromkeys(choices, 1 / len(choices)))


def of_length(name, length, **options):
    """The inputs of 10,000 examples of one length."""
    example = cases.constant(task(name, **options), length)
    return np.asarray(example.inputs)[:, : int(example.input_length[0])], example


STRINGS = {
    "even_pairs": 2,
    "parity_check": 2,
    "cycle_navigation": 3,
    "reverse_string": 2,
    "duplicate_string": 2,
    "odds_first": 2,
    "bucket_sort": 5,
    "repeated_copy": 2,
    "copy": 100,
    "reverse": 100,
}


@pytest.mark.parametrize("name", STRINGS)
def test_strings_are_independent_and_uniform(name):
    x, _ = of_length(name, 8)
    symbols = STRINGS[name]
    for place in (0, 3, 7):
        expect_uniform(x[:, place].tolist(), range(symbols))
    if symbols <= 5:
        expect_uniform((x[:, 2] * symbols + x[:, 3]).tolist(), range(symbols**2))


def test_examples_of_a_batch_differ():
    x, _ = of_length("parity_check", 40)
    assert len({row.tobytes() for row in x}) == len(x)


def test_modular_arithmetic():
    x, _ = of_length("modular_arithmetic", 9)
    for place in range(9):
        expect_uniform(x[:, place].tolist(), range(5, 8) if place % 2 else range(5))


def test_stack_heights_and_actions():
    x, _ = of_length("stack_manipulation", 10)
    heights = (x < 2).sum(-1)
    expect_uniform(heights.tolist(), range(1, 10))
    expect_uniform(x[heights == 5][:, 7].tolist(), (2, 3, 4))
    expect_uniform(x[heights == 5][:, 2].tolist(), (0, 1))


def root(text):
    """Where the operator of the outermost bracket stands: the first one at depth 1 that follows an operand."""
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 1 and c in "+-*" and text[at - 1] not in "(+-*":
            return at
    raise AssertionError(text)


def test_brackets_split_uniformly_at_every_node():
    x, _ = of_length("modular_arithmetic_brackets", 14)
    texts = [oracle.spelled(row, "+-*()") for row in x.tolist()]
    at = [root(text) for text in texts]
    expect_uniform([i - 1 for i in at], range(1, 11))
    expect_uniform([text[i] for text, i in zip(texts, at, strict=True)], "+-*")
    # A left side of 8 tokens splits again, into 1 .. 4 and the rest.
    expect_uniform([root(text[1:9]) - 1 for text, i in zip(texts, at, strict=True) if i == 9], range(1, 5))


def test_brackets_of_length_six_are_exactly_uniform_where_the_grammar_is():
    x, _ = of_length("modular_arithmetic_brackets", 6)
    texts = [oracle.spelled(row, "+-*()") for row in x.tolist()]
    # Left has length 1 or 2, then right 2 or 1: (d op -d) or (-d op d).
    expect_uniform([text[1] == "-" for text in texts], (False, True))
    expect_uniform([text[1] for text in texts if text[1] != "-"], "01234")


def test_solve_equation_hides_the_digit_at_or_after_a_uniform_place():
    x, _ = of_length("solve_equation", 7)
    # `(d op d)` has digits at 1 and 3 of 5 tokens: the first is met from places 4, 0 and 1, the second from 2 and 3.
    hidden = [row.index(9) for row in x.tolist()]
    expect(hidden, {1: 3 / 5, 3: 2 / 5})
    expect_uniform([row[2] for row in x.tolist()], (5, 6))


def test_missing_duplicate_hides_any_place():
    x, _ = of_length("missing_duplicate_string", 9)
    expect_uniform([row.index(2) for row in x.tolist()], range(8))


@pytest.mark.parametrize("name", ["binary_addition", "binary_multiplication"])
def test_binary_operands(name):
    x, _ = of_length(name, 7)
    pairs = [oracle.split_at(row, 2) for row in x.tolist()]
    expect_uniform([len(n) for n, _ in pairs], range(1, 6))
    expect_uniform([oracle.number(n[::-1]) for n, _ in pairs if len(n) == 3], range(1, 8))
    expect_uniform([oracle.number(m[::-1]) for _, m in pairs if len(m) == 2], range(1, 4))


def test_short_binary_addition_is_one_number():
    x, _ = of_length("binary_addition", 2)
    expect_uniform([a + 2 * b for a, b in x.tolist()], range(3))
    assert not of_length("binary_addition", 1)[0].any()


def test_square_root_numbers_are_uniform_and_positive():
    x, _ = of_length("compute_sqrt", 4)
    expect_uniform([oracle.number(row) for row in x.tolist()], range(1, 16))


@pytest.mark.parametrize("length", [9, 10])
def test_binary_majority_counts_are_uniform_without_the_tie(length):
    x, _ = of_length("binary_majority", length)
    zeros = (x == 0).sum(-1)
    expect_uniform(zeros.tolist(), [n for n in range(length + 1) if 2 * n != length])
    # Given 2 zeros among `length` places, each place holds one with probability 2 / length.
    share = (x[zeros == 2] == 0).mean(0)
    assert np.abs(share - 2 / length).max() < 5 * math.sqrt(2 / length / (zeros == 2).sum())


def test_majority_is_uniform_given_that_one_letter_leads():
    x, example = of_length("majority", 3)
    expect_uniform(example.targets[:, 0].tolist(), range(26))
    # Of 26 + 26 * 25 * 3 strings of 3 letters with one leader, 26 have all letters alike.
    alike = [len(set(row)) == 1 for row in x.tolist()]
    expect(alike, {True: 1 / 76, False: 75 / 76})


def test_interleaved_strings_are_independent():
    x, example = of_length("interleaved_majority", 15)
    zeros = [(x[:, i::3] == 0).sum(-1) for i in range(3)]
    for count in zeros:
        expect_uniform(count.tolist(), range(6))
    expect_uniform((zeros[0] * 6 + zeros[1]).tolist(), range(36))
    expect_uniform((example.targets[:, :3] @ np.array([1, 2, 4])).tolist(), range(8))


def test_parity_has_a_uniform_number_of_ones():
    x, _ = of_length("parity", 10)
    expect_uniform(x.sum(-1).tolist(), range(11))
    single = x[x.sum(-1) == 1]
    expect_uniform(single.argmax(-1).tolist(), range(10))


def test_independent_parity_has_a_binomial_number_of_ones():
    x, _ = of_length("parity", 10, ones="iid")
    expect(x.sum(-1).tolist(), {n: math.comb(10, n) / 2**10 for n in range(11)})


@pytest.mark.parametrize("name", ["unique_copy", "sort"])
def test_draws_without_replacement_are_uniform(name):
    x, _ = of_length(name, 12)
    for place in (0, 11):
        expect_uniform((x[:, place] // 15).tolist(), range(10))
    expect([a < b for a, b in x[:, :2].tolist()], {True: 0.5, False: 0.5})


def test_big_endian_operands():
    x, _ = of_length("big_endian_addition", 9)
    pairs = [oracle.split_at(row, 2) for row in x.tolist()]
    expect_uniform([len(n) for n, _ in pairs], range(1, 7))
    expect_uniform([oracle.number(n) for n, _ in pairs if len(n) == 3], range(4, 8))
    expect_uniform([oracle.number(m) for _, m in pairs if len(m) == 1], range(2))


def test_replacing_draws_every_pair_of_different_tokens():
    x, _ = of_length("copy", 5, variant="rdc")
    expect_uniform((x[:, 0] // 10).tolist(), range(10))
    steps = (x[:, 1] - x[:, 0]) % 100
    assert steps.min() == 1
    expect_uniform(((steps - 1) // 9).tolist(), range(11))


def test_addition_draws_every_pair_of_lengths():
    example = cases.constant(task("addition"), 4)
    pairs = [oracle.split_at(row, 10) for row in cases.rows(example.inputs, example.input_length)]
    lengths = [(len(n), len(m)) for n, m in pairs]
    expect_uniform(lengths, [*((4, m) for m in range(1, 5)), *((n, 4) for n in range(1, 4))])
    expect_uniform([n[0] for n, _ in pairs if len(n) > 1], range(1, 10))
    expect_uniform([n[0] for n, _ in pairs if len(n) == 1], range(10))
    expect_uniform([n[2] for n, _ in pairs if len(n) > 2], range(10))


def test_recall_asks_for_any_pair():
    x, example = of_length("associative_recall", 6)
    keys, query = x[:, 0:12:2], x[:, 12]
    expect_uniform((keys == query[:, None]).argmax(-1).tolist(), range(6))
    expect_uniform((example.targets[:, 0] - 512).tolist(), range(32))
    expect_uniform((keys[:, 0] // 64).tolist(), range(8))


def test_induction_counts_the_second_copy_from_its_second_token_on():
    _, example = of_length("induction", 4)
    np.testing.assert_array_equal(example.weight[0][:8], [0, 0, 0, 0, 1, 1, 1, 0])
