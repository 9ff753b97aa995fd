"""Every label against the slow oracle: 40 inputs per task in the quick run, else 10,000 of lengths up to 40, and some up to
500; frozen streams.

The oracle itself is checked first, on the examples that the papers and their code print.
"""

import json

import jax
import numpy as np
import pytest

from attnjax.tasks import task
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


def check(name, task, example):
    """Every example of a batch has the answer of the oracle, its weight, and zeros behind it."""
    inputs = cases.rows(example.inputs, example.input_length)
    targets = cases.rows(example.targets, example.target_length)
    counts = example.weight.sum(-1).tolist()
    wrong = [
        (x, y)
        for x, y, count in zip(inputs, targets, counts, strict=True)
        if oracle.answer(name, task, x) != (y, count)
    ]
    assert wrong == []
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


@pytest.fixture(scope="module", params=cases.CASES)
def case(request):
    """One case after the other, so that the tests of a case follow each other and share its batch."""
    return request.param


@pytest.fixture(scope="module")
def streams():
    return json.loads(make_streams.PATH.read_text(encoding="utf-8"))


def test_every_case_has_a_frozen_stream(streams):
    assert streams.keys() == cases.CASES.keys()


def test_labels_of_a_few_inputs(case):
    name, task = cases.CASES[case]
    example = cases.sampler(task, 12)(jax.random.key(1), np.maximum(np.arange(40) % 12 + 1, task.minimum_length))
    check(name, task, jax.tree.map(np.asarray, example))


@pytest.mark.slow
def test_the_stream_of_a_seed_is_the_frozen_one(case, streams):
    assert make_streams.first(cases.CASES[case][1]) == streams[case]


@pytest.mark.slow
def test_ten_thousand_labels(case):
    name, task = cases.CASES[case]
    example = cases.batch(task)
    assert example.inputs.shape == (cases.COUNT, task.input_size(cases.SIZE))
    assert example.targets.shape == (cases.COUNT, task.output_size(cases.SIZE))
    check(name, task, example)


@pytest.mark.slow
def test_labels_of_long_inputs_and_that_padding_changes_nothing(case):
    name, task = cases.CASES[case]
    most = cases.longest(task)
    short = cases.lengths(task, 24)
    long = np.linspace(cases.SIZE + 1, most, 24).astype(np.int32)
    example = cases.sampler(task, most)(jax.random.key(0), np.append(short, long))
    example = jax.tree.map(np.asarray, example)
    check(name, task, example)
    # The same key and lengths, padded to 40 and among 10,000 others.
    for field, wide, narrow in zip(example._fields, example, cases.batch(task), strict=True):
        wide, narrow = wide[:24], narrow[:24]
        if wide.ndim == 2:
            assert not wide[:, narrow.shape[1] :].any(), field
            wide = wide[:, : narrow.shape[1]]
        np.testing.assert_array_equal(wide, narrow, err_msg=field)
