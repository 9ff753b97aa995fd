"""Runs whose encodings differ in numbers, or may be absent, have one program, in which each has the model that it has alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.config import EncodingConfig, parse
from attnjax.config.kinds import Options
from attnjax.modules.stack import Stack
from attnjax.sweep import population_key
from attnjax.train.data import batch
from attnjax.train.loop import make_task
from attnjax.train.model import build, encoding_of, numbers_of
from attnjax.train.step import members
from tests.cases import slow_except
from tests.train.conftest import SETTINGS

NUMBERS = {
    "rope": [
        {},
        {"keep": 0.5},
        {"scaling": {"name": "position_interpolation", "factor": 3.0}},
        {"theta": 500.0, "scaling": {"name": "yarn", "factor": 2.0, "original_length": 6}},
    ],
    "sinusoidal": [{}, {"theta": 50.0}],
    "xpos": [{}, {"theta": 50.0}],
    "pope": [{}, {"theta": 50.0}],
    "alibi": [{}, {"slopes": [0.7, 0.1]}],
}
CODE = {
    "rope": [
        {},
        {"layout": "interleaved"},
        {"fraction": 0.5},
        {"scaling": {"name": "dynamic_ntk", "factor": 2.0, "original_length": 6}},
        {"theta": 20.0, "scaling": {"name": "dynamic_ntk", "factor": 2.0, "original_length": 6}},
    ],
    "sinusoidal": [{}, {"order": "concatenated"}],
    "xpos": [{}, {"scale_base": 100.0}],
    "alibi": [{}, {"symmetric": True}],
    "t5": [{}, {"buckets": 8}],
}


def run_with(name, options, **fields):
    encoding = {"name": name, "options": options}
    return parse({**SETTINGS, **fields, "model": {**SETTINGS["model"], "encoding": encoding}})


TOGETHER = {
    "sinusoidal": [("sinusoidal", one) for one in NUMBERS["sinusoidal"]],
    "alibi": [("alibi", one) for one in NUMBERS["alibi"]],
    "classes": [("sinusoidal", {}), ("rope", {}), ("nope", {}), ("alibi", {})],
}


@pytest.mark.parametrize("name", slow_except(TOGETHER, "classes"))
def test_a_model_with_numbers_is_the_model_of_each_run(name):
    """Wherever an encoding acts: on the input of the model, or in its attention."""
    runs = [run_with(*one) for one in TOGETHER[name]]
    task = make_task(runs[0])
    together, alone = build(runs[0], task, encoding_of(runs)), [build(run, task) for run in runs]

    @jax.jit
    def all_of_them():
        params = together.init(jax.random.key(0))
        examples = batch(runs[0], task, jnp.uint32(0), jnp.int32(0))
        found = jax.vmap(lambda numbers: together.apply(params, examples, None, numbers))(numbers_of(runs))
        return found, [model.apply(params, examples) for model in alone]

    found, expected = all_of_them()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert all(np.abs(found[0] - other).max() > 1e-3 for other in found[1:])


def test_the_plan_knows_which_encodings_are_one_program():
    """`sweep` never imports JAX, so it has a table of its own."""
    for name, options in NUMBERS.items():
        runs = [run_with(name, one) for one in options]
        assert len({population_key(run) for run in runs}) == 1, name
        assert {leaf.shape[0] for leaf in jax.tree.leaves(numbers_of(runs))} == {len(runs)}, name
    for name, options in CODE.items():
        runs = [run_with(name, one) for one in options]
        assert len({population_key(run) for run in runs}) == len(runs), name
        for other in runs[1:]:
            with pytest.raises(ValueError, match="share one program"):
                numbers_of([runs[0], other])


def test_encodings_of_several_classes_are_planned_together_in_short_runs_alone():
    names = ("nope", "sinusoidal", "rope", "alibi", "t5", "kerple")
    keys = lambda **fields: [population_key(run_with(name, {}, **fields)) for name in names]
    assert len(set(keys()[:4])) == 1
    assert len(set(keys())) == 3
    assert len(set(keys(train={**SETTINGS["train"], "steps": 1_000_000}))) == len(names)


def test_equal_encodings_and_those_of_single_layers_are_compiled_in(tiny):
    runs = [run_with("rope", {"theta": 20.0}, seed=i) for i in range(3)]
    assert not jax.tree.leaves(members(runs).encoding)

    def by_layer(theta):
        one = EncodingConfig("rope", Options({"theta": theta}))
        return dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, layers=2, encoding=(one, one)))

    assert population_key(by_layer(10.0)) != population_key(by_layer(20.0))
    with pytest.raises(ValueError, match="layers have encodings of their own"):
        numbers_of([by_layer(10.0), by_layer(20.0)])


def test_the_bias_of_an_encoder_is_bidirectional():
    """Else all later keys have the bucket of the token itself, so that an encoder could not tell them apart."""
    for form, expected in (("encoder", [True]), ("encoder_decoder", [False, True]), ("decoder", [False])):
        odd = {"name": "t5", "options": {"buckets": 8 if True in expected else 7}}  # seven are two halves of nothing
        run = parse({"task": {"name": "reverse_string", "form": form}, "model": {**SETTINGS["model"], "encoding": odd}})
        model = build(run, make_task(run))
        module = jax.eval_shape(lambda model=model: model.module(model.init(jax.random.key(0))))
        stacks = [node for _, node in nnx.iter_graph(module) if isinstance(node, Stack)]
        assert sorted(stack.config.encoding.bidirectional for stack in stacks) == expected
