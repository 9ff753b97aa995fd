"""Sinks and gates as options of attention: what they compute, in a call and in decoding, and where a config puts them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax import FoX, Mask, RoPE, attend, compose
from attnjax.modules import Decoder, MultiHeadAttention, TransformerConfig
from tests.modules.by_hand import attention_arguments

B, T, D, N, K = 2, 7, 16, 4, 2
X = jax.random.normal(jax.random.key(0), (B, T, D))
CAUSAL = Mask(causal=True)


def made(**options):
    """A module whose sinks are not zero, as a sink that does nothing would also be."""
    module = MultiHeadAttention(D, N, **attention_arguments({"kv_heads": K, **options}), rngs=nnx.Rngs(1))
    if module.sink is not None:
        module.sink[...] = jnp.array([0.5, -1.0, 2.0, 0.0])
    return module


def test_a_sink_is_a_key_without_value():
    module = made(attention_sink=True, encoding=RoPE())
    q, (k, v) = module._queries(X), module.keys_values(X)
    heads = attend(q, k, v, encoding=RoPE(), mask=CAUSAL, sink=module.sink[...])
    expected = heads.reshape(B, T, -1) @ module.w_o[...].reshape(-1, D) + module.b_o[...][None, None]
    np.testing.assert_allclose(module(X, mask=CAUSAL), expected, rtol=1e-5, atol=1e-6)
    rows = module.weights(X, mask=CAUSAL).sum(-1)
    assert float(rows.max()) < 1


@pytest.mark.parametrize("gated", ["head", "channel"])
def test_a_gate_of_zero_logits_halves_every_head(gated):
    module = made(attention_gate=gated, bias=False)
    assert module.w_g[...].shape == ((D, N) if gated == "head" else (D, N, D // N))
    module.w_g[...] = jnp.zeros_like(module.w_g[...])
    gated_out = module(X, mask=CAUSAL)
    module.w_g = None
    np.testing.assert_allclose(gated_out, 0.5 * module(X, mask=CAUSAL), rtol=1e-5, atol=1e-7)


@pytest.mark.quick("fox-head", "both-channel")
@pytest.mark.parametrize("gated", [None, "head", "channel"])
@pytest.mark.parametrize("encoding", [RoPE(), FoX(), compose(RoPE(), FoX())], ids=["rope", "fox", "both"])
def test_decoding_equals_the_whole_sequence(encoding, gated):
    module = made(attention_sink=True, attention_gate=gated, encoding=encoding)
    expected = module(X, mask=CAUSAL)
    cache, found = module.cache(B, T), []
    for start, stop in ((0, 3), (3, 4), (4, T)):
        out, cache = module.decode(X[:, start:stop], cache)
        found.append(out)
    np.testing.assert_allclose(jnp.concatenate(found, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.quick("both")
@pytest.mark.parametrize("encoding", [RoPE(), FoX(), compose(RoPE(), FoX())], ids=["rope", "fox", "both"])
def test_a_subset_of_queries_is_that_of_all(encoding):
    module, indices = made(encoding=encoding, attention_gate="head"), jnp.array([[6, 1], [0, 3]])
    whole = module(X, mask=CAUSAL)
    some = module(X, mask=CAUSAL, query_indices=indices)
    np.testing.assert_allclose(some, jnp.take_along_axis(whole, indices[:, :, None], 1), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_config_gives_sinks_and_gates_to_every_layer_and_both_are_learned():
    config = TransformerConfig(
        vocab=11, model=D, layers=2, heads=N, hidden=32, encoding=FoX(), attention_sink=True, attention_gate="head"
    )
    model = Decoder(config, rngs=nnx.Rngs(0))
    tokens = jnp.arange(2 * 6).reshape(2, 6) % 11
    graph, state = nnx.split(model, graph=False)
    loss = lambda state: (nnx.merge(graph, state)(tokens) ** 2).mean()
    gradient = nnx.to_pure_dict(jax.grad(loss)(state))
    for layer in range(2):
        attention = gradient["stack"]["blocks"][layer]["attention"]
        for name in ("sink", "w_g"):
            assert float(jnp.abs(attention[name]).max()) > 0
        assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(attention["position"]))


def test_a_memory_has_no_positions_computed_from_content():
    with pytest.raises(ValueError, match="computes positions from content, which serves self-attention alone"):
        made(encoding=FoX())(X, X, mask=CAUSAL)
