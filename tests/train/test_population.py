"""Runs whose encodings differ in numbers alone train and are tested in one program, each as it would by itself."""

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
from attnjax.train import train
from attnjax.train.data import batch
from attnjax.train.loop import make_task
from attnjax.train.model import build, numbers_of
from attnjax.train.step import members
from tests.cases import slow_except
from tests.train.conftest import SETTINGS, Recorder

NUMBERS = {
    "rope": [
        {},
        {"theta": 20.0},
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
    return parse({**SETTINGS, **fields, "model": {**SETTINGS["model"], "encoding": {"name": name, "options": options}}})


def trained(runs, root):
    context, folders = Recorder(), [root / str(i) for i in range(len(runs))]
    for folder in folders:
        folder.mkdir(parents=True)
    train(runs, folders, context)
    return context


@pytest.mark.slow
@pytest.mark.parametrize(
    "encodings",
    [
        [("rope", NUMBERS["rope"][1]), ("rope", NUMBERS["rope"][-1])],
        [("sinusoidal", {}), ("rope", {}), ("nope", {}), ("alibi", {})],
    ],
    ids=["numbers", "classes"],
)
def test_a_population_of_encodings_trains_as_each_alone(tmp_path, encodings):
    """With equal seeds, so that a number of the other run would be seen."""
    runs = [run_with(*one) for one in encodings]
    assert len({population_key(run) for run in runs}) == 1
    together = trained(runs, tmp_path / "together")
    assert len({together.logs[str(i)][-1]["loss"] for i in range(len(runs))}) == len(runs)
    values = [[one["value"] for one in together.found[str(i)] if one["metric"] == "loss"] for i in range(len(runs))]
    assert len(values[0]) == 4
    assert all(len(set(one)) == len(runs) for one in zip(*values, strict=True))
    numbers = lambda records: [one[key] for one in records for key in ("loss", "value") if key in one]
    for i, run in enumerate(runs):
        alone = trained([run], tmp_path / f"alone{i}")
        for mine, theirs in ((together.logs[str(i)], alone.logs["0"]), (together.found[str(i)], alone.found["0"])):
            assert [sorted(one) for one in mine] == [sorted(one) for one in theirs]
            np.testing.assert_allclose(numbers(mine), numbers(theirs), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", slow_except(["sinusoidal", "alibi"], "sinusoidal"))
def test_a_model_with_numbers_is_the_model_of_each_run(name):
    """Wherever an encoding acts: on the input of the model, or in its attention."""
    runs = [run_with(name, one) for one in NUMBERS[name]]
    models = [build(run, make_task(run)) for run in runs]
    params = models[0].init(jax.random.key(0))
    examples = batch(runs[0], make_task(runs[0]), jnp.uint32(0), jnp.int32(0))
    given = jax.jit(jax.vmap(lambda numbers: models[0].apply(params, examples, None, numbers)))(numbers_of(runs))
    for i, model in enumerate(models):
        np.testing.assert_allclose(given[i], jax.jit(model.apply)(params, examples), atol=1e-5)
    assert np.abs(given[0] - given[1]).max() > 1e-3


@pytest.mark.parametrize("name", NUMBERS)
def test_the_plan_knows_which_encodings_are_one_program(name):
    """`sweep` never imports JAX, so it has a table of its own."""
    runs = [run_with(name, one) for one in NUMBERS[name]]
    assert len({population_key(run) for run in runs}) == 1
    numbers = numbers_of(runs)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(numbers)} == {len(runs)}


@pytest.mark.parametrize("name", CODE)
def test_the_plan_knows_which_are_not(name):
    runs = [run_with(name, one) for one in CODE[name]]
    assert len({population_key(run) for run in runs}) == len(runs)
    for other in runs[1:]:
        with pytest.raises(ValueError, match="a population needs encodings that share one program"):
            numbers_of([runs[0], other])


def test_encodings_of_several_classes_are_planned_together_in_short_runs_alone():
    names = ("nope", "sinusoidal", "rope", "alibi", "t5", "kerple")
    keys = lambda **fields: [population_key(run_with(name, {}, **fields)) for name in names]
    assert len(set(keys()[:4])) == 1
    assert len(set(keys())) == 3
    assert len(set(keys(train={**SETTINGS["train"], "steps": 1_000_000}))) == len(names)


def test_equal_encodings_are_compiled_in():
    runs = [run_with("rope", {"theta": 20.0}, seed=i) for i in range(3)]
    assert not jax.tree.leaves(members(runs).encoding)


def test_encodings_by_layer_are_code():
    def run(theta):
        made = parse(SETTINGS)
        one = EncodingConfig("rope", Options({"theta": theta}))
        return dataclasses.replace(made, model=dataclasses.replace(made.model, layers=2, encoding=(one, one)))

    assert population_key(run(10.0)) != population_key(run(20.0))
    with pytest.raises(ValueError, match="runs whose layers have encodings of their own"):
        numbers_of([run(10.0), run(20.0)])


@pytest.mark.parametrize(("form", "in_encoder"), [("encoder", True), ("encoder_decoder", True), ("decoder", False)])
def test_the_bias_of_an_encoder_is_bidirectional(form, in_encoder):
    """Else all later keys have the bucket of the token itself, so that an encoder could not tell them apart."""
    odd = {"name": "t5", "options": {"buckets": 8 if in_encoder else 7}}  # seven are two halves of nothing
    small = {"layers": 1, "model": 16, "heads": 2, "hidden": 16, "encoding": odd}
    run = parse({"task": {"name": "reverse_string", "form": form}, "model": small})
    model = build(run, make_task(run))
    module = model.module(model.init(jax.random.key(0)))
    stacks = [node for _, node in nnx.iter_graph(module) if isinstance(node, Stack)]
    found = [stack.config.encoding.bidirectional for stack in stacks]
    assert sorted(found) == sorted([in_encoder, False] if form == "encoder_decoder" else [in_encoder])
