"""Every example of every task against the slow oracle, the frozen streams, and the distribution that its definition says.

Each task is one compiled program here. The oracle itself is checked first, on examples that the papers and their code print.
"""

import collections
import json
import math

import numpy as np
import pytest
from scipy import stats

from attnjax.tasks import task
from tests.cases import slow_except
from tests.tasks import cases, make_streams, oracle

# From the docstrings of the published tasks: input, counted answer.
PRINTED = [
    ("even_pairs", "001110", "0"),
    ("even_pairs", "0101001", "1"),
    ("parity_check", "1010100", "1"),
    ("parity_check", "01111", "0"),
    ("cycle_navigation", "20100", "3"),
    ("cycle_navigation", "2220", "2"),
    ("modular_arithmetic", "15273", "2"),
    ("modular_arithmetic", "16161", "4"),
    ("modular_arithmetic", "07154736 2".replace(" ", ""), "0"),
    ("stack_manipulation", "0110422", "1102"),
    ("stack_manipulation", "110222", "2"),
    ("reverse_string", "011010", "010110"),
    ("duplicate_string", "101", "101101"),
    ("missing_duplicate_string", "01100210", "1"),
    ("missing_duplicate_string", "1011213", "0"),
    ("odds_first", "00110101", "01110100"),
    ("binary_addition", "001201101", "010112"),
    ("binary_addition", "10012000001", "1001012"),
    ("binary_multiplication", "001201101", "00011012"),
    ("compute_sqrt", "100101", "110"),
    ("compute_sqrt", "111", "10"),
    ("bucket_sort", "10204112", "00111224"),
]


@pytest.mark.parametrize(("name", "x", "expected"), PRINTED)
def test_the_oracle_gives_the_printed_answers(name, x, expected):
    tokens, counted = oracle.answer(name, task(name), [int(c) for c in x])
    assert "".join(map(str, tokens[:counted])) == expected


def test_the_oracle_reads_brackets():
    assert oracle.Parser("((-2)*(3+4))").whole() == -14 % 5
    assert oracle.Parser("(1-(-3))").whole() == 4
    # x in (x - 3) = 4 is 2.
    assert oracle.answer("solve_equation", task("solve_equation"), [7, 9, 6, 3, 8, 10, 4]) == ([2], 1)


@pytest.fixture(scope="module")
def streams():
    return json.loads(make_streams.PATH.read_text(encoding="utf-8"))


def check(case, example):
    """Every example of a batch has the answer of the oracle, its weight, and zeros behind it."""
    name, task = cases.name_of(case), cases.CASES[case]
    inputs = cases.rows(example.inputs, example.input_length)
    targets = cases.rows(example.targets, example.target_length)
    counts = example.weight.sum(-1).tolist()
    for x, y, count in zip(inputs, targets, counts, strict=True):
        assert oracle.answer(name, task, x) == (y, count)
    place_i, place_o = np.arange(example.inputs.shape[1]), np.arange(example.targets.shape[1])
    assert not example.inputs[place_i >= example.input_length[:, None]].any()
    behind = place_o >= example.target_length[:, None]
    assert not example.targets[behind].any()
    assert not example.weight[behind].any()
    if not task.aligned:
        np.testing.assert_array_equal(example.weight, place_o < example.weight.sum(-1, keepdims=True))
    assert all(leaf.dtype == np.int32 for leaf in example)
    assert example.inputs.min() >= 0
    assert example.inputs.max() < task.input_vocab
    assert example.targets.max() < task.output_vocab


def some(example, rows):
    return type(example)(*(leaf[rows] for leaf in example))


@pytest.mark.parametrize("case", slow_except(cases.CASES, *(cases.CASES.keys() - cases.SLOW)))
def test_labels_streams_and_independence(case, streams):
    """Of a seed come the frozen examples; each row depends on its place and length alone; a length out of range gives zeros."""
    task = cases.CASES[case]
    assert make_streams.first(task) == streams[case]
    lengths = cases.lengths(task)
    example = cases.draw(task, lengths)
    assert example.inputs.shape == (cases.COUNT, task.input_size(cases.SIZE))
    assert example.targets.shape == (cases.COUNT, task.output_size(cases.SIZE))
    check(case, some(example, slice(3, 3 + 6 * cases.SIZE)))
    lengths[1::3], lengths[2::3] = task.minimum_length - 1, cases.SIZE + 1
    other = cases.draw(task, lengths)
    for leaf, before in zip(other, example, strict=True):
        np.testing.assert_array_equal(leaf[::3], before[::3])
        assert not leaf[1::3].any()
        assert not leaf[2::3].any()


