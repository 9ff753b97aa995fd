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
    """All inputs of a length, by brute force over the alphabet and the assertions of the oracle."""
    t = task(name)
    found, answers = 0, set()
    for x in itertools.product(range(t.input_vocab), repeat=length):
        try:
            tokens, counted = oracle.answer(name, t, list(x))
        except (AssertionError, IndexError, KeyError, ValueError):
            continue
        found += 1
        answers.add(tuple(tokens[:counted]))
    return found, answers


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
def test_the_size_of_the_space_is_counted_right(name, length):
    t = task(name)
    found, answers = enumerated(name, length)
    assert t.space(length) == found
    if name in ("stack_manipulation", "binary_multiplication"):
        assert t.answers(length) <= len(answers)
    else:
        assert t.answers(length) == len(answers)
    assert t.chance(length).exact == 1 / t.answers(length)


def test_the_size_of_other_spaces():
    assert Copy("rdc", symbols=10).space(7) == 90
    assert Copy("cmc", symbols=10).space(7) == 10**7
    assert UniqueCopy(symbols=5).space(2) == 20
    assert task("sort", symbols=5).answers(2) == 10
    # Operands of 1 and 1 digits; of 2 and 1, 1 and 2, 2 and 2.
    assert task("addition").space(1) == 100
    assert task("addition").space(2) == 2 * 90 * 10 + 90 * 90
    sums = {n + m for n in range(100) for m in range(100) if max(n, m) > 9}
    assert task("addition").answers(2) == len(sums)
    assert task("addition", operands="equal").answers(2) == len({n + m for n in range(10, 100) for m in range(10, 100)})
    assert task("big_endian_addition").space(4) == 4
    # One bit and three, two and two, three and one.
    assert task("big_endian_addition").space(6) == 2 * 4 + 2 * 2 + 4 * 2
    ranges = ((range(2), range(4, 8)), (range(2, 4), range(2, 4)))
    assert task("big_endian_addition").answers(6) == len({n + m for a, b in ranges for n in a for m in b})
    assert task("associative_recall", keys=3, values=2).space(2) == 6 * 4 * 2
    assert task("induction", symbols=4).answers(3) == 12
    # Between a write and a read two instructions, of which reads have one bit and the others two.
    assert task("flip_flop").space(4) == 2 * 5 * 5
    assert task("flip_flop", ignore=0.0).space(3) == 2 * 3
    assert task("word_problem").space(2) == 60 * 60
    assert task("posgen", modulus=7, near=2, far=1).space(9) == 7**3
    # One of 3 keys with one of 4 values, asked for in one of 3 slots.
    assert task("mqar", vocab=8, pairs=1, filler="zero").space(8) == 3 * 4 * 3


def test_published_chance_levels():
    fifths = {"modular_arithmetic", "cycle_navigation", "modular_arithmetic_brackets", "solve_equation", "bucket_sort"}
    for name in list(TASKS)[:15]:
        assert task(name).chance(20).token == (0.2 if name in fifths else 0.5)
    assert task("parity").chance(5) == (0.5, 0.5)
    assert task("reverse_string").chance(2000).exact == 0.0


def test_names_of_tokens_are_as_many_as_the_vocabulary_and_different():
    for name in TASKS:
        for names in task(name).alphabet():
            assert len(set(names)) == len(names)
    assert (task("stack_manipulation").input_vocab, task("stack_manipulation").output_vocab) == (5, 3)
    assert task("modular_arithmetic_brackets").input_vocab == task("solve_equation").input_vocab == 11
    assert task("modular_arithmetic").input_vocab == 9
