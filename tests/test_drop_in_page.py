"""The page docs/drop_in.md: each of its blocks stands, line for line, in a function here that runs it."""

import functools
import re
import textwrap
from pathlib import Path

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj

PAGE = Path(__file__).parent.parent / "docs" / "drop_in.md"


def names():
    key = jax.random.key(0)
    q, k, v = jax.random.normal(key, (3, 4, 16, 4, 8))  # each [batch, length, heads, head dimension]
    x = jax.random.normal(key, (4, 16, 32))  # [batch, length, model dimension]
    causal = aj.Mask(causal=True)
    return key, q, k, v, x, causal


def same(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def through(x, weights, attend):
    """Both projections of a Flax layer around `attend`."""
    q, k, v = (jnp.einsum("btd,dnh->btnh", x, weights[name]["kernel"]) for name in ("query", "key", "value"))
    return jnp.einsum("btnh,nhd->btd", attend(q, k, v), weights["out"]["kernel"])


@pytest.mark.slow
def test_plain():
    _, q, k, v, _, causal = names()
    out = aj.attend(q, k, v, encoding=aj.RoPE(), mask=causal)
    assert out.shape == q.shape


@pytest.mark.slow
def test_learned():
    key, q, k, v, _, causal = names()
    encoding = aj.T5Bias()
    params = encoding.init(key, aj.Sizes(model=32, heads=4, kv_heads=4, head_dim=8))
    attend = functools.partial(aj.attend, encoding=encoding, mask=causal)
    out = jax.jit(attend)(q, k, v, params=params)
    gradient = jax.grad(lambda params: attend(q, k, v, params=params).sum())(params)

    assert np.abs(gradient.head["table"]).max() > 0

    models = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    outs = jax.vmap(lambda params: attend(q, k, v, params=params))(models)

    same(outs[0], out)

    layer = jax.checkpoint(lambda q, params: (attend(q, k, v, params=params), None))
    layers = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), params)
    last, _ = jax.lax.scan(layer, q, layers)

    expected = q
    for _ in range(3):
        expected = attend(expected, k, v, params=params)
    same(last, expected)

    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    batch, everywhere = jax.sharding.PartitionSpec("data"), jax.sharding.PartitionSpec()
    specs = dict(mesh=mesh, in_specs=(everywhere, batch, batch, batch), out_specs=batch)
    sharded = jax.shard_map(lambda params, q, k, v: attend(q, k, v, params=params), **specs)(params, q, k, v)

    same(sharded, out)

    ring = functools.partial(attend, axis_name="sequence")
    mesh = jax.make_mesh((4,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
    tokens = jax.sharding.PartitionSpec(None, "sequence")
    specs = dict(mesh=mesh, in_specs=(everywhere, tokens, tokens, tokens), out_specs=tokens)
    ringed = jax.shard_map(lambda params, q, k, v: ring(q, k, v, params=params), **specs)(params, q, k, v)

    same(ringed, out)


def test_heads_shard_by_following_the_arrays():
    _, q, k, v, _, causal = names()
    attend = jax.jit(functools.partial(aj.attend, encoding=aj.ALiBi(), mask=causal))
    mesh = jax.make_mesh((4,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "heads"))
    same(attend(*(jax.device_put(array, sharding) for array in (q, k, v))), attend(q, k, v))


def test_decoding():
    _, q, k, v, _, causal = names()
    cache = aj.KVCache.create(batch=4, capacity=64, kv_heads=4, head_dim=8, encoding=aj.RoPE())

    @jax.jit
    def step(cache, q, k, v):
        cache = cache.append(k, v)
        return cache, aj.attend(q, cache=cache, encoding=aj.RoPE())

    for t in range(3):
        cache, out = step(cache, *(array[:, t : t + 1] for array in (q, k, v)))

    same(out, aj.attend(q, k, v, encoding=aj.RoPE(), mask=causal)[:, 2:3])


def test_linen():
    key, _, _, _, x, causal = names()
    layer = nn.MultiHeadDotProductAttention(num_heads=4, attention_fn=aj.attention_fn(aj.ALiBi(), mask=causal))
    variables = layer.init(key, x)
    out = layer.apply(variables, x)

    attend = functools.partial(aj.attend, encoding=aj.ALiBi(), mask=causal)
    same(out, through(x, variables["params"], attend))


def test_linen_with_an_encoding_that_learns():
    key, _, _, _, x, causal = names()

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x):
            encoding, sizes = aj.T5Bias(), aj.Sizes(model=32, heads=4, kv_heads=4, head_dim=8)
            attention_fn = aj.attention_fn(encoding, self.param("encoding", encoding.init, sizes), mask=causal)
            return nn.MultiHeadDotProductAttention(num_heads=4, attention_fn=attention_fn)(x)

    layer = Attention()
    variables = jax.jit(layer.init)(key, x)
    params = variables["params"]
    attend = functools.partial(aj.attend, encoding=aj.T5Bias(), params=params["encoding"], mask=causal)
    same(layer.apply(variables, x), through(x, params["MultiHeadDotProductAttention_0"], attend))
    gradient = jax.jit(jax.grad(lambda variables: jnp.sum(layer.apply(variables, x) ** 2)))(variables)
    assert np.abs(gradient["params"]["encoding"].head["table"]).max() > 0


def kernels(layer):
    return {name: {"kernel": getattr(layer, name).kernel[...]} for name in ("query", "key", "value", "out")}


def test_nnx():
    _, _, _, _, x, causal = names()
    attention_fn = aj.attention_fn(aj.RoPE(), mask=causal)
    layer = nnx.MultiHeadAttention(4, 32, attention_fn=attention_fn, decode=False, rngs=nnx.Rngs(0))
    out = layer(x)

    same(out, through(x, kernels(layer), functools.partial(aj.attend, encoding=aj.RoPE(), mask=causal)))


def test_nnx_with_an_encoding_that_learns():
    _, _, _, _, x, causal = names()

    class Encoded(nnx.Module):
        def __init__(self, encoding, sizes, rngs):
            self.encoding = encoding
            self.params = nnx.data(jax.tree.map(nnx.Param, encoding.init(rngs.params(), sizes)))

        def __call__(self, query, key, value, **options):
            params = jax.tree.map(lambda leaf: leaf[...], self.params, is_leaf=lambda leaf: isinstance(leaf, nnx.Param))
            return aj.attention_fn(self.encoding, params, mask=causal)(query, key, value, **options)

    encoded = Encoded(aj.T5Bias(), aj.Sizes(model=32, heads=4, kv_heads=4, head_dim=8), nnx.Rngs(1))
    layer = nnx.MultiHeadAttention(4, 32, attention_fn=encoded, decode=False, rngs=nnx.Rngs(0))
    table = encoded.params.head["table"]
    params = aj.EncodingParams(head={"table": table[...]})
    attend = functools.partial(aj.attend, encoding=aj.T5Bias(), params=params, mask=causal)
    same(layer(x), through(x, kernels(layer), attend))

    # The functional way: split once, then plain JAX over a tree of parameters.
    graph, state = nnx.split(layer)
    gradient = jax.jit(jax.grad(lambda state: jnp.sum(nnx.merge(graph, state)(x) ** 2)))(state)
    of_table = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(gradient) if "table" in str(path)]
    assert len(of_table) == 1
    assert np.abs(of_table[0]).max() > 0


def test_equinox():
    key, _, _, _, x, causal = names()
    layer = eqx.nn.MultiheadAttention(num_heads=4, query_size=32, key=key)
    process_heads = aj.process_heads(aj.RoPE())
    mask = jnp.tril(jnp.ones((16, 16), bool))
    out = jax.vmap(lambda x: layer(x, x, x, mask=mask, process_heads=process_heads))(x)

    split = lambda projection: jnp.einsum("btd,ed->bte", x, projection.weight).reshape(4, 16, 4, 8)
    heads = map(split, (layer.query_proj, layer.key_proj, layer.value_proj))
    attended = aj.attend(*heads, encoding=aj.RoPE(), mask=causal).reshape(4, 16, 32)
    same(out, jnp.einsum("bte,de->btd", attended, layer.output_proj.weight))


def test_the_page_shows_the_code_that_ran():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    source = Path(__file__).read_text(encoding="utf-8")
    imports, *snippets = blocks
    assert set(imports.split("\n")) <= set(source.split("\n"))
    missing = [block for block in snippets if textwrap.indent(block, "    ") not in source]
    assert missing == []
    assert len(blocks) == 14
