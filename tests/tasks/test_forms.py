"""Sequences for the models, against examples written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.tasks import Example, decoder_form, encoder_decoder_form, encoder_form, next_token_form, specials, task
from tests.tasks import cases

pytestmark = pytest.mark.slow

# Two examples of stack_manipulation: 0 1 PUSH-1 -> 1 1 0 end, and 1 POP -> end 0 0, where the zeros do not count.
STACK = task("stack_manipulation")
TWO = Example(
    inputs=jnp.array([[0, 1, 4], [1, 2, 0]], jnp.int32),
    input_length=jnp.array([3, 2], jnp.int32),
    targets=jnp.array([[1, 1, 0, 2], [2, 0, 0, 0]], jnp.int32),
    target_length=jnp.array([4, 3], jnp.int32),
    weight=jnp.array([[1, 1, 1, 1], [1, 0, 0, 0]], jnp.int32),
)
EMPTY, SEP, STOP, BEGIN, PAD = 5, 5, 6, 7, 8
T, F = True, False


def equal(made, **expected):
    for name, value in expected.items():
        np.testing.assert_array_equal(getattr(made, name), np.array(value), err_msg=name)


def test_special_tokens_follow_the_larger_vocabulary():
    assert specials(STACK) == (SEP, STOP, BEGIN, PAD)
    assert specials(STACK).size == 9
    assert specials(task("copy", variant="cmc2x", symbols=4)) == (5, 6, 7, 8)


def test_encoder_form():
    made = encoder_form(STACK, TWO)
    equal(
        made,
        tokens=[[0, 1, 4, EMPTY, EMPTY, EMPTY, EMPTY], [1, 2, EMPTY, EMPTY, EMPTY, EMPTY, EMPTY]],
        targets=[[0, 0, 0, 1, 1, 0, 2], [0, 0, 2, 0, 0, 0, 0]],
        mask=[[F, F, F, T, T, T, T], [F, F, T, F, F, F, F]],
        valid=[[T] * 7, [T, T, T, T, T, F, F]],
        positions=[list(range(7))] * 2,
        answer=[3, 2],
        answer_length=[4, 1],
    )


def test_encoder_form_with_the_tail():
    made = encoder_form(STACK, TWO, tail=True)
    equal(made, mask=[[F, F, F, T, T, T, T], [F, F, T, T, T, F, F]], answer_length=[4, 3])


def test_decoder_form():
    made = decoder_form(STACK, TWO)
    equal(
        made,
        tokens=[[0, 1, 4, SEP, 1, 1, 0, 2], [1, 2, SEP, 2, PAD, PAD, PAD, PAD]],
        targets=[[1, 4, SEP, 1, 1, 0, 2, STOP], [2, SEP, 2, STOP, PAD, PAD, PAD, PAD]],
        mask=[[F, F, F, T, T, T, T, T], [F, F, T, T, F, F, F, F]],
        valid=[[T] * 8, [T, T, T, T, F, F, F, F]],
        positions=[list(range(8))] * 2,
        answer=[3, 2],
        answer_length=[5, 2],
    )


def test_decoder_form_with_begin_without_stop():
    made = decoder_form(STACK, TWO, begin=True, stop=False)
    equal(
        made,
        tokens=[[BEGIN, 0, 1, 4, SEP, 1, 1, 0, 2], [BEGIN, 1, 2, SEP, 2, PAD, PAD, PAD, PAD]],
        mask=[[F, F, F, F, T, T, T, T, F], [F, F, F, T, F, F, F, F, F]],
        positions=[list(range(9))] * 2,
        answer=[4, 3],
        answer_length=[4, 1],
    )


def test_encoder_decoder_form():
    made = encoder_decoder_form(STACK, TWO)
    equal(
        made,
        source=[[0, 1, 4], [1, 2, PAD]],
        source_valid=[[T, T, T], [T, T, F]],
        source_positions=[[0, 1, 2]] * 2,
    )
    equal(
        made.target,
        tokens=[[BEGIN, 1, 1, 0, 2], [BEGIN, 2, PAD, PAD, PAD]],
        targets=[[1, 1, 0, 2, STOP], [2, STOP, PAD, PAD, PAD]],
        mask=[[T, T, T, T, T], [T, T, F, F, F]],
        valid=[[T, T, T, T, T], [T, T, F, F, F]],
        answer=[0, 0],
        answer_length=[5, 2],
    )


def test_next_token_form():
    t = task("induction", symbols=9)
    example = Example(
        inputs=jnp.array([[3, 8, 3, 0, 0], [2, 5, 7, 2, 5]], jnp.int32),
        input_length=jnp.array([3, 5], jnp.int32),
        targets=jnp.array([[8, 3, 8, 0, 0], [5, 7, 2, 5, 7]], jnp.int32),
        target_length=jnp.array([3, 5], jnp.int32),
        weight=jnp.array([[0, 0, 1, 0, 0], [0, 0, 0, 1, 1]], jnp.int32),
    )
    made = next_token_form(t, example)
    equal(
        made,
        tokens=example.inputs,
        targets=example.targets,
        mask=[[F, F, T, F, F], [F, F, F, T, T]],
        valid=[[T, T, T, F, F], [T] * 5],
        positions=[list(range(5))] * 2,
        answer=[2, 3],
        answer_length=[1, 2],
    )


@pytest.mark.parametrize("options", [{}, {"begin": True}, {"stop": False}, {"tail": True}], ids=str)
def test_nothing_counts_in_an_empty_example(options):
    empty = jax.tree.map(jnp.zeros_like, TWO)
    made = decoder_form(STACK, empty, **options)
    assert not made.mask.any()
    assert not made.valid.any()
    equal(made, answer_length=[0, 0])
    assert not encoder_form(STACK, empty).valid.any()
    assert not encoder_decoder_form(STACK, empty).target.mask.any()


@pytest.mark.parametrize("name", ["binary_addition", "copy", "sort"])
def test_the_answer_comes_back_from_every_form(name):
    t = task(name)
    example = cases.compiled(lambda key: t.sample(key, [1, 5, 9, 7], 9))(jax.random.key(3))
    whole = cases.compiled(lambda e: (encoder_form(t, e), decoder_form(t, e, begin=True)))(example)
    for row in range(4):
        counted = int(example.weight[row].sum())
        answer = np.asarray(example.targets[row, :counted]).tolist()
        for made, end in zip(whole, ([], [specials(t).stop]), strict=True):
            first, length = int(made.answer[row]), int(made.answer_length[row])
            assert np.asarray(made.targets[row, first : first + length]).tolist() == answer + end
            assert np.flatnonzero(made.mask[row]).tolist() == list(range(first, first + length))
    decoder = whole[1]
    # Teacher forcing: a target that counts is the next token.
    shifted = np.asarray(decoder.tokens)[:, 1:]
    inside = np.asarray(decoder.valid)[:, 1:]
    np.testing.assert_array_equal(shifted[inside], np.asarray(decoder.targets)[:, :-1][inside])


@pytest.mark.usefixtures("x64")
def test_forms_stay_int32_in_double_precision():
    for made in (encoder_form(STACK, TWO), decoder_form(STACK, TWO), encoder_decoder_form(STACK, TWO)):
        assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype("int32"), jnp.dtype("bool")}


def test_one_example_without_a_batch():
    one = jax.tree.map(lambda leaf: leaf[1], TWO)
    equal(decoder_form(STACK, one), tokens=[1, 2, SEP, 2, PAD, PAD, PAD, PAD])
