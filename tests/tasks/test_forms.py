"""Sequences for the models, against examples written out by hand."""

import functools

import jax
import numpy as np
import pytest

from attnjax.tasks import Example, decoder_form, encoder_decoder_form, encoder_form, next_token_form, specials, task
from attnjax.tasks.forms import target_of
from tests.tasks import cases


def arrays(*rows):
    return Example(*(np.array(row, np.int32) for row in rows))


STACK, INDUCTION = task("stack_manipulation"), task("induction", symbols=9)
TWO = arrays([[0, 1, 4], [1, 2, 0]], [3, 2], [[1, 1, 0, 2], [2, 0, 0, 0]], [4, 3], [[1, 1, 1, 1], [1, 0, 0, 0]])
"""0 1 PUSH-1 -> 1 1 0 end, and 1 POP -> end 0 0, where the zeros do not count."""
REPEATED = arrays(
    [[3, 8, 3, 0, 0], [2, 5, 7, 2, 5]],
    [3, 5],
    [[8, 3, 8, 0, 0], [5, 7, 2, 5, 7]],
    [3, 5],
    [[0, 0, 1, 0, 0], [0, 0, 0, 1, 1]],
)
EMPTY, SEP, STOP, BEGIN, PAD = 5, 5, 6, 7, 8
FORMS = {
    "encoder": (
        functools.partial(encoder_form, STACK),
        TWO,
        {
            "tokens": [[0, 1, 4, EMPTY, EMPTY, EMPTY, EMPTY], [1, 2, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY]],
            "targets": [[0, 0, 0, 1, 1, 0, 2], [0, 0, 2, 0, 0, 0, 0]],
            "mask": [[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0, 0]],
            "valid": [[1] * 7, [1, 1, 1, 1, 1, 0, 0]],
            "positions": [list(range(7))] * 2,
            "answer": [3, 2],
            "answer_length": [4, 1],
        },
    ),
    "encoder with the tail": (
        functools.partial(encoder_form, STACK, tail=True),
        TWO,
        {"mask": [[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0, 0]], "answer_length": [4, 3]},
    ),
    "decoder": (
        functools.partial(decoder_form, STACK),
        TWO,
        {
            "tokens": [[0, 1, 4, SEP, 1, 1, 0, 2], [1, 2, SEP, 2, PAD, PAD, PAD, PAD]],
            "targets": [[1, 4, SEP, 1, 1, 0, 2, STOP], [2, SEP, 2, STOP, PAD, PAD, PAD, PAD]],
            "mask": [[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0, 0]],
            "valid": [[1] * 8, [1, 1, 1, 1, 0, 0, 0, 0]],
            "positions": [list(range(8))] * 2,
            "answer": [3, 2],
            "answer_length": [5, 2],
        },
    ),
    "decoder with begin": (
        functools.partial(decoder_form, STACK, begin=True),
        TWO,
        {
            "tokens": [[BEGIN, 0, 1, 4, SEP, 1, 1, 0, 2], [BEGIN, 1, 2, SEP, 2, PAD, PAD, PAD, PAD]],
            "mask": [[0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0, 0]],
            "answer": [4, 3],
            "answer_length": [5, 2],
        },
    ),
    "encoder-decoder": (
        functools.partial(encoder_decoder_form, STACK),
        TWO,
        {
            "tokens": [[BEGIN, 1, 1, 0, 2], [BEGIN, 2, PAD, PAD, PAD]],
            "targets": [[1, 1, 0, 2, STOP], [2, STOP, PAD, PAD, PAD]],
            "mask": [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]],
            "valid": [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]],
            "answer": [0, 0],
            "answer_length": [5, 2],
        },
    ),
    "next token": (
        functools.partial(next_token_form, INDUCTION),
        REPEATED,
        {
            "tokens": REPEATED.inputs,
            "targets": REPEATED.targets,
            "mask": [[0, 0, 1, 0, 0], [0, 0, 0, 1, 1]],
            "valid": [[1, 1, 1, 0, 0], [1] * 5],
            "positions": [list(range(5))] * 2,
            "answer": [2, 3],
            "answer_length": [1, 2],
        },
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    """Of a batch; of one example; of an empty one, in which nothing counts; and in double precision."""
    form, example, expected = FORMS[name]
    both = cases.compiled(lambda example: (form(example), form(jax.tree.map(lambda leaf: leaf[1], example))))
    batch, one = map(target_of, both(example))
    for field, value in expected.items():
        np.testing.assert_array_equal(getattr(batch, field), np.array(value), err_msg=field)
        np.testing.assert_array_equal(getattr(one, field), np.array(value)[1], err_msg=field)
    empty, _ = map(target_of, both(jax.tree.map(np.zeros_like, example)))
    assert not np.asarray(empty.mask).any()
    assert not np.asarray(empty.valid).any()
    assert not np.asarray(empty.answer_length).any()
    with jax.enable_x64(True):
        wide = jax.eval_shape(form, example)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(wide)} == {"int32", "bool"}


def test_the_source_of_an_encoder_and_special_tokens():
    made = cases.compiled(lambda example: encoder_decoder_form(STACK, example))(TWO)
    np.testing.assert_array_equal(made.source, [[0, 1, 4], [1, 2, PAD]])
    np.testing.assert_array_equal(made.source_valid, [[1, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(made.source_positions, [[0, 1, 2]] * 2)
    assert specials(STACK) == (SEP, STOP, BEGIN, PAD)
    assert specials(STACK).size == 9
    assert specials(task("copy", variant="cmc2x", symbols=4)) == (5, 6, 7, 8)
