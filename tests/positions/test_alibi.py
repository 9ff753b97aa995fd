import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.alibi import ALiBi
from attnjax.positions.base import EncodingParams, Sizes

SLOPES = {
    1: [0.00390625],
    6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256, 0.70710678, 0.35355339, 0.17677670, 0.08838835],
}


def slopes(encoding, heads):
    return encoding.bind(EncodingParams(), heads).head


@pytest.mark.parametrize("heads", SLOPES)
def test_slopes_are_the_published_ones(heads):
    made = slopes(ALiBi(), heads)
    assert isinstance(made, np.ndarray)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, SLOPES[heads], rtol=1e-7)


def test_own_slopes():
    np.testing.assert_array_equal(slopes(ALiBi(slopes=(0.5, 3.0)), 2), [0.5, 3.0])
    assert hash(ALiBi(slopes=[0.5, 3.0])) == hash(ALiBi(slopes=(0.5, 3.0)))


def test_bias_by_hand():
    n = jnp.array([[0, 1, 7], [-2, 100, -5]])
    np.testing.assert_array_equal(ALiBi().bias(np.float32(0.25), (), n), [[0, -0.25, -1.75], [0.5, -25, 1.25]])
    np.testing.assert_array_equal(
        ALiBi(symmetric=True).bias(np.float32(0.25), (), n), [[0, -0.25, -1.75], [-0.5, -25, -1.25]]
    )


def test_keys_in_the_past_look_nearer_by_hand():
    n = jnp.array([-2, -1, 0, 1, 2])
    encoding = ALiBi(symmetric=True, past=0.5)
    np.testing.assert_array_equal(encoding.bias(np.float32(0.5), (), n), [-1, -0.5, 0, -0.25, -0.75])
    with pytest.raises(ValueError, match="past belongs to symmetric=True, got past=0.5 without it"):
        ALiBi(past=0.5)
    with pytest.raises(ValueError, match="past must be positive and finite, got -1"):
        ALiBi(symmetric=True, past=-1)


@pytest.mark.parametrize("heads", [6, 8, 12])
def test_bias_falls_strictly_to_65536(heads):
    n = jnp.arange(65_537)
    bias = jax.vmap(lambda m: ALiBi().bias(m, (), n))(slopes(ALiBi(), heads))
    assert bias.dtype == jnp.float32
    assert np.all(np.diff(np.asarray(bias), axis=1) < 0)


def test_columns_are_exact_in_bfloat16_and_give_slope_times_position():
    pos = np.arange(65_536, dtype=np.int32)
    encoding = ALiBi()
    keys = encoding.columns_k((), jnp.zeros((pos.size, 4)), pos)
    queries = jax.vmap(lambda m: encoding.columns_q(m, (), jnp.zeros((1, 4)), pos[:1], jnp.float32(0.5)))
    for heads in (8, 12):
        m = slopes(encoding, heads)
        columns = jax.jit(queries)(m)[:, 0]
        for exact in (keys, columns):
            np.testing.assert_array_equal(exact.astype(jnp.bfloat16).astype(jnp.float32), exact)
        product = np.asarray(columns, np.float64) @ np.asarray(keys, np.float64).T
        np.testing.assert_array_equal(product, m.astype(np.float64)[:, None] * pos[None, :])


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_columns_equal_the_score_up_to_a_constant_per_row(make_tile, dtype):
    tile = make_tile(np.arange(300, 320, dtype=dtype), np.arange(-20, 300, dtype=dtype) * 3, dtype=np.float32)
    encoding, m = ALiBi(), np.float32(0.7071067)
    added = encoding.score(m, (), tile) - tile.logits
    product = (
        encoding.columns_q(m, (), tile.q, tile.q_pos, jnp.float32(0.3)) @ encoding.columns_k((), tile.k, tile.k_pos).T
    )
    difference = np.asarray(added - product, np.float64)
    np.testing.assert_allclose(difference - difference[:, :1], 0, atol=2e-4)


def test_columns_are_absent_where_symmetric():
    assert ALiBi().hooks() == {"bias", "columns_q", "columns_k"}
    assert ALiBi(symmetric=True).hooks() == {"bias"}


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
        ALiBi(slopes=(0.5, 0.25)).bind(EncodingParams(), 3)


def test_refuses_a_mask_that_is_not_causal_unless_symmetric():
    sizes = Sizes(model=8, heads=2, kv_heads=2, head=4)
    ALiBi().check(sizes, causal=True)
    ALiBi(symmetric=True).check(sizes, causal=False)
    with pytest.raises(ValueError, match="needs a causal mask"):
        ALiBi().check(sizes, causal=False)
