"""Passages with needles, planted encoders that find them or cannot, MiniLM's embeddings, and the committed page."""

import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.evaluation.extension import stretched
from attnjax.modules import Encoder, TransformerConfig
from attnjax.positions import Learned
from experiments.minilm import page, texts
from experiments.minilm.facts import FACTS
from experiments.minilm.model import MiniLM

HERE = pathlib.Path(__file__).parents[2] / "experiments" / "minilm"
STATEMENTS, QUESTIONS = (list(one) for one in zip(*FACTS, strict=True))


def encode(text):
    """A token 100 (i + 1) + j per word of fact i or of its question, and a token 1 per letter of every other text."""
    for one in (STATEMENTS, QUESTIONS):
        if text in one:
            return [100 * (one.index(text) + 1) + j for j in range(len(text.split()))]
    return [1] * len(text)


class Specials:
    """A tokenizer of nothing but the special tokens."""

    def encode(self, text, *, specials=True):
        assert (text, specials) == ("", True)
        return [1, 2]


@pytest.mark.slow
def test_embeddings_are_mean_features_whatever_stands_beside_them():
    config = TransformerConfig(
        vocab=32, model=8, layers=1, heads=2, hidden=8, encoding=Learned(texts.WINDOW, std=1.0), norm_position="post"
    )
    model = Encoder(config, rngs=nnx.Rngs(0))
    reader = MiniLM(model, Specials())
    rng = np.random.default_rng(0)
    long, short = (rng.integers(3, 32, T).tolist() for T in (9, 4))

    def by_hand(text, model=model, group=1):
        tokens = jnp.array([[1, *text, 2]])
        mean = model.features(tokens, pos=np.arange(tokens.shape[1]) // group)[0].mean(0)
        return mean / jnp.linalg.norm(mean)

    both = reader.embed([long, short])
    np.testing.assert_allclose(both, [by_hand(long), by_hand(short)], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reader.embed([long], group=3)[0], by_hand(long, group=3), rtol=1e-5, atol=1e-6)
    rows = by_hand(long, stretched(model, 600))
    np.testing.assert_allclose(reader.embed([long], rows=600)[0], rows, rtol=1e-5, atol=1e-6)
    assert min(np.abs(one - both[0]).max() for one in (rows, by_hand(long, group=3))) > 0.001


def test_the_committed_embeddings_are_those_of_transformers():
    record = page.read(HERE / "records.jsonl")
    theirs = json.loads((HERE / "transformers.json").read_text(encoding="utf-8"))
    assert record.about["model"] == theirs["sha256"]
    assert record.agreement["texts"] == len(theirs["embeddings"]) == 13
    assert record.agreement["longest"] == max(theirs["tokens"]) == texts.WINDOW
    assert 0 < record.agreement["difference"] < 1e-5
