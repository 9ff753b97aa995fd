import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax import KVCache, Mask, RoPE, attend, compose
from attnjax.positions.base import EncodingParams, Sizes
from attnjax.positions.transformer_xl import TransformerXL

D, HEADS = 6, 2
ENCODING = TransformerXL()
CLAMPED = TransformerXL(table="clamped", length=10)


def parameters(dtype=np.float64):
    draw = np.random.default_rng(1)
    head = {
        "u": draw.normal(size=(HEADS, 4)),
        "v": draw.normal(size=(HEADS, 4)),
        "w_r": draw.normal(size=(HEADS, D, 4)),
    }
    return jax.tree.map(lambda leaf: leaf.astype(dtype), head)


def gathered(tile, head, theta=10_000.0):
    """Section 3.3 written out: one row of R and one product for each pair of positions."""
    tile = jax.tree.map(np.asarray, tile)
    frequencies = theta ** (-2 * np.arange(D // 2) / D)
    scores = np.zeros((HEADS, len(tile.q_pos), len(tile.k_pos)))
    for h, i, j in np.ndindex(*scores.shape):
        angle = (float(tile.q_pos[i]) - float(tile.k_pos[j])) * frequencies
        r = np.concatenate([np.sin(angle), np.cos(angle)]) @ head["w_r"][h]
        scores[h, i, j] = tile.scale * ((tile.q[i] + head["u"][h]) @ tile.k[j] + (tile.q[i] + head["v"][h]) @ r)
    return scores


def score(tile, head, encoding=ENCODING):
    return jax.jit(jax.vmap(lambda head: encoding.score(EncodingParams(head=head), tile)))(head)


@pytest.mark.parametrize("theta", [10_000.0, 50.0])
def test_score_against_a_gather_of_r(make_tile, x64, theta):
    tile = make_tile(np.arange(5, 14), np.arange(17))
    head = parameters()
    made = score(tile, head, TransformerXL(theta))
    assert made.dtype == jnp.float64
    np.testing.assert_allclose(made, gathered(tile, head, theta), atol=1e-12)


@pytest.mark.parametrize("start", [0, 1_000_000])
def test_score_in_single_precision_does_not_depend_on_where_it_starts(make_tile, start):
    tile = make_tile(start + np.arange(5, 14), start + np.arange(17), dtype=np.float32)
    head = parameters(np.float32)
    made = score(tile, head)
    assert made.dtype == jnp.float32
    np.testing.assert_allclose(made, gathered(tile, head), atol=1e-5)


def test_a_tile_is_a_slice_of_the_whole(make_tile, cut):
    tile = make_tile(np.arange(9), np.arange(12), dtype=np.float32)
    whole = score(tile, parameters(np.float32))
    part = score(cut(tile, slice(4, 7), slice(2, 9)), parameters(np.float32))
    np.testing.assert_allclose(part, whole[:, 4:7, 2:9], atol=2e-6)


def test_gradients_against_those_of_the_gather(make_tile, x64):
    tile = make_tile(np.arange(3, 6), np.arange(5))
    head = parameters()
    weights = np.random.default_rng(2).normal(size=(HEADS, 3, 5))
    gradient = jax.grad(lambda head: jnp.sum(score(tile, head) * weights))(head)
    step = 1e-6
    for name, index in (("u", (1, 2)), ("v", (0, 3)), ("w_r", (1, 4, 0)), ("w_r", (0, 1, 2))):
        moved = {key: leaf.copy() for key, leaf in head.items()}
        moved[name][index] += step
        slope = np.sum((gathered(tile, moved) - gathered(tile, head)) * weights) / step
        np.testing.assert_allclose(gradient[name][index], slope, rtol=1e-5)


def test_the_clamped_table_against_a_gather_that_clamps(make_tile, x64):
    """Rows of R for positions 0 .. 31, read at key - query + 32: what lies behind the end reads the last row."""
    tile, length = make_tile(np.arange(5, 14), np.arange(17)), 32
    head = parameters()
    encoding = TransformerXL(table="clamped", length=length)
    made = score(tile, head, encoding)
    angle = np.arange(length)[:, None] * 10_000.0 ** (-2 * np.arange(D // 2) / D)
    table = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    tile = jax.tree.map(np.asarray, tile)
    read = np.minimum(tile.k_pos[None, :] - tile.q_pos[:, None] + length, length - 1)
    assert (read[0, :5] == [27, 28, 29, 30, 31]).all()
    assert (read[0, 5:] == 31).all()
    for h in range(HEADS):
        r = table[read] @ head["w_r"][h]
        content = (tile.q + head["u"][h]) @ tile.k.T
        expected = tile.scale * (content + np.einsum("th,tsh->ts", tile.q + head["v"][h], r))
        np.testing.assert_allclose(made[h], expected, atol=1e-12)


@pytest.mark.parametrize("encoding", [CLAMPED, compose(RoPE(), CLAMPED)], ids=str)
def test_the_clamped_table_is_as_long_as_the_distances(encoding):
    """Of queries and valid keys, whose positions were looked at apart, and not of slots of a cache that nobody wrote."""
    params = encoding.init(jax.random.key(0), Sizes(8, 2, 2, 4))
    x, options = jnp.ones((1, 5, 2, 4)), {"encoding": encoding, "params": params, "mask": Mask(causal=True)}
    run = lambda q_pos, k_pos, **more: attend(x, x, x, q_pos=q_pos, k_pos=k_pos, **options | more)
    index = np.arange(5)
    for q_pos in (index + 6, jnp.asarray(index + 6), (index + 6)[None]):
        with pytest.raises(
            ValueError, match="a table of length 10 holds distances up to 9, got a query and a key at distance 10"
        ):
            run(q_pos, index)
    run(index + 5, index)
    run(index, index + 100)
    run(index + 6, index, mask=Mask(causal=True, k_valid=index > 0))
    cache = KVCache.create(1, 10, 2, 4, encoding=encoding).append(x, x, index + 1000)
    expected = run(index + 1000, index + 1000)
    np.testing.assert_allclose(attend(x, cache=cache, **options), expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"a table of length 10 holds distances up to 9, got positions 0\.\.40"):
        cache.append(x, x, index * 10)


def test_init():
    params = TransformerXL().init(jax.random.key(0), Sizes(model=64, heads=50, kv_heads=50, head_dim=16))
    assert jax.tree.map(jnp.shape, params.head) == {"u": (50, 16), "v": (50, 16), "w_r": (50, 64, 16)}
    assert params.shared == ()
    for name, deviation in (("u", 0.02), ("v", 0.02), ("w_r", 1 / 8)):
        np.testing.assert_allclose(np.std(params.head[name]), deviation, rtol=0.1)
    assert not np.array_equal(params.head["u"], params.head["v"])


def test_refuses():
    with pytest.raises(ValueError, match="theta must be positive and finite, got nan"):
        TransformerXL(float("nan"))
    with pytest.raises(ValueError, match="table must be 'two_sided' or 'clamped', got 'mirrored'"):
        TransformerXL(table="mirrored")
    with pytest.raises(ValueError, match="a length belongs to table='clamped', got table='clamped', length=None"):
        TransformerXL(table="clamped")
    with pytest.raises(ValueError, match="a length belongs to table='clamped', got table='two_sided', length=8"):
        TransformerXL(length=8)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        TransformerXL(table="clamped", length=0)
    clamped = TransformerXL(table="clamped", length=8)
    clamped.check(pos=np.array([[0, 7], [50, 57]]))
    with pytest.raises(ValueError, match=r"a table of length 8 holds distances up to 7, got positions 0\.\.8"):
        clamped.check(pos=np.array([[0, 7], [1, 8], [0, 8]]))
    with pytest.raises(ValueError, match="model dimension must be even, got 7"):
        TransformerXL().init(jax.random.key(0), Sizes(model=7, heads=1, kv_heads=1, head_dim=7))
