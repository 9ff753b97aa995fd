"""A model is a pytree: split it once, then plain JAX over its parameters, one model or a population."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.modules import Decoder
from attnjax.positions import Learned, T5Bias, compose

POPULATION = 3


@pytest.fixture
def members(config, build):
    """Three decoders that differ in their parameters."""
    fields = {"layers": 1, "encoding": compose(Learned(8), T5Bias(8)), "qk_norm": True, "activation": "swiglu"}
    return [build(Decoder, config(**fields), seed=seed) for seed in range(POPULATION)]


@pytest.mark.parametrize("graph", [False, True], ids=["tree", "graph"])
def test_split_and_merge_give_the_same_model(members, call, tokens, graph):
    model = members[0]
    definition, params = nnx.split(model, graph=graph)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    np.testing.assert_array_equal(call(nnx.merge(definition, params), tokens), call(model, tokens))


def test_a_definition_depends_on_the_config_alone(members):
    definitions = [nnx.split(model, graph=False)[0] for model in members]
    assert definitions[0] == definitions[1]
    assert hash(definitions[0]) == hash(definitions[1])


def test_all_state_is_parameters(members):
    _, params, rest = nnx.split(members[0], nnx.Param, ..., graph=False)
    assert not jax.tree.leaves(rest)
    assert len(jax.tree.leaves(params)) == len(jax.tree.leaves(members[0]))


def test_a_population_trains_in_one_program(members, tokens):
    """One step of gradient descent on stacked parameters equals the step of each model alone."""
    definition = nnx.split(members[0], graph=False)[0]
    params = [nnx.split(model, graph=False)[1] for model in members]

    def step(params, tokens):
        def loss(params):
            logits = nnx.merge(definition, params)(tokens[:, :-1])
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    losses, together = jax.jit(jax.vmap(step, in_axes=(0, None)))(stacked, tokens)
    assert losses.shape == (POPULATION,)
    alone = jax.jit(step)
    for i in range(POPULATION):
        loss, expected = alone(params[i], tokens)
        np.testing.assert_allclose(losses[i], loss, rtol=1e-5)
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), mine, expected)


def test_models_are_made_inside_jit(config, count):
    fields = config(layers=1, bias=False, norm_position="post")

    @jax.jit
    @jax.vmap
    def init(key):
        return nnx.split(Decoder(fields, rngs=nnx.Rngs(key)), graph=False)[1]

    params = init(jax.random.split(jax.random.key(0), POPULATION))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == POPULATION * count(Decoder, fields)
    table = params["embedding"]["table"][...]
    assert not np.allclose(table[0], table[1])
