"""train.dtype_policy="bfloat16": what is in bfloat16, what stays in float32, and how near the loss is.

bfloat16 has 8 significant bits, so a rounding changes a number by at most 2^-8 of itself. A logit of order 1 comes out of a
dozen roundings in a row (embedding, two sublayers of projections and sums, the last norm), which are independent: 12^0.5 * 2^-8
< 2^-6. A loss is a mean over tokens of differences of logits: its bound is 2^-7 of itself, that of its gradient's norm 2^-5.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax
import pytest

from attnjax.train.data import batch
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from tests.tasks import cases
from tests.widened import equations


def with_policy(run, policy):
    """The run with relu, whose derivative needs no function of its own."""
    model = dataclasses.replace(run.model, activation="relu")
    return dataclasses.replace(run, model=model, train=dataclasses.replace(run.train, dtype_policy=policy))


def types(jaxpr, *names):
    """The types of the operands of these primitives, each with how often it comes."""
    found = {}
    for equation in equations(jaxpr):
        if equation.primitive.name in names:
            kinds = tuple(str(x.aval.dtype) for x in equation.invars)
            found[kinds] = found.get(kinds, 0) + 1
    return found


@pytest.fixture(scope="module")
def trainers(tiny):
    return {policy: Trainer(with_policy(tiny, policy), make_task(tiny)) for policy in ("float32", "bfloat16")}


@pytest.fixture(scope="module")
def gradients(trainers, tiny):
    """Loss and gradient of each policy, at the same parameters on the same batch."""
    params = cases.compiled(trainers["float32"].model.init)(jax.random.key(0))
    made = cases.compiled(lambda: batch(tiny, trainers["float32"].task, jnp.uint32(0), jnp.int32(0)))()
    loss = lambda trainer: cases.compiled(jax.value_and_grad(lambda params: trainer.loss(params, made)[0]))
    return {policy: loss(trainer)(params) for policy, trainer in trainers.items()}


@pytest.fixture(scope="module")
def traced(trainers, tiny):
    """Of bfloat16: shapes of the state before and after a step, and the step as equations."""
    return trace(trainers["bfloat16"], tiny)


def trace(trainer, run):
    member = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], members([run])))
    state = jax.eval_shape(trainer._start, member)
    jaxpr, (after, _) = jax.make_jaxpr(trainer.step, return_shape=True)(state, member)
    return state, after, jaxpr.jaxpr


@pytest.mark.slow
def test_matrices_are_multiplied_in_bfloat16(trainers, traced, tiny):
    half, full = (types(jaxpr, "dot_general") for jaxpr in (traced[2], trace(trainers["float32"], tiny)[2]))
    # Queries, keys, values, output, two of the feed-forward layer, scores and weighted values of a layer, and the logits of
    # the vocabulary: once forwards, twice backwards.
    assert half == {("bfloat16", "bfloat16"): 8 * 3 * tiny.model.layers + 3}
    assert set(full) == {("float32", "float32")}
    assert sum(half.values()) == sum(full.values())


def test_softmax_norms_and_loss_are_float32(traced):
    for name in ("exp", "log", "rsqrt"):
        assert set(types(traced[2], name)) == {("float32",)}, name


def test_parameters_and_optimizer_stay_float32(traced):
    start, state, _ = traced
    for tree in (start, state):
        floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        assert len(floats) > 3 * 10, "parameters, and two moments of each"
        assert {str(leaf.dtype) for leaf in floats} == {"float32"}


def test_loss_and_gradient_are_those_of_float32_within_its_bits(gradients):
    (half, half_gradient), (full, full_gradient) = (gradients[policy] for policy in ("bfloat16", "float32"))
    assert half != full
    assert half == pytest.approx(full, rel=2**-7)
    leaves = jax.tree.leaves(half_gradient)
    assert {str(leaf.dtype) for leaf in leaves} == {"float32"}
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)
    difference = jax.tree.map(jnp.subtract, half_gradient, full_gradient)
    assert float(optax.tree.norm(difference)) < 2**-5 * float(optax.tree.norm(full_gradient))
