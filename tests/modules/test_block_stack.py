"""Layers and stacks of them: norms and activations in NumPy, causality, layers in a loop, remat, populations."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.attention import Mask
from attnjax.modules import Decoder, EncoderDecoder, FeedForward, Memory, TransformerBlock, generate
from attnjax.modules.block import gelu
from attnjax.modules.parameters import with_parameters
from attnjax.positions import FIRE, ALiBi, FoX, Learned, RoPE, T5Bias, compose
from tests.modules.by_hand import TOKENS, attend_by_hand, build, call, config, draw, layer_norm, rms_norm, value

X, CAUSAL = draw(2, 5, 16), Mask(causal=True)
tanh_gelu = lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2,
    "gelu_tanh": tanh_gelu,
    "swiglu": lambda x: x / (1 + np.exp(-x)),
    "geglu": tanh_gelu,
}


def feed_forward_by_hand(layer, x):
    hidden, act = x @ value(layer.w_in) + value(layer.b_in), ACTIVATIONS[layer.activation]
    gated = layer.w_gate is not None
    hidden = act(x @ value(layer.w_gate) + value(layer.b_gate)) * hidden if gated else act(hidden)
    return hidden @ value(layer.w_out) + value(layer.b_out)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_equals_its_formula(activation):
    layer = build(FeedForward, 16, 10, activation=activation)
    np.testing.assert_allclose(call(layer, X), feed_forward_by_hand(layer, X), atol=1e-5)


def test_the_derivative_of_gelu_is_that_of_jax_also_where_its_own_fails(x64):
    """The derivative of `jax.lax.erfc` fails inside `jax.shard_map`."""
    x, theirs = np.linspace(-10, 10, 160), lambda x: jax.nn.gelu(x, approximate=False)
    for order in (jax.grad, lambda f: jax.grad(jax.grad(f))):
        slope = lambda f, order=order: jax.jit(jax.vmap(order(f)))(x)
        np.testing.assert_allclose(slope(gelu), slope(theirs), rtol=1e-12, atol=1e-300)
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    spec, slopes = jax.sharding.PartitionSpec("devices"), jax.vmap(jax.grad(gelu))
    spread = jax.shard_map(slopes, mesh=mesh, in_specs=spec, out_specs=spec)
    np.testing.assert_array_equal(jax.jit(spread)(x), jax.jit(slopes)(x))


@pytest.mark.parametrize(("place", "norm", "formula"), [("pre", "layer", layer_norm), ("post", "rms", rms_norm)])
def test_pre_norm_and_post_norm(place, norm, formula):
    block, memory = build(TransformerBlock, config(norm=norm, norm_position=place), cross=True), draw(2, 3, 16)
    attend = lambda x: attend_by_hand(block.attention, x, np.tri(5, dtype=bool))[0]
    cross = lambda x: np.asarray(call(block.cross, np.float32(x), memory))
    fed = lambda x: feed_forward_by_hand(block.feed_forward, x)
    x = X
    for sublayer, name in ((attend, "attention_norm"), (cross, "cross_norm"), (fed, "feed_forward_norm")):
        norm = getattr(block, name)
        x = x + sublayer(formula(x, norm)) if place == "pre" else formula(x + sublayer(x), norm)
    np.testing.assert_allclose(call(block, X, Memory(memory), mask=CAUSAL), x, atol=2e-5)


def test_parallel_sublayers_read_the_same_input():
    block = build(TransformerBlock, config(parallel=True))
    attended, _ = attend_by_hand(block.attention, layer_norm(X, block.attention_norm), np.tri(5, dtype=bool))
    fed = feed_forward_by_hand(block.feed_forward, layer_norm(X, block.feed_forward_norm))
    np.testing.assert_allclose(call(block, X, mask=CAUSAL), X + attended + fed, atol=1e-5)


def test_norms_keep_a_small_spread_around_a_large_mean():
    block = build(TransformerBlock, config(norm_position="post"))
    for parameter in (block.attention.w_o, block.attention.b_o, block.feed_forward.w_out, block.feed_forward.b_out):
        parameter[...] = jnp.zeros_like(parameter[...])
    x = np.round(X * 64) / 64 + 4096
    expected = layer_norm(layer_norm(x, block.attention_norm), block.feed_forward_norm)
    np.testing.assert_allclose(call(block, x), expected, atol=1e-4)


def test_weights_of_a_layer_are_those_of_its_attentions():
    block, memory = build(TransformerBlock, config(), cross=True), Memory(draw(2, 3, 16))
    normed = layer_norm(X, block.attention_norm)
    out, weights = attend_by_hand(block.attention, normed, np.tri(5, dtype=bool))
    own, cross = call(block.weights, X, memory, mask=CAUSAL)
    np.testing.assert_allclose(own, weights, atol=1e-5)
    halfway = np.float32(layer_norm(X + out, block.cross_norm))
    np.testing.assert_allclose(cross, call(block.cross.weights, halfway, memory.x), atol=1e-5)


# Stacks ------------------------------------------------------------------------------------------------------------------


def test_shared_parameters_of_an_encoding_act_in_every_layer():
    own, shared = (build(Decoder, config(encoding=T5Bias(8), share_encoding=share)) for share in (False, True))
    values = dict(jax.tree.leaves_with_path(shared))
    table = shared.stack.blocks[0].attention.encoding_params()["table"]
    copied = jax.tree.map_with_path(lambda path, _: values.get(path, table), own)
    np.testing.assert_allclose(call(shared, TOKENS), call(copied, TOKENS), atol=1e-6)


def test_weights_and_states_of_every_layer():
    decoder = build(Decoder, config(norm="rms"))
    weights, states = call(decoder.weights, TOKENS), call(decoder.hidden_states, TOKENS)
    assert weights.shape == (2, 2, 4, 8, 8)
    np.testing.assert_allclose(weights.sum(-1), np.ones((2, 2, 4, 8)), atol=1e-6)
    assert np.triu(np.asarray(weights), 1).max() == 0
    assert states.shape == (3, 2, 8, 16)
    np.testing.assert_allclose(states[0], value(decoder.embedding.table)[TOKENS], atol=1e-6)
    np.testing.assert_allclose(states[-1] @ decoder.embedding.table[...].T, call(decoder, TOKENS), atol=1e-5)
    np.testing.assert_allclose(weights[0], call(decoder.stack.blocks[0].weights, states[0], mask=CAUSAL)[0], atol=1e-6)


def test_causality_by_gradients():
    """Position t depends on positions t - 4 .. t, through two layers with windows of 2, and on no other."""
    stack, x = build(Decoder, config(window=2)).stack, draw(2, 8, 16)
    run = lambda x: stack(x, mask=CAUSAL, pos=np.arange(8)).sum(-1)[0]
    gradient = np.abs(np.asarray(jax.jit(jax.jacobian(run))(x)))
    t, s = np.indices((8, 8))
    np.testing.assert_array_equal(gradient[:, 0].sum(-1) > 0, (s <= t) & (s >= t - 4))
    assert gradient[:, 1].max() == 0


# Layers in a loop, and layers computed again ---------------------------------------------------------------------------

LOOP = config(heads=2, encoding=RoPE(), attention_dropout=0.2, residual_dropout=0.1)


def pure(model):
    """Returns the parameters of a model, or gradients in its place, by name."""
    return nnx.to_pure_dict(nnx.split(model, graph=False)[1])


def made(family=Decoder, **fields):
    """Returns a model with its initial parameters."""
    return jax.jit(lambda: family(dataclasses.replace(LOOP, **fields), rngs=nnx.Rngs(3)))()


def loss_and_gradient(model):
    """Returns the mean of all logits squared, with dropout, and its gradient by the names of parameters."""
    inputs = (TOKENS, TOKENS) if isinstance(model, EncoderDecoder) else (TOKENS,)
    loss = lambda model: (model(*inputs, key=jax.random.key(1)) ** 2).mean()
    value, gradient = jax.jit(jax.value_and_grad(loss))(model)
    return value, pure(gradient)


def with_stacked_blocks(tree):
    """Returns a tree of parameters by name in which `blocks`, by number, are one table with a leading axis."""
    if not isinstance(tree, dict):
        return tree
    if "blocks" in tree:
        blocks = [tree["blocks"][i] for i in sorted(tree["blocks"])]
        tree = {**tree, "blocks": jax.tree.map(lambda *leaves: np.stack(leaves), *blocks)}
    return {name: with_stacked_blocks(inner) for name, inner in tree.items()}


def assert_close(one, other, rtol=1e-4, atol=2e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), one, other)


@pytest.fixture(scope="module")
def pair():
    """Returns a decoder of separate layers and the same with layers in a loop, which are computed again."""
    fields = dataclasses.replace(LOOP, attention_dropout=0.0)
    plain = build(Decoder, fields)
    looped = lambda: Decoder(dataclasses.replace(fields, scan_layers=True, remat=True), rngs=nnx.Rngs(0))
    return plain, with_parameters(looped, with_stacked_blocks(pure(plain)))


def test_layers_in_a_loop_have_the_loss_and_the_gradients_of_separate_layers(pair):
    (loss, gradient), (other, found) = map(loss_and_gradient, pair)
    np.testing.assert_allclose(other, loss, rtol=1e-5)
    assert_close(with_stacked_blocks(gradient), found)


def test_gates_and_positions_of_each_layer(pair):
    pos = np.arange(2 * 2 * 8).reshape(2, 2, 8) % 13
    gate = np.float32([[1, 1], [1, 0]])
    plain, looped = (call(model, TOKENS, pos=pos, gate=gate) for model in pair)
    assert_close(plain, looped)
    removed = nnx.clone(pair[0])
    w = removed.stack.blocks[1].attention.w_o
    w[...] = jnp.asarray(np.asarray(w[...]) * (np.arange(2) != 1)[:, None, None], "float32")
    assert_close(call(removed, TOKENS, pos=pos), plain, atol=1e-5)
    assert np.abs(call(removed, TOKENS, pos=pos[::-1]) - plain).max() > 1e-3
    for model in pair:
        with pytest.raises(ValueError, match=r"gate .*per layer, 2, got shape \(1, 2\)"):
            model(TOKENS, gate=gate[:1])
        with pytest.raises(ValueError, match=r"\[L, B, T\] .*per layer, 2, got \(1, 2, 8\)"):
            model(TOKENS, pos=pos[:1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "fields", "others"),
    [
        pytest.param(Decoder, {}, [{"remat": True}, {"scan_layers": True}], id="decoder with all dropout"),
        pytest.param(Decoder, {"encoding": compose(RoPE(), FoX())}, [{"remat": True, "scan_layers": True}], id="fox"),
        pytest.param(EncoderDecoder, {}, [{"remat": True}, {"scan_layers": True}], id="encoder decoder"),
        pytest.param(Decoder, {"encoding": (ALiBi(), RoPE())}, [{"remat": True}], id="layers that differ"),
        pytest.param(Decoder, {"encoding": compose(Learned(16), FIRE())}, [{"scan_layers": True}], id="learned"),
    ],
)
def test_remat_and_scan_layers_are_the_plain_layers(family, fields, others):
    """The same initial parameters, the same loss with dropout, and the same gradients."""
    plain = made(family, **fields)
    loss, gradient = loss_and_gradient(plain)
    initial = pure(plain)
    for other in others:
        shaped = with_stacked_blocks if "scan_layers" in other else lambda tree: tree
        model = made(family, **fields, **other)
        assert_close(shaped(initial), pure(model), rtol=1e-6, atol=0)
        other_loss, found = loss_and_gradient(model)
        np.testing.assert_allclose(other_loss, loss, rtol=1e-5)
        assert_close(shaped(gradient), found)


@pytest.mark.slow
def test_methods_of_layers_in_a_loop(pair):
    """Weights, states, features of some queries, decoding in chunks, generation, and layers taken out of the loop."""
    for name in ("hidden_states", "weights"):
        assert_close(*(call(getattr(model, name), TOKENS) for model in pair))
    assert_close(*(call(model, TOKENS, query_indices=np.array([[7, 1], [0, 3]])) for model in pair))
    caches, found = pair[1].cache(2, 8), []
    for start, stop in ((0, 4), (4, 5), (5, 8)):
        logits, caches = pair[1].decode(TOKENS[:, start:stop], caches)
        found.append(logits)
    assert_close(np.concatenate(found, 1), call(pair[0], TOKENS), atol=1e-5)
    with pytest.raises(ValueError, match="8 of 8 tokens; 1 more"):
        pair[1].decode(TOKENS[:, :1], caches)
    np.testing.assert_array_equal(*(generate(model, TOKENS[:, :3], 5) for model in pair))
    for mine, theirs in zip(pair[1].stack.layers, pair[0].stack.layers, strict=True):
        assert_close(pure(mine), pure(theirs))


def test_one_layer_is_traced_however_many_there_are():
    def products(layers):
        model = lambda: Decoder(dataclasses.replace(LOOP, layers=layers, scan_layers=True), rngs=nnx.Rngs(0))
        return str(jax.make_jaxpr(lambda: model()(TOKENS))()).count("dot_general")

    assert products(2) == products(20)


@pytest.mark.slow
def test_remat_keeps_one_array_of_features_for_each_layer():
    """Counted in what `jax.vjp` passes to the backward pass beside the parameters; XLA:CPU may keep more."""
    deep = config(layers=12, model=32, hidden=128, encoding=RoPE(), implementation="dense")
    tokens, features = np.zeros((8, 64), np.int32), 8 * 64 * 32

    def kept(config):
        graph, params = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))
        run = lambda params: nnx.merge(graph, params)(tokens, key=jax.random.key(1))
        _, backward = jax.eval_shape(lambda: jax.vjp(run, params))
        return sum(leaf.size for leaf in jax.tree.leaves(backward)) - sum(leaf.size for leaf in jax.tree.leaves(params))

    assert kept(deep) > 12 * 10 * features
    assert kept(dataclasses.replace(deep, remat=True)) < 12 * 3 * features


# Models as trees -------------------------------------------------------------------------------------------------------


decoder = lambda **fields: build(Decoder, config(**fields))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: build(FeedForward, 6, 10, activation="tanh"), "activation .*'relu'.*got 'tanh'"),
        (lambda: build(FeedForward, 6, 10)(np.ones((2, 3, 5))), r"\[B, T, 6\], got \(2, 3, 5\)"),
        (lambda: build(TransformerBlock, config(), 2), r"layer .*0\.\.1, got 2"),
        (lambda: build(TransformerBlock, config(), cross=True)(X), "with cross-attention .* no memory"),
        (lambda: build(TransformerBlock, config())(X, Memory(X)), "without cross-attention .* a memory"),
        (lambda: build(EncoderDecoder, config(parallel=True)), "cross-attention .*parallel=True"),
        (
            lambda: build(TransformerBlock, config())(X, query_indices=np.zeros((2, 1), int), key=jax.random.key(0)),
            "query_indices .* key",
        ),
        (lambda: decoder().decode(TOKENS, decoder().cache(2, 8)[:1]), "layer, 2, got 1"),
    ],
)
def test_mistakes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(wrong)
