"""Length buckets cut padding and lose no real token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.tasks.forms import target_of
from attnjax.train.batching import real_lengths, smallest_bucket, target_capacity, truncate
from attnjax.train.data import batch
from attnjax.train.loop import make_task
from tests.train.test_microbatches import numbered

FORMS = {"decoder": {"begin": True}, "encoder": {"tail": True}, "encoder_decoder": {}}
STEPS, BUCKETS = 40, 4


@pytest.fixture(scope="module", params=FORMS)
def drawn(request, tiny):
    """Batches of 40 steps, of one length each, 1 .. 6; the answers have one token more."""
    asked = {"name": "binary_addition", "form": request.param, "length_per": "batch", **FORMS[request.param]}
    run = dataclasses.replace(tiny, task=dataclasses.replace(tiny.task, **asked))
    task = make_task(run)
    made = jax.jit(jax.vmap(lambda step: batch(run, task, jnp.uint32(0), step)))(jnp.arange(STEPS, dtype=jnp.int32))
    return [jax.tree.map(lambda leaf, step=step: leaf[step], jax.device_get(made)) for step in range(STEPS)]


@pytest.mark.quick("decoder")
def test_the_smallest_bucket_that_fits_loses_no_token(drawn):
    found = set()
    for made in drawn:
        i = int(smallest_bucket(made, (None,) * BUCKETS))
        found.add(i)
        assert [real(truncate(made, size, BUCKETS)) == real(made) for size in range(BUCKETS)] == [
            size >= i for size in range(BUCKETS)
        ]
        np.testing.assert_array_equal(target_of(truncate(made, BUCKETS - 1, BUCKETS)).tokens, target_of(made).tokens)
    assert found > {1, 3}, "one bucket only, which shows little"


def test_lengths_count_the_real_tokens(drawn):
    """All are in front."""
    for made in drawn:
        target = target_of(made)
        count = (np.asarray(target.valid) | np.asarray(target.mask)).sum(1)
        count += 0 if target is made else np.asarray(made.source_valid).sum(1)
        np.testing.assert_array_equal(real_lengths(made), count)


def test_buckets_are_fractions_of_the_longest():
    made = numbered(3, 42, layers=2)
    shapes = [{name: leaf.shape for name, leaf in truncate(made, i, BUCKETS)._asdict().items()} for i in range(BUCKETS)]
    assert [shape["tokens"] for shape in shapes] == [(3, 13), (3, 24), (3, 34), (3, 42)]
    assert [shape["positions"] for shape in shapes] == [(2, 3, 13), (2, 3, 24), (2, 3, 34), (2, 3, 42)]
    assert {shape["answer"] for shape in shapes} == {(3,)}


def test_a_bucket_without_capacity_for_the_targets_is_passed_over(drawn):
    """The answers of this task are longer than its inputs, so only a capacity made by hand is less than they need."""
    for made in drawn:
        longest = int(np.asarray(target_of(made).mask).sum(1).max())
        free = int(smallest_bucket(made, (None,) * BUCKETS))
        assert int(smallest_bucket(made, (longest - 1, longest - 1, longest, None))) == max(free, 2)
        assert int(smallest_bucket(made, (longest, longest, longest, None))) == free


def test_capacity_is_half_of_the_tokens_where_answers_in_proportion_fit():
    assert target_capacity(None, 64, 4) == (None, None, None, None)
    assert target_capacity(2, 42, 4) == (2, 2, 2, 2), "one answer and its end, in every bucket"
    # Copying: of T = 64, 31 tokens, separator, and 32 answers; of 20, 36 and 52 tokens at most half.
    assert target_capacity(32, 64, 4) == (10, 18, 26, 32)
    assert target_capacity(42, 62, 4) == (None, None, None, None), "written twice: most tokens are answers"
    assert target_capacity(9, 20, 1) == (9,)
    assert target_capacity(11, 20, 1) == (None,)


def real(made):
    """How many tokens are real, and how many count."""
    target = target_of(made)
    sources = 0 if target is made else int(made.source_valid.sum())
    return int(target.mask.sum()), int(target.valid.sum()), sources
