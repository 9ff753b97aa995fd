"""Populations: encodings that differ in numbers do together what each does alone, in one vmapped program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import Sizes
from attnjax.positions import (
    ENCODINGS,
    EncodingParams,
    PositionEncoding,
    compose,
    embed,
    encoding,
    program,
    resolve,
    stacked_constants,
)
from attnjax.positions.base import replaced

B, T, N, H = 2, 9, 4, 8
SIZES = Sizes(N * H, N, N, H)
SAME_PROGRAM = {
    "rope": (
        attnjax.RoPE(theta=50.0),
        attnjax.RoPE(theta=1e6, keep=0.5),
        attnjax.RoPE(scaling=attnjax.YaRN(4.0, 8)),
        attnjax.RoPE(theta=500.0, scaling=attnjax.PositionInterpolation(8.0)),
    ),
    "part of the head": tuple(attnjax.RoPE(theta=theta, fraction=0.5, layout="interleaved") for theta in (10.0, 1e4)),
    "xpos": (attnjax.XPos(theta=20.0), attnjax.XPos()),
    "pope": (attnjax.PoPE(theta=20.0), attnjax.PoPE()),
    "alibi": (attnjax.ALiBi(), attnjax.ALiBi(slopes=(1.0, 0.5, 0.1, 0.01))),
    "alibi, symmetric": (attnjax.ALiBi(symmetric=True, past=0.5), attnjax.ALiBi((0.3,) * 4, symmetric=True, past=0.5)),
    "sinusoidal": (attnjax.Sinusoidal(theta=30.0), attnjax.Sinusoidal()),
}
Q, K, V = (jax.random.normal(jax.random.key(i), (B, T, N, H)) for i in range(3))
X = jax.random.normal(jax.random.key(3), (B, T, N * H))
POS = np.sort(np.random.default_rng(0).choice(500, (B, T), replace=False), axis=1).astype(np.int32)


def outcome(encoding, constants, params, implementation):
    """Attention and embedding, and the gradient of their sum with respect to everything but positions."""

    def loss(q, k, v, x, params):
        p = replaced(encoding, constants, params)
        put = embed(encoding, p, x, POS)
        if encoding.traits == attnjax.positions.Trait.EMBED:
            return jnp.sin(put).sum(), put
        pos = attnjax.context_positions(encoding, p, x, POS, SIZES)
        options = {"q_pos": pos, "k_pos": pos, "mask": attnjax.Mask(causal=True), "implementation": implementation}
        out = attnjax.attend(q, k, v, encoding=encoding, params=p, **options)
        return jnp.sin(out).sum() + jnp.sin(put).sum(), (out, put)

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True)(Q, K, V, X, params)


def compiled(function):
    """Quickly: a program runs for a millisecond here."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def near(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.quick("part of the head-dense", "sinusoidal-dense", "alibi-chunked", "rope-xla")
@pytest.mark.parametrize(
    ("name", "implementation"),
    [*((name, "dense") for name in SAME_PROGRAM), ("rope", "chunked"), ("alibi", "chunked"), ("rope", "xla")],
)
def test_one_mapped_program_equals_each_encoding_by_itself(name, implementation):
    encodings = SAME_PROGRAM[name]
    params = encodings[0].init(jax.random.key(4), SIZES)
    stacked = jax.tree.map(jnp.asarray, stacked_constants(encodings, SIZES))
    shared_program = program(encodings[0])
    run = lambda constants: outcome(shared_program, constants, params, implementation)
    together = compiled(jax.vmap(run))(stacked)
    for i, one in enumerate(encodings):
        alone = compiled(lambda one=one: outcome(one, EncodingParams(), params, implementation))()
        near(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone)


