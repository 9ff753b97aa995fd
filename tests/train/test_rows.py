"""Where few targets count, the last layer computes no other rows: the records are those of all rows."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.model import build

CASES = ("rope", "alibi", "t5")


@pytest.mark.parametrize("form", ["decoder", "encoder"])
@pytest.mark.parametrize("name", CASES)
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
    every = Evaluator(run, made_task, built._replace(apply=lambda *args, rows: _all(built, asked, *args, rows=rows)))
    for mine, whole in zip(few(params), every(params), strict=True):
        for a, b in zip(mine[0], whole[0], strict=True):
            assert a["value"] == pytest.approx(b["value"], rel=1e-6), a
            assert {**a, "value": 0} == {**b, "value": 0}
    assert asked == [2 if form == "decoder" else 1], "one padded size, or nothing was asked for"


def _all(built, asked, *args, rows):
    asked.append(rows.shape[1])
    logits = built.apply(*args)
    return jnp.take_along_axis(logits, rows[:, :, None], axis=1)
