"""One compiled layer in a loop: the same numbers as unrolled layers, from the same parameters and the same seed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax import FIRE, ALiBi, FoX, Learned, RoPE, T5Bias, compose
from attnjax.modules import Decoder, Encoder, EncoderDecoder, Gates, TransformerConfig, generate, replace_constants
from attnjax.modules.layers import separate, stacked

CONFIG = TransformerConfig(
    vocab=11, model=16, layers=2, heads=2, hidden=24, encoding=RoPE(), attention_dropout=0.2, residual_dropout=0.1
)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 9)), jnp.int32)
FAMILIES = {"decoder": Decoder, "encoder": Encoder, "encoder_decoder": EncoderDecoder}


def pair(family=Decoder, **fields):
    """The unrolled and the scanned model of one seed."""
    config = dataclasses.replace(CONFIG, **fields)
    configs = [dataclasses.replace(config, scan_layers=scan) for scan in (False, True)]
    return [jax.jit(lambda config=config: family(config, rngs=nnx.Rngs(3)))() for config in configs]


def loss_and_gradient(model):
    """Of the mean of all logits squared, with dropout."""
    graph, params = nnx.split(model, graph=False)

    def loss(params):
        model = nnx.merge(graph, params)
        inputs = (TOKENS, TOKENS) if isinstance(model, EncoderDecoder) else (TOKENS,)
        return (model(*inputs, key=jax.random.key(1)) ** 2).mean()

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    return value, nnx.to_pure_dict(gradient)


def with_stacked_blocks(tree):
    """A tree of parameters by name in which `blocks`, by number, are one table with a leading axis."""
    if not isinstance(tree, dict):
        return tree
    if "blocks" in tree:
        tree = {**tree, "blocks": stacked([tree["blocks"][i] for i in sorted(tree["blocks"])])}
    return {name: with_stacked_blocks(inner) for name, inner in tree.items()}


def assert_close(one, other, rtol=1e-4, atol=2e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)


@pytest.mark.quick("decoder-True")
@pytest.mark.parametrize(("family", "remat"), [*((family, False) for family in FAMILIES), ("decoder", True)])
def test_loss_and_gradients_are_those_of_unrolled_layers(family, remat):
    (loss, gradient), (scanned_loss, scanned) = map(loss_and_gradient, pair(FAMILIES[family], remat=remat))
    np.testing.assert_allclose(scanned_loss, loss, rtol=1e-5)
    assert_close(with_stacked_blocks(gradient), scanned)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", [compose(T5Bias(), FoX()), compose(Learned(16), FIRE())], ids=["t5", "learned"])
def test_encodings_that_every_layer_learns_for_itself(encoding):
    (loss, gradient), (scanned_loss, scanned) = map(loss_and_gradient, pair(encoding=encoding))
    np.testing.assert_allclose(scanned_loss, loss, rtol=1e-5)
    assert_close(with_stacked_blocks(gradient), scanned)


@pytest.mark.quick("decoder")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_numbers_are_the_same(family):
    options = {"qk_norm": True, "attention_gate": "head", "attention_sink": True, "encoding": T5Bias()}
    one, other = (nnx.to_pure_dict(nnx.split(m, graph=False)[1]) for m in pair(FAMILIES[family], **options))
    assert_close(with_stacked_blocks(one), other, rtol=1e-6, atol=0)


def test_a_layer_can_be_taken_out_of_the_stack():
    unrolled, scanned = pair()
    for mine, theirs in zip(separate(scanned.stack.blocks), unrolled.stack.blocks, strict=True):
        assert_close(
            nnx.to_pure_dict(nnx.split(mine, graph=False)[1]), nnx.to_pure_dict(nnx.split(theirs, graph=False)[1])
        )


@pytest.mark.slow
def test_weights_states_gates_and_positions_of_each_layer(call):
    unrolled, scanned = pair()
    pos = jnp.arange(2 * 2 * 9).reshape(2, 2, 9) % 13
    gate = jnp.asarray(np.random.default_rng(1).uniform(size=(2, 2)), jnp.float32)
    for name in ("__call__", "hidden_states", "weights"):
        assert_close(*(call(getattr(model, name), TOKENS, pos=pos, gate=gate) for model in (unrolled, scanned)))
    with pytest.raises(ValueError, match=r"gate must have one row per layer, 2, got shape \(1, 2\)"):
        scanned(TOKENS, gate=gate[:1])
    with pytest.raises(ValueError, match=r"positions \[L, B, T\] must have one row per layer, 2, got \(1, 2, 9\)"):
        scanned(TOKENS, pos=pos[:1])


@pytest.mark.slow
def test_weights_and_gates_of_an_encoder_decoder(call):
    gates = Gates(*jnp.asarray(np.random.default_rng(1).uniform(size=(3, 2, 2)), jnp.float32))
    one, other = (call(model.weights, TOKENS, TOKENS[:, :4], gates=gates) for model in pair(EncoderDecoder))
    assert_close(one, other)


@pytest.mark.slow
def test_features_of_some_queries(call):
    indices = jnp.array([[8, 1], [0, 3]])
    one, other = (call(model, TOKENS, query_indices=indices) for model in pair(window=4))
    assert other.shape == (2, 2, 11)
    assert_close(one, other)


@pytest.mark.slow
def test_decoding_token_by_token_and_in_chunks(call):
    _, model = pair(encoding=compose(RoPE(), FoX()), kv_heads=1)
    expected, caches, found = call(model, TOKENS), model.cache(2, 9), []
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        logits, caches = model.decode(TOKENS[:, start:stop], caches)
        found.append(logits)
    assert_close(jnp.concatenate(found, 1), expected, atol=1e-5)
    with pytest.raises(ValueError, match="the cache holds 9 of 9 tokens; 1 more do not fit"):
        model.decode(TOKENS[:, :1], caches)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "options"), [(Decoder, {}), (EncoderDecoder, {"source": TOKENS})])
def test_generation(family, options):
    one, other = (generate(model, TOKENS[:, :3], 5, **options) for model in pair(family, window=3))
    np.testing.assert_array_equal(one, other)


def test_caches_of_the_other_kind_are_refused():
    unrolled, scanned = pair()
    with pytest.raises(ValueError, match="decode needs the one of all layers that `cache` makes, got 2"):
        scanned.decode(TOKENS[:, :1], unrolled.cache(2, 9))
    with pytest.raises(ValueError, match="decode needs one cache per layer, 2, got one of all layers"):
        unrolled.decode(TOKENS[:, :1], scanned.cache(2, 9))


@pytest.mark.slow
def test_other_constants_reach_every_layer(call):
    models = pair()
    before = call(models[1], TOKENS)
    for model in models:
        replace_constants(model, {RoPE(): RoPE(theta=50.0).constants(CONFIG.sizes)})
    one, other = (call(model, TOKENS) for model in models)
    assert_close(one, other)
    assert float(jnp.abs(before - other).max()) > 1e-3


def test_one_layer_is_traced_however_many_there_are():
    def equations(layers):
        config = dataclasses.replace(CONFIG, layers=layers, scan_layers=True)
        return str(jax.make_jaxpr(lambda: Decoder(config, rngs=nnx.Rngs(0))(TOKENS))()).count("dot_general")

    assert equations(2) == equations(20)


@pytest.mark.parametrize(
    "fields",
    [
        {"encoding": (RoPE(), ALiBi())},
        {"windows": (2, None)},
        {"encoding": T5Bias(), "share_encoding": True},
    ],
    ids=["encodings", "windows", "shared"],
)
def test_layers_that_differ_are_refused(fields):
    refusal = (
        "TransformerConfig.scan_layers is for layers that are alike: one TransformerConfig.encoding and one window"
    )
    with pytest.raises(ValueError, match=refusal):
        dataclasses.replace(CONFIG, scan_layers=True, **fields)


def test_layers_that_are_alike_are_taken_however_that_is_said(call):
    one, other = (call(model, TOKENS) for model in pair(encoding=(RoPE(),) * 2, windows=(4,) * 2))
    assert_close(one, other)
