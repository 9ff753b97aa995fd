"""Initial parameters, as published, and populations: encodings that differ in numbers do together what each does alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.positions import program, shared_program, stacked_constants
from attnjax.positions.compose import parts_of
from attnjax.registry import ENCODINGS
from tests.positions.hooks import run

N, K, D, H = 64, 32, 256, 16
LARGE = aj.Sizes(model=D, heads=N, kv_heads=K, head_dim=H)
CUT = 0.02 * 0.9866
"""The deviation of a normal number of deviation 0.02 that is cut off at three deviations."""
INITIAL = {
    # Name: (shape, distribution, its number).
    aj.T5Bias(): {"table": ((N, 32), "normal", D**-0.5)},
    aj.Learned(512): {"table": ((512, D), "normal", 0.02)},
    aj.CoPE(): {"table": ((16, H), "all", 0)},
    aj.PoPE(): {"delta": ((N, H), "all", 0)},
    aj.SSMax(): {"s": ((N,), "all", 0.43)},
    aj.SSMax(0.168, biased=True): {"s": ((N,), "all", 0.168), "b": ((N,), "all", 0)},
    aj.FIRE(): {
        **{name: ((N, *shape), "uniform", 32**-0.5) for name, shape in (("out", (32,)), ("out_bias", ()))},
        **dict.fromkeys(("hidden", "hidden_bias"), ((32,), "uniform", 1)),
        **{"c": ((), "all", 0.1), "threshold": ((), "all", 1)},
    },
    aj.TransformerXL(): {
        **dict.fromkeys("uv", ((N, H), "normal", 0.02)),
        **{"w_r": ((N, D, H), "normal", D**-0.5)},
    },
    aj.FoX(5.0): {"w": ((N, D), "normal", 0.02), "b": ((N,), "all", 5)},
    aj.Cable(): {"w": ((N, D), "normal", 0.02), "b": ((N,), "all", 0)},
    aj.RePo(): {name: ((rows, D // 8), "normal", CUT) for name, rows in (("gate", D), ("content", D), ("out", K))},
    aj.SelectiveRoPE(): {
        name: (shape, "normal", 0.02)
        for name, shape in (("down", (D, 32)), ("up", (K, 32, H // 2)), ("convolution", (K, 4, H // 2)))
    },
    aj.PaTH(forget=True): {
        **{"down": ((D, 32), "normal", D**-0.5), "up": ((K, 32, H), "normal", 32**-0.5)},
        **{"convolution": ((K, 3, H), "uniform", 3**-0.5)},
        **{"beta": ((K, D), "normal", D**-0.5), "beta_bias": ((K,), "all", 0)},
        **{"gate": ((N, D), "normal", D**-0.5), "gate_bias": ((N,), "all", 0)},
    },
    aj.BAM(location=True): dict.fromkeys(("alpha", "beta", "mu"), ((N,), "all", 0)),
    aj.WallAttention(): {"w": ((N, H, D), "normal", 0.02), "b": ((N, H), "all", 8)},
    aj.Inkling(): {
        **{"w": ((N, 16, D), "uniform", D**-0.5), "b": ((N, 16), "uniform", D**-0.5)},
        **{"curves": ((16, 1024), "normal", 0.02)},
    },
    aj.TRA(): {"w": ((N, D), "uniform", D**-0.5), "b": ((N,), "uniform", D**-0.5)},
    aj.ASEntmax(): dict.fromkeys(("beta", "gamma"), ((N, D), "normal", 0.02)),
    aj.DAPE(None, width=400): {
        **{"hidden": ((N, 400), "uniform", N**-0.5), "hidden_bias": ((400,), "uniform", N**-0.5)},
        **{"out": ((400, N), "uniform", 1 / 20), "out_bias": ((N,), "uniform", 1 / 20)},
    },
}


@pytest.fixture(scope="module")
def initial():
    return run(lambda key: [encoding.init(key, LARGE) for encoding in INITIAL], jax.random.key(0))


@pytest.mark.parametrize("encoding", INITIAL, ids=lambda encoding: type(encoding).__name__)
def test_initial_parameters_are_drawn_as_published(encoding, initial):
    p = initial[list(INITIAL).index(encoding)]
    assert p.keys() == INITIAL[encoding].keys()
    for name, (shape, kind, number) in INITIAL[encoding].items():
        assert p[name].shape == shape
        if kind == "all":
            np.testing.assert_array_equal(p[name], np.float32(number))
            continue
        deviation = number if kind == "normal" else number / 3**0.5
        assert abs(p[name].mean()) < 5 * deviation / p[name].size ** 0.5
        np.testing.assert_allclose(p[name].std(), deviation, rtol=0.05 + 1 / p[name].size ** 0.5)
        largest = np.abs(p[name]).max()
        assert largest > 2.5 * deviation if kind == "normal" else 0.85 * number < largest <= number
        assert number != CUT or largest <= 0.06
    assert len({leaf.tobytes() for leaf in p.values() if leaf.any()}) == sum(bool(leaf.any()) for leaf in p.values())


# Populations ---------------------------------------------------------------------------------------------------------

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


OPTIONAL = [aj.encoding(name) for name, row in ENCODINGS.items() if row.optional]
PARTS = parts_of(shared_program(OPTIONAL))


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_part_that_is_absent_changes_no_bit(part):
    p, n = part.absent(SIZES), X[0] * 100
    wide = np.tile(X, (1, SIZES.model // X.shape[1]))

    def of_all_heads(p):
        q, k = part.map_q(p, X, POS), part.map_k(p, X, POS)
        added = (
            jnp.asarray(part.bias(p | {name: p[name][0] for name in part.per_head}, n)) if part.has("bias") else 0 * n
        )
        return part.embed(p, wide, POS), q, k, n + added

    jax.tree.map(np.testing.assert_array_equal, run(of_all_heads, p), (wide, X, X, n))


def test_parts_of_a_shared_program_are_those_of_each_encoding_or_absent():
    assert len(PARTS) == len(OPTIONAL) - 1, "NoPE is no part"
    stacked = stacked_constants(OPTIONAL, SIZES)
    for i, one in enumerate(OPTIONAL):
        for part, constants in zip(PARTS, stacked, strict=True):
            expected = one.constants(SIZES) if part == program(one) else part.absent(SIZES)
            jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda leaf, i=i: leaf[i], constants), expected)


def test_refuses_encodings_of_different_programs():
    with pytest.raises(
        ValueError, match=r"share one program, got the programs \[RoPE\(.*\), RoPE\(.*fraction=0.5.*\)\]"
    ):
        stacked_constants([aj.RoPE(), aj.RoPE(theta=3.0, fraction=0.5)], SIZES)
    with pytest.raises(ValueError, match=r"share one program, got the programs \[\]"):
        stacked_constants([], SIZES)
    with pytest.raises(ValueError, match=r"share one program, and T5Bias\(.*\) cannot be absent from it"):
        stacked_constants([aj.RoPE(), aj.T5Bias()], SIZES)
