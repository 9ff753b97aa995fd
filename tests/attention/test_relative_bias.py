"""A bias per distance: the Toeplitz matrix and its derivative, and which positions are read from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import ALiBi, Kerple, LogN, Mask, RoPE, Sandwich, Sizes, T5Bias, attend, attention_weights, compose
from attnjax.attention.inputs import from_caller, prepare
from attnjax.attention.relative_bias import ToeplitzBias, per_distance, toeplitz

B, T, S, N, K, H = 4, 19, 23, 6, 3, 8


def test_toeplitz_by_hand():
    np.testing.assert_array_equal(toeplitz(jnp.arange(6.0), 3, 4), [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2]])


@pytest.mark.parametrize(("t", "s"), [(1, 1), (1, 5), (5, 1), (4, 7), (7, 4)])
def test_the_derivative_of_toeplitz_is_toeplitz(t, s):
    """It is linear, so a tangent goes the same way; the transpose sums each diagonal."""
    w, c = np.random.default_rng(0).normal(size=t + s - 1), np.random.default_rng(1).normal(size=(t, s))
    w, c = (x.astype(np.float32) for x in (w, c))
    table = lambda w: toeplitz(w, t, s)

    @jax.jit
    def run(w, c):
        return table(w), jax.jvp(table, (jnp.zeros_like(w),), (w,)), jax.vjp(table, w)[1](c)

    expected, (out, tangent), (dw,) = run(w, c)
    assert not out.any()
    np.testing.assert_array_equal(tangent, expected)
    expected = [sum(c[a, b] for a in range(t) for b in range(s) if a - b + s - 1 == i) for i in range(t + s - 1)]
    np.testing.assert_allclose(dw, expected, atol=1e-5)


def inputs_of(encoding, q_pos, k_pos, causal=True):
    normal = np.random.default_rng(0).normal
    q, k, v = (jnp.asarray(normal(size=shape), jnp.float32) for shape in ((B, T, N, H), (B, S, K, H), (B, S, K, H)))
    params = encoding.init(jax.random.key(0), Sizes(N * H, N, K, H))
    return prepare(q, from_caller(q, k, v, k_pos), encoding, params, q_pos, Mask(causal=causal), None, None, None)


@pytest.mark.parametrize("encoding", [T5Bias(), Kerple(), ALiBi(), Sandwich(width=16), compose(RoPE(), ALiBi())])
def test_consecutive_positions_are_read_from_distances(encoding):
    far = per_distance(inputs_of(encoding, np.arange(T) + 1000, np.arange(S) - 5), (8, 5))
    assert far.encoding == ToeplitzBias(1000 + 5 - 24)
    assert far.params.head["bias"].shape == (K, N // K, 24 + 25 - 1)


UNEVEN = {
    "a gap": np.r_[0:10, 11 : T + 1],
    "backwards": np.arange(T)[::-1],
    "floats": np.arange(T, dtype=np.float32),
    "by example": np.tile(np.arange(T), (B, 1)),
}


@pytest.mark.parametrize("pos", UNEVEN.values(), ids=UNEVEN)
def test_other_positions_go_to_the_encoding(pos):
    inputs = inputs_of(T5Bias(), pos, np.arange(S))
    assert per_distance(inputs, (8, 5)) is inputs


def test_distances_that_int32_cannot_hold():
    """They wrapped around, so that the key farthest away got the largest bias."""
    x, options = jnp.ones((1, 2, 1, 4)), {"encoding": ALiBi(slopes=(1e-9,)), "mask": Mask(causal=True)}
    run = lambda q_pos, k_pos, **more: attend(x, x, x, q_pos=q_pos, k_pos=k_pos, **options | more)
    near, far = np.array([2**31 - 2, 2**31 - 1]), np.array([-1, 0])
    for q_pos, k_pos, came in (
        (near, far, "2147483646..2147483648"),
        (jnp.asarray(far - 2), near, "-2147483650..-2147"),
    ):
        message = r"q_pos - k_pos must fit int32 \(\|distance\| < 2\^31\) for ALiBi\(.*\), got " + came
        with pytest.raises(ValueError, match=message):
            run(q_pos, k_pos)
    # What is hidden is no matter, nor what has no bias; and what fits serves, with tiles that go on behind the end.
    run(near, far, mask=Mask(causal=True, k_valid=np.array([False, True])))
    run(near, far, encoding=RoPE())
    both = compose(RoPE(), LogN())
    np.testing.assert_array_equal(run((near, near), far, encoding=both), run(near, (far, far), encoding=both))
    with pytest.raises(ValueError, match=r"must fit int32 .* for ALiBi"):
        run((far, near), (near, far), encoding=compose(RoPE(), ALiBi()))
    for implementation in ("dense", "chunked"):
        out = attention_weights(x, x, q_pos=near, k_pos=far + 1, **options)
        np.testing.assert_allclose(
            run(near, far + 1, implementation=implementation)[0, :, 0, 0], out.sum(-1)[0, 0], rtol=1e-6
        )
