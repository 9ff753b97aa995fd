"""A GGUF file as a folder: rows of queries and keys; needles in a prompt, and what is measured of a tiny model."""

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


def test_only_queries_and_keys_are_put_back_each_by_its_number_of_heads():
    rows = np.arange(16.0)[:, None] * np.ones((1, 16))
    stored = lambda name: Stored(f"blk.0.{name}.weight", rows)
    first = lambda name: converting.converted(stored(name), FIELDS, lambda x, kind: x)[1][:, 0].tolist()
    assert first("attn_q") == [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15]
    assert first("attn_k") == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert first("attn_v") == list(range(16))


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