@pytest.mark.parametrize("name", SAME_PROGRAM)
def test_stacked_constants_are_those_of_each_encoding(name):
    encodings = SAME_PROGRAM[name]
    stacked = stacked_constants(encodings, SIZES)
    for i, one in enumerate(encodings):
        member = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
        for found, expected in zip(jax.tree.leaves(member), jax.tree.leaves(one.constants(SIZES)), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_constants_that_were_passed_give_the_same_bits():
    """Frequencies are integers made on the host, so nothing is rounded on the way."""
    rope = attnjax.RoPE(theta=1234.5)
    far = np.full(T, 2**31 - 9, np.int32) + np.arange(T, dtype=np.int32)
    own, passed = resolve(rope, None, SIZES), resolve(program(rope), rope.constants(SIZES), SIZES)
    turned = [
        jax.jit(lambda q, e=e, p=p: e.map_q(p, q, far))(Q[0, :, 0]) for e, p in ((rope, own), (program(rope), passed))
    ]
    np.testing.assert_array_equal(*turned)


@pytest.mark.slow
def test_decoding_with_constants_that_were_passed():
    """One by one through a cache, inside one transformation."""
    rope = attnjax.RoPE(theta=77.0)
    mine, mask = program(rope), attnjax.Mask(causal=True)

    def decode(constants):
        cache = attnjax.KVCache.create(B, T, N, H, encoding=mine)
        outs = []
        for t in range(3):
            cache = cache.append(K[:, t : t + 1], V[:, t : t + 1], params=constants)
            out = attnjax.attend(Q[:, t : t + 1], cache=cache, encoding=mine, params=constants, mask=mask)
            outs.append(out)
        return jnp.concatenate(outs, axis=1)

    expected = attnjax.attend(Q, K, V, encoding=rope, mask=mask)
    np.testing.assert_allclose(compiled(decode)(rope.constants(SIZES)), expected[:, :3], rtol=1e-5, atol=1e-5)


@pytest.mark.quick(
    "nope", "rope", "alibi", "t5", "sinusoidal", "learned", "fire", "cope", "fox", "mrope", "self_extend", "dape"
)
@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_program_and_constants_of_every_encoding_make_it_again(name):
    one = encoding(name, **({"length": 600} if name == "learned" else {}))
    params = one.init(jax.random.key(4), SIZES)
    hash(program(one))
    assert program(program(one)) == program(one)
    constants = one.constants(SIZES)
    again = compiled(lambda constants: outcome(program(one), constants, params, "dense"))(constants)
    near(again, compiled(lambda: outcome(one, EncodingParams(), params, "dense"))())


@pytest.mark.parametrize(
    "own",
    [
        attnjax.RoPE(scaling=attnjax.DynamicNTK(2.0, 16)),
        compose(attnjax.RoPE(theta=3.0), attnjax.ALiBi()),
        attnjax.T5Bias(buckets=16),
        PositionEncoding(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_has_no_numeric_fields_is_its_own_program(own):
    assert program(own) is own
    assert stacked_constants([own, own], SIZES) == EncodingParams()


def test_programs_differ_where_the_code_does():
    programs = [
        attnjax.RoPE(),
        attnjax.RoPE(layout="interleaved"),
        attnjax.RoPE(fraction=0.5),
        attnjax.XPos(),
        attnjax.XPos(scale_base=100.0),
        attnjax.PoPE(),
        attnjax.Sinusoidal(),
        attnjax.Sinusoidal("concatenated"),
        attnjax.ALiBi(),
        attnjax.ALiBi(symmetric=True),
        attnjax.ALiBi(symmetric=True, past=0.5),
    ]
    assert len({program(one) for one in programs}) == len(programs)


def test_refuses_encodings_of_different_programs():
    with pytest.raises(
        ValueError, match=r"share one program, got the programs \[RoPE\(.*\), RoPE\(.*fraction=0.5.*\)\]"
    ):
        stacked_constants([attnjax.RoPE(), attnjax.RoPE(theta=3.0, fraction=0.5)], SIZES)
    with pytest.raises(ValueError, match=r"share one program, got the programs \[\]"):
        stacked_constants([], SIZES)
