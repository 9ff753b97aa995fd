"""Context extension: facts in a text, what a method reads, fine-tuning, and the measuring commands at a tiny size."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from flax import nnx

from attnjax.evaluation import LoadedModel
from attnjax.evaluation.extension import extended
from attnjax.modules import TransformerConfig
from attnjax.positions import RoPE
from attnjax.tasks import Text
from experiments import ngrams
from experiments.context_extension import factors, markov, planting, reading, text
from experiments.context_extension.factors import loss_of, searched
from tests.evaluation.planted_heads import drawn
from tests.experiments.tiny import run_tiny

L = 16
CONFIG = TransformerConfig(vocab=11, model=16, layers=1, heads=2, hidden=16, encoding=RoPE())


@pytest.fixture(scope="module")
def model():
    return drawn(CONFIG)


def test_a_haystack_states_a_fact_and_asks_for_it():
    source = np.frombuffer(b"a line of text\n" * 100, np.uint8)
    found = planting.haystack(source, 64, 0.0, 3, 128)
    assert found.tokens.shape == (3, 65)
    for row, counted in zip(found.tokens.tolist(), found.counted, strict=True):
        stated, asked = row[:4], row[-8:]
        assert row[4] == row[-9] == ord("\n")
        assert sorted(asked[1::2]) == sorted(stated)  # each question is followed by one of the values
        kinds = [(value - planting.FIRST_VALUE) // planting.VALUES for value in asked[1::2]]
        assert asked[::2] == [planting.QUESTIONS[kind] for kind in kinds]
        assert np.flatnonzero(counted).tolist() == [57, 59, 61, 63]  # bytes 58, 60, 62, 64 are predicted there
    with pytest.raises(ValueError, match="14 bytes cannot hold a fact of 14"):
        planting.haystack(source, 14, 0.0, 1, 64)


def test_scores_are_those_of_the_extended_model(model):
    rows = np.random.default_rng(0).integers(0, 11, (3, 8 * L + 1)).astype(np.int32)
    seen = set()
    for method in ("none", "rerope+log_n"):
        mine = reading.read_by(method, model, L, ())
        theirs = model if method == "none" else extended(model, method, trained=L, factor=8.0)
        logits = np.asarray(nnx.jit(lambda one, tokens: one(tokens))(theirs, rows[:, :-1]))
        expected = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, rows[:, 1:, None], -1)[..., 0]
        loss, right = reading.scored(mine, rows, most=2 * 8 * L)  # two rows, then one with padding
        np.testing.assert_allclose(loss, expected, atol=2e-5)
        np.testing.assert_array_equal(right > 0, logits.argmax(-1) == rows[:, 1:])
        seen.add(loss.round(3).tobytes())
    assert len(seen) == 2


def test_fine_tuning_lowers_the_loss_and_leaves_the_model(model):
    batch = np.tile(np.arange(L + 1, dtype=np.int32) % 11, (2, 1))
    before = reading.scored(model, batch)[0]
    after = reading.scored(reading.fine_tuned(model, np.stack([batch] * 10), 1e-2), batch)[0]
    assert after.mean() < before.mean() - 0.1
    np.testing.assert_array_equal(reading.scored(model, batch)[0], before)


def test_ngrams_of_four_bytes_by_hand():
    """After "abc" came "d" once: (1 + 1 P_3(d | bc)) / (1 + 1); P_3 is alike with P_2 after c, P_1 of 1 in 4."""
    of = ngrams.losses(np.frombuffer(b"abcd", np.uint8), 4)
    one = (1 + 4 / 256) / (4 + 4)
    two, three, four = (1 + one) / 2, (3 + one) / 4, (7 + one) / 8
    found = of(np.frombuffer(b"abcd", np.uint8)[None])
    np.testing.assert_allclose([np.exp(-found[name][0, -1]) for name in ngrams.names(4)], [one, two, three, four])
    assert found["4-gram"][0, 0] == found["bigram"][0, 0]  # one byte before it
    unseen = of(np.frombuffer(b"dddd", np.uint8)[None])
    np.testing.assert_allclose(unseen["4-gram"], unseen["unigram"])


def runs(folder, variant, *overrides):
    run_tiny(folder, f"context_extension:{variant}", L, *overrides)
    return reading.runs_of(folder)


@pytest.mark.slow
def test_text_is_measured_and_gone_on_with(tmp_path):
    path, out = tmp_path / "planted.txt", tmp_path / "text.csv.xz"
    path.write_bytes(planting.plant(b"def f(x):\n    return x\n" * 300, L, seed=0))
    plan = text.Plan(2, 1, 2, 64, 1e-3, ("longrope", "streaming_llm"))
    found = runs(tmp_path / "runs", "text", f"task.options.path={path}")
    assert isinstance(found[0].task, Text)
    text.measure(found, out, plan, cap=20_000)
    records = pd.read_csv(out, keep_default_na=False)
    cells = records[records["run"] != ""].groupby(["method", "stage"]).size()
    measured = [("longrope", "zero-shot"), ("longrope", "tuned"), ("streaming_llm", "zero-shot")]
    assert cells.to_dict() == dict.fromkeys(measured, 4 + 16 + 4 * 5)
    assert set(records[records["run"] == ""]["method"]) == set(ngrams.names(5))
    text.measure(found, out, plan, cap=20_000)
    assert len(pd.read_csv(out)) == len(records)


@pytest.mark.slow
def test_chains_are_measured(tmp_path):
    out = tmp_path / "markov.csv.xz"
    markov.measure(runs(tmp_path / "runs", "markov"), out, chains=3, methods=("none", "drope"))
    records = pd.read_csv(out, keep_default_na=False)
    assert records.groupby("method").size().to_dict() == dict.fromkeys(
        ("none", "drope", "unigram", "bigram"), 4 * 3 + 4
    )
    assert np.isfinite(records["value"]).all()


# Factors of LongRoPE ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 2])
def test_a_list_of_factors_is_judged_by_the_loss_of_the_model_that_has_it(layers):
    plain = drawn(dataclasses.replace(CONFIG, layers=layers, encoding=RoPE(theta=100.0)))
    rows = np.random.default_rng(0).integers(0, 11, (2, 40)).astype(np.int32)
    given, known = (1.0, 1.4, 2.0, 3.5), {"trained": 16, "factor": 2.5}
    found = loss_of(plain, rows, **known)(given)
    mean = lambda decoder: float(np.mean(LoadedModel(decoder).losses(rows)))
    assert found == pytest.approx(mean(extended(plain, "longrope", factors=given, **known)), rel=1e-5)
    assert abs(found - mean(plain)) > 1e-4


@pytest.mark.parametrize("target", [(1.0, 3.0), (3.0, 3.75)])
def test_a_descent_comes_as_near_as_its_steps_allow(target, monkeypatch):
    """In steps of times and over 1.5, within 1 and 1.5 times the factor of 2.5."""
    monkeypatch.setattr(factors, "loss_of", lambda *_, **__: lambda one: sum(abs(np.log(np.divide(one, target)))))
    two_pairs = drawn(dataclasses.replace(CONFIG, encoding=RoPE(fraction=0.5)))
    found = searched(two_pairs, [0] * 8, 8, trained=8, factor=2.5)
    assert np.abs(np.log(np.divide(found, target))).max() <= np.log(1.5) / 2 + 1e-5
    assert 1 <= found[0] <= found[1] <= 3.75
