"""Mixed precision: bfloat16 products, float32 sums, and results near those of float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.config import parse
from attnjax.config.mesh import parse_mesh
from attnjax.train.data import batch
from attnjax.train.loop import make_task
from attnjax.train.mesh import make_mesh
from attnjax.train.step import Trainer, abstract_member
from tests.cases import slow_except
from tests.tasks.cases import compiled
from tests.widened import equations, products, widened_products

SUMS = ("reduce_sum", "cumsum", "reduce_window_sum", "psum", "psum_invariant", "reduce_scatter")
WIDE = {"attention_gate": "head", "attention_sink": True, "qk_norm": True, "norm": "rms", "activation": "swiglu"}
STACKED = {"attention_gate": "channel", "scan_layers": True, "remat": True, "layers": 2, "parallel": True}
STEPS = {
    "decoder": {"model": {"encoding": "rope"}},
    "encoder": {"model": {"encoding": "nope"}, "task": {"form": "encoder"}},
    "encoder-decoder": {"model": {"encoding": "t5"}, "task": {"form": "encoder_decoder"}},
    "head gates, sinks, untied": {"model": WIDE | {"tie_embeddings": False, "output_bias": True, "encoding": "alibi"}},
    "channel gates, scanned layers": {"model": STACKED | {"encoding": "alibi"}},
}
"""A step of each family of models."""


def run_of(changes, policy="bfloat16", batch=8):
    """A run with relu, whose derivative needs no function of its own."""
    model = {"layers": 1, "model": 16, "heads": 2, "hidden": 32, "activation": "relu"} | changes["model"]
    task = {"name": "reverse_string", "length_min": 1, "length_max": 6} | changes.get("task", {})
    train = {"steps": 4, "batch": batch, "dtype_policy": policy}
    return parse({"name": "bits", "task": task, "model": model, "train": train, "evaluate": {"batch": 8}})


def floats(tree):
    return [str(leaf.dtype) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


@pytest.mark.parametrize("name", slow_except(STEPS, "decoder"))
def test_products_are_of_sixteen_bits_and_all_else_is_float32(name):
    run = run_of(STEPS[name])
    trainer = Trainer(run, make_task(run))
    state, member = trainer.shapes(), abstract_member(run)
    jaxpr, (after, _) = jax.make_jaxpr(trainer.step, return_shape=True)(state, member, *trainer.task.arrays)
    assert widened_products(jaxpr) == []
    counts = products(jaxpr)
    assert set(counts) == {("bfloat16", "bfloat16")}
    assert counts["bfloat16", "bfloat16"] >= 3 * 9
    inside = list(equations(jaxpr.jaxpr))
    sums = [one for one in inside if one.primitive.name in SUMS]
    assert len(sums) >= 5
    # A sum over an axis of size 1, the transpose of a new axis, rounds nothing.
    rounds = lambda one: one.outvars[0].aval.size < one.invars[0].aval.size
    assert [str(one) for one in sums if one.invars[0].aval.dtype == jnp.bfloat16 and rounds(one)] == []
    # Softmax, norms and the loss; parameters and two moments of each, before and after.
    for primitive in ("exp", "log", "rsqrt"):
        assert {str(one.invars[0].aval.dtype) for one in inside if one.primitive.name == primitive} == {"float32"}
    assert set(floats(state)) == set(floats(after)) == {"float32"}
    assert len(floats(state)) == 3 * len(floats(state.params))


def gradients(run, params=None):
    """Loss, its gradient as one vector, and the parameters, on the first batch."""
    trainer = Trainer(run, make_task(run))
    params = compiled(trainer.model.init)(jax.random.key(0)) if params is None else params
    made = compiled(lambda: batch(run, trainer.task, jnp.uint32(0), jnp.int32(0)))()
    (loss, _), found = compiled(trainer.gradient)(params, made)
    return float(loss), np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)]), params


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alibi", "sinusoidal", "fox", "repo", "path"])
def test_loss_and_gradient_are_near_those_of_float32(name):
    """A dozen independent roundings in a row of at most 2^-8 each; gradients of two layers were 2^-6 away, losses 2^-9."""
    full, expected, params = gradients(run_of({"model": {"encoding": name}}, "float32"))
    half, found, _ = gradients(run_of({"model": {"encoding": name}}), params)
    assert 0 < abs(half - full) < 2**-7 * full
    assert np.linalg.norm(found - expected) < 2**-5 * np.linalg.norm(expected)
    assert found @ expected > (1 - 2**-10) * np.linalg.norm(found) * np.linalg.norm(expected)


@pytest.mark.slow
def test_gradients_are_summed_over_devices_in_float32():
    """Where a product casts parameters to bfloat16, the sum over devices would be one of bfloat16 numbers."""
    run = run_of(STEPS["decoder"])
    trainer = Trainer(run, make_task(run), make_mesh(parse_mesh("data=2")))
    state, members, corpus, steps = trainer.arguments(1)
    jaxpr = jax.make_jaxpr(trainer.program)(state, members, corpus, steps)
    summed = [x.aval for one in equations(jaxpr.jaxpr) if "psum" in one.primitive.name for x in one.invars]
    assert {str(x.dtype) for x in summed} == {"float32"}
    # Every parameter once, the loss and the accuracy; not the copies that several products made of one.
    assert sum(x.size for x in summed) == sum(leaf.size for leaf in jax.tree.leaves(state.params)) + 2
