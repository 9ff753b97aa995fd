"""Microbatches of an evaluation: every example keeps its place and its metrics."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.config import ModelConfig
from attnjax.tasks.forms import Sequences
from attnjax.train import batching
from attnjax.train.batching import map_microbatches, microbatch_size
from attnjax.train.evaluate import Evaluator
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members


def numbered(batch, tokens, layers=None):
    """Sequences in which no two numbers are equal, with positions for each layer if there are layers."""
    table = np.arange(batch * tokens, dtype=np.int32).reshape(batch, tokens)
    positions = table if layers is None else np.stack([table + 1000 * i for i in range(layers)])
    each = np.arange(batch, dtype=np.int32)
    return Sequences(*map(jnp.asarray, (table, table, table > 0, table > 0, positions, each, each)))


@pytest.mark.parametrize("size", [1, 2, 3, 6, None])
@pytest.mark.parametrize("layers", [None, 4])
def test_microbatches_keep_the_order_of_examples(size, layers):
    made, seen = numbered(6, 5, layers), []

    def rows(made):
        seen.append(made.tokens.shape[0])
        own = made.positions if layers is None else made.positions[-1]
        return {"sum": (own + made.tokens).sum(-1), "answer": made.answer}

    found = map_microbatches(rows, made, size)
    table = np.arange(30).reshape(6, 5)
    expected = (2 * table + (0 if layers is None else 3000)).sum(-1)
    np.testing.assert_array_equal(found["sum"], expected)
    np.testing.assert_array_equal(found["answer"], np.arange(6))
    assert set(seen) == {size or 6}


def test_a_microbatch_fits_the_cache_and_divides_the_batch():
    model = ModelConfig(model=64, hidden=256)
    sizes = lambda batch, tokens, population=1: microbatch_size(model, numbered(batch, tokens), population, "cpu")
    assert 4 * 256 * 460 * sizes(64, 460) == 4 * 256 * 460 * 16 <= batching.MICROBATCH_BYTES < 4 * 256 * 460 * 32
    assert sizes(64, 460, population=4) == 4
    assert sizes(64, 100) == 64, "short ones all at once"
    assert sizes(60, 460) == 15
    assert sizes(7, 5000) == 1
    assert sizes(64, 128, population=1000) == 4, "so many that products have 512 rows"


def test_an_accelerator_takes_all_at_once():
    assert microbatch_size(ModelConfig(), numbered(64, 5000), 8, "gpu") is None


def test_microbatches_change_no_record(tiny, population, monkeypatch):
    """Members, numbers of examples that are no multiple of the batch, and lengths of a whole evaluation."""
    positions = dataclasses.replace(
        tiny.positions, policy="randomized", maximum=64, at_test="same", sample_per_layer=True
    )
    run = dataclasses.replace(tiny, positions=positions, model=dataclasses.replace(tiny.model, layers=2))
    trainer = Trainer(run, make_task(run))
    params = trainer.start(members([dataclasses.replace(run, seed=one.seed) for one in population])).params
    evaluator = lambda: Evaluator(run, trainer.task, trainer.model)
    whole = list(evaluator()(params))
    monkeypatch.setattr(batching, "MICROBATCH_BYTES", 1)
    monkeypatch.setattr(batching, "MIN_MICROBATCH_TOKENS", 100)
    one = jax.eval_shape(lambda: evaluator()._examples(jax.random.key(0), jnp.int32(4), (), 12))
    assert microbatch_size(run.model, one, 2, "cpu") == 4 < run.evaluate.batch
    for before, after in zip(whole, evaluator()(params), strict=True):
        records = (itertools.chain.from_iterable(one) for one in (before, after))
        for a, b in zip(*records, strict=True):
            assert a["value"] == pytest.approx(b["value"], rel=1e-6), a
            assert {**a, "value": 0} == {**b, "value": 0}
