import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.attention import Mask, attention_weights
from attnjax.positions.alibi import ALiBi
from attnjax.positions.base import EncodingParams, Sizes, Trait

SLOPES = {
    1: [0.00390625],
    6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256, 0.70710678, 0.35355339, 0.17677670, 0.08838835],
}


def slopes(encoding, heads):
    return encoding.constants(Sizes(model=8 * heads, heads=heads, kv_heads=heads, head_dim=8)).head["slope"]


def given(slope):
    return EncodingParams(head={"slope": np.float32(slope)})


@pytest.mark.parametrize("heads", SLOPES)
def test_slopes_are_the_published_ones(heads):
    made = slopes(ALiBi(), heads)
    assert isinstance(made, np.ndarray)
    assert made.dtype == np.float64
    np.testing.assert_allclose(made, SLOPES[heads], rtol=1e-7)


def test_the_bias_has_all_bits_of_its_slopes(x64):
    """0.3 rounded to float32 is off in the eighth digit."""
    own = ALiBi(slopes=(0.3, 0.7))
    q, k = (jnp.asarray(np.random.default_rng(0).normal(size=(1, 9, 2, 4))) for _ in range(2))
    n = np.arange(9)[:, None] - np.arange(9)[None, :]
    logits = np.einsum("btnh,bsnh->bnts", q, k) / 2 - np.array([0.3, 0.7])[:, None, None] * n
    weights = np.exp(np.where(n >= 0, logits, -np.inf))
    found = attention_weights(q, k, encoding=own, mask=Mask(causal=True))
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True), atol=1e-14)
    one = EncodingParams(head={"slope": slopes(own, 2)[0]})
    np.testing.assert_array_equal(own.bias(one, jnp.arange(3)), -0.3 * np.arange(3))
    assert own.slope(one) == -0.3


def test_the_bias_is_float32_otherwise():
    """The slopes are kept in float64 on the host, and rounded once, without a warning."""
    own = ALiBi(slopes=(0.3, 0.7))
    one = EncodingParams(head={"slope": slopes(own, 2)[0]})
    assert own.bias(one, jnp.arange(3)).dtype == own.slope(one).dtype == jnp.float32
    np.testing.assert_array_equal(own.bias(one, jnp.arange(3)), -np.float32(0.3) * np.arange(3, dtype=np.float32))
    assert own.bias(EncodingParams(head={"slope": jnp.bfloat16(0.5)}), jnp.arange(3)).dtype == jnp.float32


def test_own_slopes():
    np.testing.assert_array_equal(slopes(ALiBi(slopes=(0.5, 3.0)), 2), [0.5, 3.0])
    assert hash(ALiBi(slopes=[0.5, 3.0])) == hash(ALiBi(slopes=(0.5, 3.0)))


def test_bias_by_hand():
    n = jnp.array([[0, 1, 7], [-2, 100, -5]])
    np.testing.assert_array_equal(ALiBi().bias(given(0.25), n), [[0, -0.25, -1.75], [0.5, -25, 1.25]])
    np.testing.assert_array_equal(ALiBi(symmetric=True).bias(given(0.25), n), [[0, -0.25, -1.75], [-0.5, -25, -1.25]])


def test_keys_in_the_past_look_nearer_by_hand():
    n = jnp.array([-2, -1, 0, 1, 2])
    encoding = ALiBi(symmetric=True, past=0.5)
    np.testing.assert_array_equal(encoding.bias(given(0.5), n), [-1, -0.5, 0, -0.25, -0.75])
    with pytest.raises(ValueError, match="past belongs to symmetric=True, got past=0.5 without it"):
        ALiBi(past=0.5)
    with pytest.raises(ValueError, match="past must be positive and finite, got -1"):
        ALiBi(symmetric=True, past=-1)


@pytest.mark.parametrize("heads", [6, 8, 12])
def test_bias_falls_strictly_to_65536(heads):
    n = jnp.arange(65_537)
    bias = jax.vmap(lambda m: ALiBi().bias(EncodingParams(head={"slope": m}), n))(slopes(ALiBi(), heads))
    assert bias.dtype == jnp.float32
    assert np.all(np.diff(np.asarray(bias), axis=1) < 0)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_slope_times_distance_is_the_bias_where_it_is_linear(dtype):
    n = np.array([-70_000, -3, 0, 1, 65_536], dtype)
    p = given(0.7071067)
    np.testing.assert_array_equal(ALiBi().bias(p, n), ALiBi().slope(p) * n.astype(np.float32))
    np.testing.assert_array_equal(ALiBi().slope(p), np.float32(-0.7071067))
    assert ALiBi(symmetric=True).slope(p) is None
    assert ALiBi(symmetric=True, past=0.5).slope(p) is None
    assert ALiBi().traits == ALiBi(symmetric=True).traits == Trait.BIAS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(slopes=(0.5, float("nan"))), "slopes must be positive and finite, got nan"),
        (dict(slopes=(0.5, float("inf"))), "slopes must be positive and finite, got inf"),
        (dict(slopes=(0.5, -1.0)), "slopes must be positive and finite, got -1.0"),
        (dict(slopes=(0.5, 0)), "slopes must be positive and finite, got 0"),
        (dict(slopes=("a",)), "slopes must be a number, got 'a'"),
        (dict(slopes=0.5), "slopes must be a tuple"),
        (dict(slopes=()), "slopes must be a tuple"),
        (dict(symmetric=1), "symmetric must be True or False, got 1"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        ALiBi(**options)


def test_refuses_the_wrong_number_of_slopes():
    with pytest.raises(ValueError, match="got 2 slopes for 3 heads"):
        slopes(ALiBi(slopes=(0.5, 0.25)), 3)


def test_refuses_a_mask_that_is_not_causal_unless_symmetric():
    ALiBi().check(causal=True)
    ALiBi().check(causal=None)
    ALiBi(symmetric=True).check(causal=False)
    with pytest.raises(ValueError, match="needs a causal mask"):
        ALiBi().check(causal=False)
