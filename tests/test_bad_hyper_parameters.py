"""Hyper-parameters out of range are a ValueError that names the record and the field, what came and what is allowed."""

import dataclasses
import re

import numpy as np
import pytest

import attnjax as aj

WHOLE = [
    *(make() for name, make in aj.ENCODINGS.items() if name != "learned"),
    aj.Learned(length=8),
    aj.Kerple("power"),
    aj.PositionInterpolation(2.0),
    aj.NTKAware(2.0),
    aj.DynamicNTK(2.0, 8),
    aj.YaRN(2.0, 8, attention_factor=1.0),
    aj.Llama3(2.0, 8),
    aj.LongRoPE((1.0,), (2.0,), 8, attention_factor=1.0, factor=2.0),
]
NUMBERS = [
    (record, field.name)
    for record in WHOLE
    for field in dataclasses.fields(record)
    if isinstance(getattr(record, field.name), int | float) and not isinstance(getattr(record, field.name), bool)
]
WORDS = [
    (record, field.name)
    for record in WHOLE
    for field in dataclasses.fields(record)
    if isinstance(getattr(record, field.name), str | bool)
]
NO_NUMBERS = (float("nan"), float("inf"), -float("inf"), -1, -0.5, 0, 0.0, "1", None, True)
OPTIONAL = {(aj.YaRN, "attention_factor"), (aj.LongRoPE, "attention_factor"), (aj.LongRoPE, "factor")}
MAY_BE_ZERO = {(aj.ALiBi, "past")}
ANY_FINITE = {(aj.FoX, "gate_bias")}


def finite(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


BAD_NUMBERS = [
    (record, field, value)
    for record, field in NUMBERS
    for value in NO_NUMBERS
    if value is not None or (type(record), field) not in OPTIONAL
    if value not in (0, 0.0) or isinstance(value, bool) or (type(record), field) not in MAY_BE_ZERO
    if not (finite(value) and (type(record), field) in ANY_FINITE)
]


def test_the_fields_are_found():
    assert (aj.RoPE(), "theta") in NUMBERS
    assert (aj.T5Bias(), "buckets") in NUMBERS
    assert (aj.ALiBi(), "symmetric") in WORDS
    assert len(NUMBERS) >= 30


def label(x) -> str:
    return type(x).__name__ if dataclasses.is_dataclass(x) else str(x)


@pytest.mark.parametrize(("record", "field", "value"), BAD_NUMBERS, ids=label)
def test_numbers_out_of_range(record, field, value):
    with pytest.raises(ValueError, match=rf"{type(record).__name__}: {field} must be .*, got {re.escape(repr(value))}"):
        dataclasses.replace(record, **{field: value})


@pytest.mark.parametrize(("record", "field"), WORDS, ids=label)
@pytest.mark.parametrize("value", ["other", 1, None])
def test_words_that_are_no_choice(record, field, value):
    with pytest.raises(ValueError, match=rf"{field} must be .*, got {re.escape(repr(value))}"):
        dataclasses.replace(record, **{field: value})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0, "1", None, True])
@pytest.mark.parametrize("name", ["slopes", "short_factors", "long_factors"])
def test_lists_of_numbers(name, value):
    record = aj.ALiBi() if name == "slopes" else aj.LongRoPE((1.0,), (1.0,), 8)
    with pytest.raises(ValueError, match=f"{name} must be .*, got {re.escape(repr(value))}"):
        dataclasses.replace(record, **{name: (1.0, value)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aj.RoPE(fraction=1.5), r"fraction and keep are shares in \(0, 1\], got 1.5 and 1.0"),
        (lambda: aj.RoPE(keep=2), r"fraction and keep are shares in \(0, 1\], got 1.0 and 2"),
        (lambda: aj.RoPE(scaling="yarn"), r"scaling must be None or a rule such as YaRN\(...\), got 'yarn'"),
        (lambda: aj.RoPE(theta=0.5, scaling=aj.NTKAware(2.0)), "a scaling needs theta > 1, got 0.5"),
        (lambda: aj.PositionInterpolation(0.5), "factor is the new length over the original one, at least 1, got 0.5"),
        (lambda: aj.YaRN(2.0, 8, beta_fast=1.0, beta_slow=2.0), "beta_fast must exceed beta_slow, got 1.0 and 2.0"),
        (lambda: aj.Llama3(2.0, 8, 4.0, 4.0), "high_freq_factor must exceed low_freq_factor, got 4.0 and 4.0"),
        (lambda: aj.LongRoPE((1.0,), (1.0,), 1), "original_length must be at least 2, got 1"),
        (lambda: aj.T5Bias(buckets=2.5), "buckets must be an integer, got 2.5"),
        (lambda: aj.T5Bias(buckets=33, bidirectional=True), "buckets must be even where bidirectional, got 33"),
        (lambda: aj.T5Bias(max_distance=16), "max_distance must exceed the 16 exact buckets, got 16"),
        (lambda: aj.Sandwich(width=7), "Sandwich: width must be even, got 7"),
        (lambda: aj.ALiBi(slopes=()), r"slopes must be a tuple with one positive number per head, got \(\)"),
        (lambda: aj.ALiBi(slopes=0.5), "slopes must be a tuple with one positive number per head, got 0.5"),
    ],
)
def test_hyper_parameters_that_do_not_go_together(make, message):
    with pytest.raises(ValueError, match=message):
        make()
