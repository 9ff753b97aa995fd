"""Heads written by hand are found by one call; counts and scores against loops; statistics of weights by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.config import parse
from attnjax.evaluation import LoadedModel
from attnjax.evaluation.counts import stands_out
from attnjax.train.loop import make_task
from attnjax.train.model import build
from tests.evaluation import planted_heads as planted

# Whole models -----------------------------------------------------------------------------------------------------------


def untrained(**settings) -> LoadedModel:
    run = parse({"model": {"layers": 2, "model": 16, "heads": 2, "hidden": 16}, **settings})
    task = make_task(run)
    model = build(run, task)
    return LoadedModel(model.module(model.init(jax.random.key(0))), "untrained", run, task)


def standing(found) -> dict[str, list[tuple[int, int]]]:
    """(layer, head) of all heads that stand out, by pattern."""
    marked = {name: np.argwhere(stands_out(name, one)).tolist() for name, one in found.items()}
    return {name: [tuple(place) for place in places] for name, places in marked.items() if places}


def test_a_model_is_a_function_of_tokens():
    subject, tokens = planted.drawn(planted.config()), jnp.asarray(planted.tokens(2))
    logits = np.asarray(nnx.merge(subject.graph, subject.params)(tokens), np.float64)
    truth = np.take_along_axis(logits[:, :-1], np.asarray(tokens)[:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(subject.losses(tokens), np.log(np.exp(logits[:, :-1]).sum(-1)) - truth, rtol=1e-5)
    assert subject.weights(tokens).shape == (1, 2, 2, 32, 32)
    assert subject.hidden_states(tokens).shape == (2, 2, 32, 24)
