"""Our encodings inside modules of Flax, each of them, with learned parameters. `attention/test_options.py` has the rest."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from tests.cases import FAST, slow_except

B, T, N, H = 4, 6, 4, 4
D = N * H
SIZES = aj.Sizes(model=D, heads=N, kv_heads=N, head_dim=H)
CAUSAL = aj.Mask(causal=True)
ENCODINGS = {
    **{name: aj.encoding(name) for name in ("nope", "rope", "xpos", "alibi", "t5", "transformer_xl", "dape")},
    "cope": aj.CoPE(max_position=3),
    "dynamic_ntk": aj.RoPE(scaling=aj.DynamicNTK(4.0, original_length=3)),
    "rope_t5": aj.compose(aj.RoPE(), aj.T5Bias(buckets=4, max_distance=5)),
}
X = np.random.default_rng(2).normal(size=(B, T, D)).astype(np.float32)

jit = functools.partial(jax.jit, compiler_options=FAST)


def learned(encoding):
    """Parameters away from their initial value, which is often zero."""
    draw = np.random.default_rng(1)
    move = lambda x: np.asarray(x) + 0.5 * draw.normal(size=x.shape).astype(np.float32)
    return jax.tree.map(move, encoding.init(jax.random.key(0), SIZES)) if aj.learns(encoding) else None


def joined(x, weights, **options):
    """`attend` between the projections of a layer of Flax, [D, N, H] with biases [N, H]."""
    project = lambda name: jnp.einsum("btd,dnh->btnh", x, weights[name]["kernel"]) + weights[name]["bias"][None, None]
    out = aj.attend(*map(project, ("query", "key", "value")), **options)
    return jnp.einsum("btnh,nhd->btd", out, weights["out"]["kernel"]) + weights["out"]["bias"][None, None]


def nnx_layer(fn, **options):
    """An NNX layer, and its weights by name."""
    bias = nnx.initializers.normal()
    layer = nnx.MultiHeadAttention(N, D, attention_fn=fn, bias_init=bias, decode=False, rngs=nnx.Rngs(0), **options)
    of = {name: getattr(layer, name) for name in ("query", "key", "value", "out")}
    return layer, {name: {"kernel": linear.kernel[...], "bias": linear.bias[...]} for name, linear in of.items()}


@pytest.mark.parametrize("name", slow_except(ENCODINGS, "rope_t5"))
def test_layers_of_both_flaxes_equal_attend(name):
    encoding = ENCODINGS[name]
    params, valid = learned(encoding), np.arange(T) < np.array([[T], [T - 1], [2], [T]])
    fn = aj.attention_fn(encoding, params, mask=CAUSAL)
    linen = nn.MultiHeadDotProductAttention(N, attention_fn=fn, bias_init=nn.initializers.normal())
    in_nnx, nnx_weights = nnx_layer(fn)

    def both(x):
        weights = linen.init(jax.random.key(0), x, deterministic=True)["params"]
        mask = nn.make_attention_mask(np.ones((B, T), bool), valid)
        allowed = aj.Mask(causal=True, allowed=np.broadcast_to(valid[:, None], (B, T, T)))
        expected = [joined(x, w, encoding=encoding, params=params, mask=allowed) for w in (weights, nnx_weights)]
        return (linen.apply({"params": weights}, x, mask=mask), in_nnx(x, mask=mask)), expected

    for got, expected in zip(*jit(both)(X), strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-6)


def test_learned_parameters_inside_a_linen_module_get_a_gradient():
    encoding = aj.T5Bias(buckets=4, max_distance=5)

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            params = self.param("encoding", encoding.init, SIZES)
            return nn.MultiHeadDotProductAttention(N, attention_fn=aj.attention_fn(encoding, params))(x)

    layer = Layer()
    params = jit(layer.init)(jax.random.key(0), X)
    gradient = jit(jax.grad(lambda params: jnp.sum(layer.apply(params, X) ** 2)))(params)
    assert np.abs(gradient["params"]["encoding"]["table"]).max() > 1e-4


@pytest.mark.slow
def test_dropout_and_grouped_keys_of_nnx():
    pos, key = np.arange(T) * 3, jax.random.key(7)
    fn = aj.attention_fn(aj.RoPE(), mask=CAUSAL, q_pos=pos, k_pos=pos)
    layer, weights = nnx_layer(fn, num_kv_heads=2, dropout_rate=0.5)

    @jit
    def both(x):
        options = {"encoding": aj.RoPE(), "mask": CAUSAL, "q_pos": pos, "k_pos": pos}
        drawn = nnx.Rngs(dropout=key).dropout()
        expected = joined(x, weights, dropout=aj.Dropout(drawn, 0.5), **options)
        return layer(x, rngs=nnx.Rngs(dropout=key), deterministic=False), expected

    np.testing.assert_allclose(*both(X), atol=2e-6)


@pytest.mark.slow
def test_decoding_inside_flax_where_position_does_not_matter():
    layer, weights = nnx_layer(aj.attention_fn(aj.NoPE()))
    layer.init_cache(X.shape)
    out = jnp.concatenate([layer(X[:, t : t + 1], decode=True) for t in range(3)], axis=1)
    np.testing.assert_allclose(out, joined(X[:, :3], weights, mask=CAUSAL), atol=2e-6)
