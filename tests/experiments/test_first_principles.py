"""What is measured beside the tutorial on first principles, at small sizes."""

import jax
import numpy as np
import pytest

from experiments.first_principles import __main__ as measuring

pytestmark = pytest.mark.slow


def small(monkeypatch, **sizes):
    for name, value in sizes.items():
        monkeypatch.setattr(measuring, name, value)


@pytest.mark.parametrize("kind", ["attention", "LSTM"])
def test_one_causal_pass_has_the_gradients_of_all_lengths(kind, monkeypatch):
    small(monkeypatch, CHANNELS=4, HEADS=2, REACHES=(1, 3), STARTS=3)
    make = measuring.kinds()[kind]
    found = measuring.gradients(make)
    x = jax.random.normal(jax.random.key(0), (3, 3, 4))
    for T in (1, 3):
        norms = []
        for seed in range(3):
            call, params = make(seed)
            last = lambda x, call=call, params=params: call(params, x[None])[0, -1]
            norms.append(np.linalg.norm(np.asarray(jax.jacrev(last)(x[seed, :T]))[:, 0]) / 2)
        np.testing.assert_allclose(found[T], np.median(norms), rtol=1e-5)


def test_attention_without_the_factor_is_sharper_from_the_start(monkeypatch):
    small(monkeypatch, SEEDS=(0,), STEPS=2, WARMUP=1, EVERY=1)
    with_it, without = (measuring.train(scale) for scale in (None, 1.0))
    assert [len(with_it[name][0]) for name in ("entropy", "largest", "loss")] == [3, 3, 2]
    assert 0 < without["entropy"][0][0] < with_it["entropy"][0][0] < 1
    assert with_it["largest"][0][0] < without["largest"][0][0] < 1
