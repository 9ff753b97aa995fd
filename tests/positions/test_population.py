"""Populations: encodings that differ in numbers alone do together what each does alone, in one mapped program."""

import jax
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions import embed, program, shared_program, stacked_constants
from attnjax.positions.compose import parts_of
from attnjax.registry import ENCODINGS
from tests.positions.hooks import close, run

SIZES = aj.Sizes(32, 4, 4, 8)
X, POS = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32), np.array([0, 1, 7, 300, 2**31 - 1])
SAME_PROGRAM = {
    "rope": (
        aj.RoPE(theta=50.0),
        aj.RoPE(theta=1e6, keep=0.5),
        aj.RoPE(scaling=aj.YaRN(4.0, 8)),
        aj.RoPE(theta=500.0, scaling=aj.PositionInterpolation(8.0)),
    ),
    "part of the head": tuple(aj.RoPE(theta=theta, fraction=0.5, layout="interleaved") for theta in (10.0, 1e4)),
    "xpos": (aj.XPos(theta=20.0), aj.XPos()),
    "pope": (aj.PoPE(theta=20.0), aj.PoPE()),
    "axial": (aj.AxialRoPE(theta=20.0), aj.AxialRoPE()),
    "remapped": (aj.ReRoPE(theta=20.0, window=3), aj.ReRoPE(keep=0.5, window=3)),
    "alibi": (aj.ALiBi(symmetric=True, past=0.5), aj.ALiBi((0.3,) * 4, symmetric=True, past=0.5)),
    "sinusoidal": (aj.Sinusoidal(theta=30.0), aj.Sinusoidal()),
    "composed": tuple(aj.compose(aj.RoPE(theta=t), aj.ALiBi(slopes=(t,) * 4)) for t in (10.0, 20.0)),
}


@pytest.mark.parametrize("name", SAME_PROGRAM)
def test_stacked_constants_are_those_of_each_encoding(name):
    encodings = SAME_PROGRAM[name]
    assert len({program(one) for one in encodings}) == 1
    assert program(program(encodings[0])) == program(encodings[0])
    stacked = stacked_constants(encodings, SIZES)
    for i, one in enumerate(encodings):
        member = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
        jax.tree.map(np.testing.assert_array_equal, member, one.constants(SIZES))


def test_one_mapped_program_turns_as_each_encoding_alone():
    encodings = SAME_PROGRAM["rope"]
    mapped = jax.vmap(lambda p: program(encodings[0]).map_q(p, X, POS))
    together = run(mapped, stacked_constants(encodings, SIZES))
    alone = run(lambda: [one.map_q(one.constants(SIZES), X, POS) for one in encodings])
    close(together, alone, 1e-6)


def test_programs_differ_where_the_code_does():
    programs = [
        *(aj.RoPE(), aj.RoPE(layout="interleaved"), aj.RoPE(fraction=0.5), aj.RoPE(scaling=aj.DynamicNTK(2.0, 16))),
        *(aj.XPos(), aj.XPos(scale_base=100.0), aj.PoPE(), aj.Sinusoidal(), aj.Sinusoidal("concatenated")),
        *(aj.ALiBi(), aj.ALiBi(symmetric=True), aj.ALiBi(symmetric=True, past=0.5), aj.ReRoPE(), aj.ReRoPE(window=3)),
        aj.compose(aj.RoPE(), aj.ALiBi()),
    ]
    assert len({program(one) for one in programs}) == len(programs)


def test_encodings_that_are_equal_need_no_constants():
    for own in (aj.RoPE(theta=3.0), aj.RoPE(scaling=aj.DynamicNTK(2.0, 16)), aj.T5Bias(buckets=16), aj.NoPE()):
        assert stacked_constants([own, own], SIZES) == {}
    both = aj.compose(aj.RoPE(), aj.ALiBi())
    assert stacked_constants([both, both], SIZES) == ({}, {})
    for own in (aj.RoPE(scaling=aj.DynamicNTK(2.0, 16)), aj.T5Bias(buckets=16)):
        assert program(own) == own


CLASSES = (aj.Sinusoidal(theta=30.0), aj.RoPE(theta=50.0), aj.NoPE(), aj.ALiBi(), aj.RoPE(keep=0.5))


@pytest.mark.parametrize("i", range(len(CLASSES)))
def test_parts_that_are_absent_from_a_shared_program_change_no_bit(i):
    whole = shared_program(CLASSES)
    p = jax.tree.map(lambda leaf: leaf[i], stacked_constants(CLASSES, SIZES))
    x = np.random.default_rng(1).normal(size=(2, 6, 32)).astype(np.float32)
    np.testing.assert_array_equal(embed(whole, p, x, np.arange(6)), embed(CLASSES[i], None, x, np.arange(6)))
    q, k, v = np.random.default_rng(2).normal(size=(3, 2, 6, 4, 8)).astype(np.float32)
    options = {"mask": aj.Mask(causal=True), "implementation": "dense"}
    parts = [part for part in whole.parts if not part.has("embed")]
    own = aj.NoPE() if CLASSES[i].has("embed") else CLASSES[i]
    together = aj.attend(q, k, v, encoding=aj.compose(*parts), params=p[-len(parts) :], **options)
    np.testing.assert_array_equal(together, aj.attend(q, k, v, encoding=own, **options))


def test_the_registry_names_encodings_that_can_be_absent():
    optional = [aj.encoding(name) for name, row in ENCODINGS.items() if row.optional]
    assert len(parts_of(shared_program(optional))) == len(optional) - 1, "NoPE is no part"
    assert all(part.absent(SIZES) for part in parts_of(shared_program(optional)))


def test_refuses_encodings_of_different_programs():
    with pytest.raises(
        ValueError, match=r"share one program, got the programs \[RoPE\(.*\), RoPE\(.*fraction=0.5.*\)\]"
    ):
        stacked_constants([aj.RoPE(), aj.RoPE(theta=3.0, fraction=0.5)], SIZES)
    with pytest.raises(ValueError, match=r"share one program, got the programs \[\]"):
        stacked_constants([], SIZES)
    with pytest.raises(ValueError, match=r"share one program, and T5Bias\(.*\) cannot be absent from it"):
        stacked_constants([aj.RoPE(), aj.T5Bias()], SIZES)
