"""A GGUF file as a folder: rows of queries and keys, names, config, tokenizer; and the committed records and their page."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from experiments.smollm2 import converting, page

HERE = pathlib.Path(__file__).parents[2] / "experiments" / "smollm2"
FIELDS = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 32,
    "llama.embedding_length": 16,
    "llama.feed_forward_length": 24,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "Ġ", "1", "9", "ab", "Ċ"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 0,
}


class Stored:
    """A tensor as GGUFReader gives it, whose shape is in the reverse order."""

    def __init__(self, name, data):
        self.name, self.data, self.shape, self.tensor_type = name, data, np.array(data.shape[::-1]), "F32"


def converted(name, data):
    return converting.converted(Stored(name, data), FIELDS, lambda values, kind: values)


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
    first = lambda name: converted(f"blk.0.{name}.weight", rows)[1][:, 0].tolist()
    assert first("attn_q") == list(range(8))  # heads of one pair
    assert first("attn_k") == [0, 2, 1, 3, 4, 6, 5, 7]
    assert first("attn_v") == list(range(8))


def test_the_committed_losses_are_those_of_transformers():
    found = page.read(HERE / "records.jsonl")
    theirs = json.loads((HERE / "transformers.json").read_text(encoding="utf-8"))
    assert found.about["model"] == theirs["sha256"]
    assert found.agreement["tokens"] == len(theirs["losses"]) == 255
    assert 0 < found.agreement["difference"] < 1e-4
