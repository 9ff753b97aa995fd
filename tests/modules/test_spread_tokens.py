"""Attention modules whose tokens are spread over devices: queries at a subset of tokens, and positions from content."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from attnjax.attention import Mask
from attnjax.config.architecture import AttentionOptions
from attnjax.modules import MultiHeadAttention
from attnjax.positions import FoX, RoPE
from attnjax.positions.indices import zigzag

DEVICES, TOKENS = 2, 8


@pytest.fixture
def make(build):
    return lambda **options: build(MultiHeadAttention, 16, 4, **options)


@pytest.fixture
def spread():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:DEVICES]), ("sequence",))
    return lambda function, specs, out: jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out))


def test_queries_at_a_subset_of_tokens_see_the_keys_before_them(make, call, spread):
    """`query_indices` count the tokens of a device, and the causal mask those of all devices."""
    attention = make(encoding=RoPE())
    x = jax.random.normal(jax.random.key(0), (1, TOKENS, 16))
    some = jnp.array([[3], [1]])
    own = lambda x, some: attention(x, mask=Mask(causal=True), query_indices=some, axis_name="sequence")
    found = spread(own, (P(None, "sequence"), P("sequence")), P(None, "sequence"))(x, some)
    expected = np.asarray(call(attention, x, mask=Mask(causal=True)))[:, [3, 4 + 1]]
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_positions_from_content_follow_the_order_of_devices(make, call, spread):
    """In zigzag order they would be summed in another order, so that it is refused."""
    attention = make(encoding=FoX())
    x = jax.random.normal(jax.random.key(0), (1, TOKENS, 16))
    own = lambda x, mask=Mask(causal=True): attention(x, mask=mask, axis_name="sequence")
    found = spread(own, (P(None, "sequence"),), P(None, "sequence"))(x)
    np.testing.assert_allclose(found, call(attention, x, mask=Mask(causal=True)), atol=2e-6)
    index = zigzag(TOKENS, DEVICES)
    turned = lambda x, index: own(x, dataclasses.replace(Mask(causal=True), q_index=index, k_index=index))
    with pytest.raises(ValueError, match=r"sums over the tokens in the order of the devices: .* no q_index and k"):
        spread(turned, (P(None, "sequence"), P("sequence")), P(None, "sequence"))(x, jnp.asarray(index))


def test_content_positions_decode_in_double_precision(x64):
    attention = MultiHeadAttention(
        16, 2, encoding=FoX(), options=AttentionOptions(param_dtype="float64"), rngs=nnx.Rngs(0)
    )
    x = jax.random.normal(jax.random.key(0), (1, 6, 16), jnp.float64)
    cache, parts = attention.cache(1, 6, dtype=jnp.float64), []
    for t in range(6):
        out, cache = attention.decode(x[:, t : t + 1], cache)
        parts.append(out)
    full = attention(x, mask=Mask(causal=True))
    np.testing.assert_allclose(jnp.concatenate(parts, 1), full, rtol=1e-9, atol=1e-12)
