"""Where few targets count, the last layer computes no other rows: records and gradients are those of all rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.train import batching
from attnjax.train.data import batch
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.model import build
from attnjax.train.step import Trainer
from tests.cases import slow_except

CASES = ("rope", "alibi", "t5")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["decoder", "encoder"])
@pytest.mark.parametrize("name", slow_except(CASES, "rope"))
def test_an_evaluation_of_the_answer_alone_is_that_of_all_rows(tiny, name, form):
    if (name, form) == ("alibi", "encoder"):
        encoding = dataclasses.replace(tiny.model.encoding, name=name, options={"symmetric": True})
    else:
        encoding = dataclasses.replace(tiny.model.encoding, name=name)
    model = dataclasses.replace(tiny.model, encoding=encoding, layers=2)
    task = dataclasses.replace(tiny.task, name="missing_duplicate_string", form=form)
    run = dataclasses.replace(tiny, model=model, task=task)
    made_task = make_task(run)
    built = build(run, made_task)
    params = jax.tree.map(lambda leaf: leaf[None], jax.jit(built.init)(jax.random.key(0)))
    few = Evaluator(run, made_task, built)
    asked = []
    apply = lambda *args, query_indices, **spread: _all(built, asked, *args, query_indices=query_indices, **spread)
    every = Evaluator(run, made_task, built._replace(apply=apply))
    for mine, whole in zip(few(params), every(params), strict=True):
        for a, b in zip(mine[0], whole[0], strict=True):
            assert a["value"] == pytest.approx(b["value"], rel=1e-6), a
            assert {**a, "value": 0} == {**b, "value": 0}
    assert asked == [2 if form == "decoder" else 1], "one padded size, or nothing was asked for"


def _all(built, asked, *args, query_indices, **spread):
    asked.append(query_indices.shape[1])
    logits = built.apply(*args, **spread)
    return jnp.take_along_axis(logits, query_indices[:, :, None], axis=1)


@pytest.mark.quick("t5-encoder")
@pytest.mark.parametrize(("name", "form"), [("rope", "decoder"), ("alibi", "decoder"), ("t5", "encoder")])
def test_training_on_answers_alone_is_training_on_all_rows(tiny, name, form, monkeypatch):
    encoding = dataclasses.replace(tiny.model.encoding, name=name)
    model = dataclasses.replace(tiny.model, encoding=encoding, layers=2)
    task = dataclasses.replace(tiny.task, name="missing_duplicate_string", form=form)
    run = dataclasses.replace(tiny, model=model, task=task)
    trainer = Trainer(run, make_task(run))
    made = jax.jit(lambda: batch(run, trainer.task, jnp.uint32(0), jnp.int32(0)))()
    params = jax.jit(trainer.model.init)(jax.random.key(0))
    loss = lambda: jax.jit(jax.value_and_grad(lambda params: trainer.loss(params, made), has_aux=True))(params)
    few = loss()
    assert batching.gather_targets(made, trainer.max_targets)[1].shape == (
        run.train.batch,
        2 if form == "decoder" else 1,
    )
    monkeypatch.setattr(batching, "gather_targets", lambda made, count: (made, None))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), few, loss())
