"""The grids of the page are the numbers of `head_scores`, or a sentence says why there are none."""

import dataclasses

import jax
import numpy as np
import pytest

from attnjax.config import parse
from attnjax.evaluation import LoadedModel, head_scores
from attnjax.evaluation.counts import stands_out
from attnjax.explore.contents import table
from attnjax.explore.run import head_grids
from attnjax.train.loop import make_task
from attnjax.train.model import build
from tests.explore.synthetic import explored, grids


def untrained(**settings) -> LoadedModel:
    small = {"layers": 2, "model": 16, "heads": 2, "hidden": 16, **settings.pop("model", {})}
    run = parse({"model": small, "task": {"name": "reverse_string", "length_max": 6}, **settings})
    task = make_task(run)
    model = build(run, task)
    return LoadedModel(model.module(model.init(jax.random.key(0))), "untrained", run, task)


@pytest.fixture(scope="module")
def subject():
    return untrained()


@pytest.mark.slow
def test_every_score_is_that_of_head_scores(subject):
    made, scored = head_grids(subject)
    found = head_scores(subject)
    expected = {name: one.score for name, one in found.patterns.items() if one.rows}
    expected |= {name: getattr(found, name) for name in ("entropy", "distance", "sink")}
    assert [one.name for one in made] == list(expected)
    for one in made:
        np.testing.assert_allclose(one.values, expected[one.name], rtol=0, atol=5.1e-7)
        assert one.share == (one.name not in ("entropy", "distance"))
        if one.name in found.patterns:
            shown = [f"{value:.3f}" for row in one.values for value in row]
            assert shown == [f"{value:.3f}" for value in expected[one.name].ravel()]
            assert one.marked == tuple(map(tuple, stands_out(one.name, found.patterns[one.name]).tolist()))
    assert scored == f"Means over 64 held-out sequences of {found.tokens.shape[1]} tokens."


def test_a_score_that_is_not_a_number_is_null_on_the_page():
    (run,) = table((explored(grids=grids(), scored="here"),))["runs"]
    assert [one["values"] for one in run["grids"]] == [[[0.1, 0.8], [0.25, 0.0]], [[1.0, 2.0], [None, 0.5]]]
    assert run["grids"][0] == {
        **dataclasses.asdict(grids()[0]),
        "values": [[0.1, 0.8], [0.25, 0.0]],
        "marked": [[False, True], [False, False]],
    }
    assert run["scored"] == "here"
