"""A GGUF file as a folder: rows of queries and keys; needles in a prompt, and what is measured of a tiny model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax.evaluation.text_model import TextModel, Trained
from attnjax.modules import Decoder, TransformerConfig
from experiments.smollm2 import __main__ as smollm2, converting

FIELDS = {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}


class Stored:
    """A tensor as GGUFReader gives it, whose shape is in the reverse order."""

    def __init__(self, name, data):
        self.name, self.data, self.shape, self.tensor_type = name, data, np.array(data.shape[::-1]), "F32"


@pytest.mark.slow
def test_attention_is_the_same_with_neighbouring_channels_and_with_halves():
    """llama.cpp rotates neighbours, config.json means halves: the rows that are put back give the same attention."""
    heads, head, model, T = 4, 4, 16, 6
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (1, T, model))
    q_rows, k_rows = (np.asarray(jax.random.normal(key, (heads * head, model))) for key in keys[1:3])
    v = jax.random.normal(keys[3], (1, T, heads, head))

    def out(q_rows, k_rows, layout):
        q, k = ((x @ rows.T).reshape(1, T, heads, head) for rows in (q_rows, k_rows))
        return aj.attend(q, k, v, encoding=aj.RoPE(layout=layout), mask=aj.Mask(causal=True))

    stored = out(q_rows, k_rows, "interleaved")
    back = out(converting.halves(q_rows, heads), converting.halves(k_rows, heads), "half")
    np.testing.assert_allclose(back, stored, rtol=2e-6, atol=2e-6)
    assert jnp.abs(out(q_rows, k_rows, "half") - stored).max() > 0.01


def test_only_queries_and_keys_are_put_back_each_by_its_number_of_heads():
    rows = np.arange(8.0)[:, None] * np.ones((1, 16))
    stored = lambda name: Stored(f"blk.0.{name}.weight", rows)
    first = lambda name: converting.converted(stored(name), FIELDS, lambda x, kind: x)[1][:, 0].tolist()
    assert first("attn_q") == list(range(8))  # heads of one pair
    assert first("attn_k") == [0, 2, 1, 3, 4, 6, 5, 7]
    assert first("attn_v") == list(range(8))


def subject():
    config = TransformerConfig(vocab=256, model=16, layers=1, heads=2, hidden=16, encoding=aj.RoPE())
    encode = lambda text: list(text.encode())
    known = Trained(2048)
    return TextModel("tiny", Decoder(config, rngs=nnx.Rngs(0)), encode, str, trained=known)


@pytest.mark.slow
def test_needles_are_those_of_the_model_that_reads_all_at_once(monkeypatch):
    monkeypatch.setattr(smollm2, "ANSWER", 256)
    one = subject()
    asked = smollm2.prompt(one, 1024, 0)
    text, pairs = asked
    assert 1024 - 256 - 100 < len(text) <= 1024 - 256
    assert all(
        question.split(" for ")[1].split(" ")[0] in text and number.strip() in text for question, number in pairs
    )
    found = smollm2.needles(one.model, one, asked, 1024)
    row = np.array([one.encode(text + "".join(pairs[3]))], np.int32)
    expected = one.losses(row)[0, -len(pairs[3][1]) :].mean()
    assert found["losses"][3] == pytest.approx(expected, abs=2e-4)
    assert set(found) == {"losses", "identified", "greedy"}