def test_the_frozen_streams_are_those_of_all_cases(streams):
    assert streams.keys() == cases.STREAMS.keys()
    assert make_streams.first(cases.STREAMS["markov"]) == streams["markov"]


@pytest.mark.slow
@pytest.mark.parametrize("case", cases.CASES)
def test_labels_of_long_inputs_and_that_padding_changes_nothing(case):
    task = cases.CASES[case]
    most, short = min(cases.LONG, task.maximum_length or cases.LONG), cases.lengths(task)[:24]
    long = np.linspace(cases.SIZE + 1, most, 24).astype(np.int32)
    example = cases.draw(task, np.append(short, long), max_length=most)
    check(case, example)
    # The same key and lengths, padded less and among others.
    for wide, narrow in zip(example, cases.draw(task, cases.lengths(task)), strict=True):
        wide, narrow = wide[:24], narrow[:24]
        if wide.ndim == 2:
            assert not wide[:, narrow.shape[1] :].any()
            wide = wide[:, : narrow.shape[1]]
        np.testing.assert_array_equal(wide, narrow)


# Distributions -------------------------------------------------------------------------------------------------------


def root(text):
    """Where the operator of the outermost bracket stands: the first one at depth 1 that follows an operand."""
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 1 and c in "+-*" and text[at - 1] not in "(+-*":
            return at
    raise AssertionError(text)


def spelled(x):
    return [oracle.spelled(row, "+-*()") for row in x.tolist()]


def operands(x, token=2):
    """The digits of both operands of each row, without the padding of shorter ones."""
    return [oracle.split_at(row, token) for row in x.tolist()]


def first_operands(x):
    """The values of first operands of three bits."""
    return [oracle.number(n) for n, _ in operands(x) if len(n) == 3]


def zeros(x):
    return (x == 0).sum(-1)


def uniform(choices):
    choices = list(choices)
    return dict.fromkeys(choices, 1 / len(choices))


