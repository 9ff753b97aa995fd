"""Encodings whose hyper-parameters are data do what they do when these are written down, many of them in one program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax
from attnjax import Mask, Sizes, attend
from attnjax.positions import ENCODINGS, EncodingParams, Given, PositionEncoding, compose, embed, encoding

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


def outcome(encoding, params, implementation):
    """Attention and embedding, and the gradient of their sum with respect to everything but positions."""

    def loss(q, k, v, x, params):
        options = {"q_pos": POS, "k_pos": POS, "mask": Mask(causal=True), "implementation": implementation}
        out = attend(q, k, v, encoding=encoding, params=params, **options)
        put = embed(encoding, params, x, POS)
        return jnp.sin(out).sum() + jnp.sin(put).sum(), (out, put)

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True)(Q, K, V, X, params)


def compiled(function):
    """Quickly: a program runs for a millisecond here."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})


def near(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "implementation"),
    [*((name, "dense") for name in SAME_PROGRAM), ("rope", "chunked"), ("alibi", "chunked"), ("rope", "xla")],
)
def test_one_mapped_program_equals_each_encoding_by_itself(name, implementation):
    encodings = SAME_PROGRAM[name]
    params = encodings[0].init(jax.random.key(4), SIZES)
    programs, numbers = zip(*(one.as_data(SIZES) for one in encodings), strict=True)
    assert len(set(programs)) == 1
    stacked = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *numbers)
    run = lambda numbers: outcome(Given(programs[0], numbers), params, implementation)
    together = compiled(jax.vmap(run))(stacked)
    for i, one in enumerate(encodings):
        alone = compiled(lambda one=one: outcome(one, params, implementation))()
        near(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone)


def test_numbers_that_were_not_mapped_give_the_same_bits():
    """Frequencies are integers made on the host, so nothing is rounded on the way."""
    rope = attnjax.RoPE(theta=1234.5)
    given = Given(*rope.as_data(SIZES))
    far = np.full(T, 2**31 - 9, np.int32) + np.arange(T, dtype=np.int32)
    turned = [
        jax.jit(lambda q, e=e: e.map_q((), e.bind(EncodingParams(), N).shared, q, far))(Q[0, :, 0])
        for e in (rope, given)
    ]
    np.testing.assert_array_equal(*turned)


def test_decoding_with_given_numbers():
    """One by one through a cache, inside one transformation."""
    rope = attnjax.RoPE(theta=77.0)

    def decode(numbers):
        cache = attnjax.KVCache.create(B, T, N, H, encoding=(mine := Given(rope.as_data(SIZES)[0], numbers)))
        outs = []
        for t in range(3):
            cache = cache.append(K[:, t : t + 1], V[:, t : t + 1])
            outs.append(attend(Q[:, t : t + 1], cache=cache, encoding=mine, mask=Mask(causal=True)))
        return jnp.concatenate(outs, axis=1)

    expected = attend(Q, K, V, encoding=rope, mask=Mask(causal=True))
    np.testing.assert_allclose(compiled(decode)(rope.as_data(SIZES)[1]), expected[:, :3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_numbers_of_every_encoding_make_it_again(name):
    one = encoding(name, **({"length": 600} if name == "learned" else {}))
    params = one.init(jax.random.key(4), SIZES)
    program, numbers = one.as_data(SIZES)
    hash(program)
    assert program.as_data(SIZES)[0] == program
    if jax.tree.leaves(numbers):
        again = compiled(lambda numbers: outcome(Given(program, numbers), params, "dense"))(numbers)
        near(again, compiled(lambda: outcome(one, params, "dense"))())
    else:
        assert program is one


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
def test_what_has_no_numbers_is_its_own_program(own):
    program, numbers = own.as_data(SIZES)
    assert program is own
    assert not jax.tree.leaves(numbers)


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
    assert len({one.as_data(SIZES)[0] for one in programs}) == len(programs)


@pytest.mark.parametrize("wrong", [("rope", EncodingParams()), (attnjax.RoPE(), {"frequencies": 1.0})])
def test_given_refuses_what_as_data_does_not_return(wrong):
    with pytest.raises(ValueError, match="Given takes what as_data returned, an encoding and EncodingParams; got"):
        Given(*wrong)
