"""What tasks say of themselves: annotations, sizes, the number of inputs and answers, chance, names of tokens."""

import dataclasses
import itertools

import beartype
import jax
import jax.numpy as jnp
import jaxtyping
import pytest

from attnjax.tasks import TASKS, Copy, UniqueCopy, task
from tests.tasks import cases, oracle

KEY = jax.random.key(0)


@pytest.mark.parametrize("case", cases.CASES)
def test_annotations_and_sizes_are_true(case):
    """In double precision, at the least length."""
    one = cases.CASES[case]
    checked = jaxtyping.jaxtyped(typechecker=beartype.beartype)(type(one).example)
    size = one.minimum_length
    with jax.enable_x64(True):
        made = jax.eval_shape(lambda key, n: checked(one, key, n, size), KEY, jnp.int32(size))
    wanted = ((one.input_size(size),), (), (one.output_size(size),), (), (one.output_size(size),))
    assert tuple(leaf.shape for leaf in made) == wanted
    assert {leaf.dtype for leaf in made} == {jnp.dtype("int32")}
    assert hash(one) == hash(dataclasses.replace(one))


def enumerated(name, length):
    """All answers of a length, by brute force over the alphabet and the assertions of the oracle."""
    t, answers = task(name), set()
    for x in itertools.product(range(t.input_vocab), repeat=length):
        try:
            tokens, counted = oracle.answer(name, t, list(x))
        except (AssertionError, IndexError, KeyError, ValueError):
            continue
        answers.add(tuple(tokens[:counted]))
    return answers


COUNTED = [
    ("even_pairs", 6),
    ("cycle_navigation", 5),
    ("stack_manipulation", 5),
    ("modular_arithmetic", 3),
    ("modular_arithmetic_brackets", 5),
    ("solve_equation", 5),
    ("reverse_string", 5),
    ("missing_duplicate_string", 6),
    ("missing_duplicate_string", 7),
    ("binary_addition", 7),
    ("binary_multiplication", 7),
    ("compute_sqrt", 7),
    ("bucket_sort", 5),
    ("binary_majority", 6),
    ("binary_majority", 7),
    ("interleaved_majority", 6),
    ("parity", 5),
]


@pytest.mark.parametrize(("name", "length"), COUNTED)
def test_answers_are_counted_right(name, length):
    t = task(name)
    answers = enumerated(name, length)
    if name in ("stack_manipulation", "binary_multiplication"):
        assert t.answers(length) <= len(answers)
    else:
        assert t.answers(length) == len(answers)
    assert t.chance(length).exact == 1 / t.answers(length)


def test_the_number_of_other_answers():
    assert Copy("rdc", symbols=10).answers(7) == 10
    assert UniqueCopy(symbols=5).answers(2) == 20
    assert task("sort", symbols=5).answers(2) == 10
    sums = {n + m for n in range(100) for m in range(100) if max(n, m) > 9}
    assert task("addition").answers(2) == len(sums)
    assert task("addition", operands="equal").answers(2) == len({n + m for n in range(10, 100) for m in range(10, 100)})
    # One bit and three, two and two, three and one.
    ranges = ((range(2), range(4, 8)), (range(2, 4), range(2, 4)))
    assert task("big_endian_addition").answers(6) == len({n + m for a, b in ranges for n in a for m in b})
    assert task("induction", symbols=4).answers(3) == 12


def test_published_chance_levels():
    fifths = {"modular_arithmetic", "cycle_navigation", "modular_arithmetic_brackets", "solve_equation", "bucket_sort"}
    for name in list(TASKS)[:15]:
        assert task(name).chance(20).token == (0.2 if name in fifths else 0.5)
    assert task("parity").chance(5) == (0.5, 0.5)
    assert task("reverse_string").chance(2000).exact == 0.0


def test_names_of_tokens_are_different():
    for name in TASKS:
        for names in task(name).alphabet():
            assert len(set(names)) == len(names)