BRACKETS = "modular_arithmetic_brackets"
STRINGS = {"even_pairs": 2, "parity_check": 2, "cycle_navigation": 3, "bucket_sort": 5, "copy": 100}
LEADERS = 26 + 26 * 25 * 3
"""Strings of three letters of which one is the most frequent: 26 of them have all letters alike."""
DISTRIBUTIONS = [
    *((name, 8, lambda x: x[:, 3], uniform(range(symbols))) for name, symbols in STRINGS.items()),
    ("parity_check", 8, lambda x: x @ 2 ** np.arange(8) % 32, uniform(range(32))),
    ("modular_arithmetic", 9, lambda x: x[:, 4], uniform(range(5))),
    ("modular_arithmetic", 9, lambda x: x[:, 5], uniform(range(5, 8))),
    ("stack_manipulation", 10, lambda x: (x < 2).sum(-1), uniform(range(1, 10))),
    ("stack_manipulation", 10, lambda x: x[:, -1], uniform((2, 3, 4))),
    ("stack_manipulation", 10, lambda x: x[:, 0], uniform((0, 1))),
    (BRACKETS, 14, lambda x: [root(t) - 1 for t in spelled(x)], uniform(range(1, 11))),
    (BRACKETS, 14, lambda x: [t[root(t)] for t in spelled(x)], uniform("+-*")),
    # A left side of 8 tokens splits again, into 1 .. 4 and the rest.
    (BRACKETS, 14, lambda x: [root(t[1:9]) for t in spelled(x) if root(t) == 9], uniform(range(2, 6))),
    # Left has length 1 or 2, then right 2 or 1: (d op -d) or (-d op d).
    (BRACKETS, 6, lambda x: [t[1] == "-" for t in spelled(x)], uniform((False, True))),
    # `(d op d)` has digits at 1 and 3 of 5 tokens: the first is met from places 4, 0 and 1, the second from 2 and 3.
    ("solve_equation", 7, lambda x: (x == 9).argmax(-1), {1: 3 / 5, 3: 2 / 5}),
    ("solve_equation", 7, lambda x: x[:, 2], uniform((5, 6))),
    ("missing_duplicate_string", 9, lambda x: (x == 2).argmax(-1), uniform(range(8))),
    ("binary_addition", 7, lambda x: (x == 2).argmax(-1), uniform(range(1, 6))),
    ("binary_multiplication", 7, first_operands, uniform(range(1, 8))),
    ("binary_addition", 2, lambda x: x @ [1, 2], uniform(range(3))),
    ("binary_addition", 1, lambda x: x[:, 0], {0: 1.0}),
    ("compute_sqrt", 4, lambda x: x @ [8, 4, 2, 1], uniform(range(1, 16))),
    ("binary_majority", 9, zeros, uniform(range(10))),
    ("binary_majority", 10, zeros, uniform(n for n in range(11) if n != 5)),
    ("binary_majority", 9, lambda x: (x[zeros(x) == 1] == 0).argmax(-1), uniform(range(9))),
    ("majority", 3, lambda x: [oracle.most_common(row) for row in x.tolist()], uniform(range(26))),
    ("majority", 3, lambda x: (x == x[:, :1]).all(-1), {True: 26 / LEADERS, False: 1 - 26 / LEADERS}),
    ("interleaved_majority", 15, lambda x: 6 * zeros(x[:, ::3]) + zeros(x[:, 1::3]), uniform(range(36))),
    ("parity", 10, lambda x: x.sum(-1), uniform(range(11))),
    ("parity-iid", 10, lambda x: x.sum(-1), {n: math.comb(10, n) / 2**10 for n in range(11)}),
    ("unique_copy", 12, lambda x: x[:, 0] // 15, uniform(range(10))),
    ("sort", 12, lambda x: x[:, 0] < x[:, 1], uniform((False, True))),
    ("big_endian_addition", 9, lambda x: (x == 2).argmax(-1), uniform(range(1, 7))),
    ("big_endian_addition", 9, first_operands, uniform(range(4, 8))),
    ("copy-rdc", 5, lambda x: x[:, 0] // 10, uniform(range(10))),
    ("copy-rdc", 5, lambda x: ((x[:, 1] - x[:, 0]) % 100 - 1) // 9, uniform(range(11))),
    ("addition", 4, lambda x: [n[0] for n, _ in operands(x, 10) if len(n) > 1], uniform(range(1, 10))),
    ("addition", 4, lambda x: [n[0] for n, _ in operands(x, 10) if len(n) == 1], uniform(range(10))),
    ("addition", 4, lambda x: [n[2] for n, _ in operands(x, 10) if len(n) > 2], uniform(range(10))),
    ("flip_flop", 16, lambda x: x[:, 2:-1:2].ravel(), {0: 0.1, 1: 0.1, 2: 0.8}),
    ("flip_flop", 16, lambda x: x[:, 1], uniform((3, 4))),
    ("associative_recall", 6, lambda x: (x[:, :12:2] == x[:, 12:]).argmax(-1), uniform(range(6))),
    ("associative_recall", 6, lambda x: x[:, 5] - 512, uniform(range(32))),
    ("associative_recall", 6, lambda x: x[:, 0] // 64, uniform(range(8))),
]
"""A case, a length, a statistic of the inputs [n, length] of this length, and the probability of each of its values."""


@pytest.mark.parametrize(("case", "length", "statistic", "probabilities"), DISTRIBUTIONS)
def test_inputs_are_distributed_as_defined(case, length, statistic, probabilities):
    """By a chi-squared test of 1,000 draws of a fixed seed, which a right sampler fails once in a million."""
    example = cases.draw(cases.CASES[case], np.full(cases.COUNT, length, np.int32), seed=1)
    rows = example.inputs[:, : example.input_length.max()]
    counts = collections.Counter(np.asarray(statistic(rows)).tolist())
    assert counts.keys() <= probabilities.keys()
    if len(probabilities) > 1:
        expected = [counts.total() * p for p in probabilities.values()]
        assert stats.chisquare([counts[value] for value in probabilities], expected).pvalue > 1e-6
