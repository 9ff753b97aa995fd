"""Training on eight virtual devices beside one: the same examples, the same numbers, one all-reduce a step."""

import re

import jax
import numpy as np
import pytest

from attnjax.config import parse
from attnjax.config.mesh import MeshShape, parse_mesh
from attnjax.train.loop import make_task
from attnjax.train.mesh import make_mesh, padded, place
from attnjax.train.step import Trainer, members
from tests.cases import slow_except

MODEL = {"layers": 2, "model": 16, "heads": 2, "hidden": 32}
FORMS = {
    "copy, T5, decoder": {"task": {"name": "copy", "form": "decoder"}, "model": MODEL | {"encoding": {"name": "t5"}}},
    "copy, RoPE, encoder": {
        "task": {"name": "copy", "form": "encoder"},
        "model": MODEL | {"encoding": {"name": "rope"}},
    },
    "reverse, pair": {"task": {"name": "reverse_string", "form": "encoder_decoder"}, "model": MODEL},
}


def population(count=4, **changes):
    train = {"steps": 9, "batch": 8, "clip": 1.0} | changes.pop("train", {})
    optimizer = {"optimizer": {"name": "sgd"}}
    return [parse({"train": train, "seed": i, "data_seed": i} | optimizer | changes) for i in range(count)]


def after(runs, mesh, steps=3):
    """Parameters and losses of the members after some steps, and the trainer."""
    task, there = make_task(runs[0]), make_mesh(mesh)
    trainer, member = Trainer(runs[0], task, there), place(members(runs), there)
    state, metrics = trainer.advance(place(trainer.start(member), there), member, steps)
    return jax.device_get(state.params), metrics, trainer


@pytest.mark.parametrize("form", slow_except(FORMS, "copy, T5, decoder"))
@pytest.mark.parametrize("mesh", slow_except(["population=4", "data=4", "population=2,data=4"], "population=2,data=4"))
def test_every_mesh_trains_the_same_members(form, mesh):
    runs = population(**FORMS[form])
    alone, losses, _ = after(runs, MeshShape())
    spread, others, _ = after(runs, parse_mesh(mesh))
    np.testing.assert_allclose(others.loss, losses.loss, rtol=2e-6)
    np.testing.assert_allclose(others.gradient_norm, losses.gradient_norm, rtol=2e-5)
    for a, b in zip(jax.tree.leaves(spread), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_step_has_one_all_reduce_over_the_batch_and_nothing_over_members():
    for mesh, expected in (
        ("population=8", {}),
        ("data=8", {"all-reduce": 1}),
        ("population=2,data=4", {"all-reduce": 1}),
    ):
        runs = population(8, **FORMS["copy, T5, decoder"])
        there = make_mesh(parse_mesh(mesh))
        trainer, member = Trainer(runs[0], make_task(runs[0]), there), place(members(runs), there)
        state = place(trainer.start(member), there)
        text = trainer._compiled.lower(state, member, trainer._arrays, np.int32(1)).compile().as_text()
        found = re.findall(r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(", text)
        assert {kind: found.count(kind) for kind in found} == expected, mesh


def test_members_are_filled_up_to_a_multiple_of_the_devices():
    assert [padded(n, make_mesh(MeshShape(population=4))) for n in (1, 4, 5)] == [4, 4, 8]
    assert padded(3, None) == 3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "mesh: each part must be AXIS=SIZE, with an axis of population, data and a size of 1 or more; got ''"),
        ("data=0", "mesh: each part must be AXIS=SIZE, .*; got 'data=0'"),
        ("data=2,rows=2", "mesh: each part must be AXIS=SIZE, .*; got 'rows=2'"),
        ("data=2,data=2", "mesh: the axis data is given twice"),
    ],
)
def test_a_wrong_mesh_is_refused_in_a_sentence(text, error):
    with pytest.raises(ValueError, match=f"^{error}$"):
        parse_mesh(text)


def test_a_mesh_larger_than_the_machine_is_refused():
    with pytest.raises(ValueError, match=r"^the mesh population=4,data=16 needs 64 devices, and there are \d+$"):
        make_mesh(parse_mesh("population=4,data=16"))
