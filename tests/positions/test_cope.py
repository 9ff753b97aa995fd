import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.positions.base import EncodingParams, Sizes
from attnjax.positions.cope import BLOCK, CoPE, sums_from_the_right

P = 4
ENCODING = CoPE(max_position=P)
TABLE = np.random.default_rng(5).normal(size=(P, 4))
MASK = np.random.default_rng(6).random((9, 12)) < 0.6


def given(table):
    return EncodingParams(shared={"table": table})


def start(t, dtype=jnp.float32):
    return ENCODING.carry(EncodingParams(), jnp.ones((t, 4), dtype))


def by_loops(tile):
    """Count gates from the last key back, one pair at a time; the final counts come with the logits."""
    tile = jax.tree.map(np.asarray, tile)
    logits, counts = np.array(tile.logits, np.float64), np.zeros(len(tile.q))
    for i in range(len(tile.q)):
        for j in reversed(range(len(tile.k))):
            counts[i] += 1 / (1 + math.exp(-tile.logits[i, j])) if tile.visible[i, j] else 0
            position = min(counts[i], P - 1)
            low, high = math.floor(position), math.ceil(position)
            weight = position - low
            logits[i, j] += (1 - weight) * tile.q[i] @ TABLE[low] + weight * tile.q[i] @ TABLE[high]
    return logits, counts


@jax.jit
def score(tile, carry=None, table=TABLE):
    return ENCODING.score(given(jnp.asarray(table, tile.logits.dtype)), tile, carry)


@pytest.mark.parametrize("visible", [None, MASK, np.ones((9, 12), bool)], ids=["causal", "random", "full"])
def test_score_against_loops(make_tile, x64, visible):
    tile = make_tile(np.arange(9), np.arange(12), visible)
    logits, counts = score(tile, start(9, jnp.float64))
    assert logits.dtype == counts.dtype == jnp.float64
    expected, expected_counts = by_loops(tile)
    np.testing.assert_allclose(logits, expected, atol=1e-12)
    np.testing.assert_allclose(counts, expected_counts, atol=1e-12)
    assert expected_counts.max() > P, "the clamp must be exercised"


@pytest.mark.parametrize("columns", [BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_sums_over_several_blocks_of_columns(columns):
    x = np.random.default_rng(7).random((3, columns), np.float32)
    expected = np.cumsum(x[:, ::-1].astype(np.float64), axis=1)[:, ::-1]
    np.testing.assert_allclose(sums_from_the_right(jnp.asarray(x)), expected, rtol=1e-5)


def test_two_key_tiles_from_last_to_first_equal_the_whole(make_tile, cut):
    tile = make_tile(np.arange(9), np.arange(12), MASK, dtype=np.float32)
    whole, total = score(tile, start(9))
    right, carry = score(cut(tile, slice(None), slice(7, 12)), start(9))
    left, carry = score(cut(tile, slice(None), slice(0, 7)), carry)
    np.testing.assert_allclose(jnp.concatenate([left, right], axis=1), whole, atol=2e-6)
    np.testing.assert_allclose(carry, total, atol=2e-6)


def test_rows_do_not_depend_on_each_other(make_tile, cut):
    tile = make_tile(np.arange(9), np.arange(12), MASK, dtype=np.float32)
    whole, _ = score(tile)
    part, _ = score(cut(tile, slice(3, 5), slice(None)))
    np.testing.assert_allclose(part, whole[3:5], atol=1e-6)


def test_the_carry_keeps_its_type(make_tile, x64):
    tile = make_tile(np.arange(3), np.arange(3))
    logits, carry = score(tile, start(3))
    assert carry.dtype == jnp.float32
    assert logits.dtype == jnp.float64


def test_gradients_flow_through_the_position(make_tile, x64):
    tile = make_tile(np.arange(9), np.arange(12), MASK)
    weights = np.random.default_rng(7).normal(size=(9, 12))

    def loss(logits, q, table):
        return jnp.sum(weights * score(tile._replace(logits=logits, q=q), table=table)[0])

    gradients = jax.grad(loss, argnums=(0, 1, 2))(tile.logits, tile.q, TABLE)
    step = 1e-6
    for place, index in ((0, (8, 11)), (0, (4, 7)), (1, (3, 2)), (2, (1, 1)), (2, (3, 0))):
        moved = [np.array(x) for x in (tile.logits, tile.q, TABLE)]
        moved[place][index] += step
        slope = (loss(*moved) - loss(tile.logits, tile.q, TABLE)) / step
        np.testing.assert_allclose(gradients[place][index], slope, rtol=1e-4, atol=1e-7)
    visible_gates = np.abs(gradients[0] - weights)[MASK]
    assert np.any(visible_gates > 1e-3), "logits must matter beyond their own entry"


def test_gradients_are_finite_at_the_ends(make_tile):
    tile = make_tile(np.arange(3), np.arange(5), np.zeros((3, 5), bool), dtype=np.float32)
    hidden = jnp.where(tile.visible, tile.logits, jnp.finfo(jnp.float32).min)
    gradient = jax.grad(lambda logits, table: score(tile._replace(logits=logits), table=table)[0].sum(), argnums=(0, 1))
    for leaf in gradient(hidden, TABLE.astype(np.float32)):
        assert np.all(np.isfinite(leaf))


def test_a_single_position(make_tile):
    tile = make_tile(np.arange(3), np.arange(5), dtype=np.float32)
    table = TABLE[:1].astype(np.float32)
    logits, _ = CoPE(max_position=1).score(given(table), tile)
    np.testing.assert_allclose(logits, tile.logits + tile.q @ table.T, atol=1e-6)


def test_init_is_attention_without_position(make_tile):
    params = CoPE().init(jax.random.key(0), Sizes(model=8, heads=2, kv_heads=2, head_dim=4))
    assert params.head == ()
    np.testing.assert_array_equal(params.shared["table"], np.zeros((16, 4)))
    tile = make_tile(np.arange(3), np.arange(5), dtype=np.float32)
    np.testing.assert_array_equal(CoPE().score(params, tile)[0], tile.logits)


@pytest.mark.parametrize(
    ("value", "message"), [(0, "at least 1, got 0"), (2.5, "an integer, got 2.5"), (True, "an integer")]
)
def test_refuses(value, message):
    with pytest.raises(ValueError, match=f"max_position must be {message}"):
        CoPE(max_position=value)
