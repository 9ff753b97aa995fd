"""A GGUF file as a folder: rows of queries and keys, names, config, tokenizer; and the committed records and their page."""

import hashlib
import json
import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.models import MODELS
from experiments.smollm2 import converting, page, suite_page

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
    return converting.pending(Stored(name, data), FIELDS, lambda values, kind: values)


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
    first = lambda name: converted(f"blk.0.{name}.weight", rows).make()[:, 0].tolist()
    assert first("attn_q") == list(range(8))  # heads of one pair
    assert first("attn_k") == [0, 2, 1, 3, 4, 6, 5, 7]
    assert first("attn_v") == list(range(8))


def test_the_names_are_those_that_a_llama_is_loaded_from():
    spec = MODELS["llama"].config({**converting.config(FIELDS), "tie_word_embeddings": False})
    ours = {f"blk.0.{name}.weight": f"model.layers.0.{theirs}.weight" for name, theirs in converting.INNER.items()}
    ours |= {f"{name}.weight": f"{theirs}.weight" for name, theirs in converting.OUTER.items()}
    weights = {row.names[0]: row.shape for row in MODELS["llama"].weights(spec)}
    assert {converted(name, np.zeros((16, 16))).name for name in ours} == set(ours.values()) == set(weights)


def test_the_config():
    spec = MODELS["llama"].config({**converting.config(FIELDS), "tie_word_embeddings": True})
    c = spec.config
    assert (c.vocab, c.layers, c.model, c.hidden, c.heads, c.sizes.kv_heads) == (8, 1, 16, 24, 4, 2)
    assert (c.norm_epsilon, c.encodings[0].theta) == (1e-5, 100000.0)


def test_the_tokenizer_has_single_digits_and_special_tokens():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer.from_str(converting.tokens(FIELDS))
    assert made.encode("ab 19<|end|>").tokens == ["ab", "Ġ", "1", "9", "<|end|>"]
    assert made.decode(made.encode("ab 19\nb").ids) == "ab 19\nb"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"general.architecture": "gemma"}, "general.architecture must be llama, got 'gemma'"),
        ({"llama.rope.scaling.type": "yarn"}, "the file has llama.rope.scaling.type"),
    ],
)
def test_other_models_are_refused(change, error):
    with pytest.raises(ValueError, match=error):
        converting.config({**FIELDS, **change})


def test_other_tokenizers_and_tensors_are_refused():
    with pytest.raises(ValueError, match="got 'llama' with 'smollm'"):
        converting.tokens({**FIELDS, "tokenizer.ggml.model": "llama"})
    with pytest.raises(ValueError, match=r"a LLaMA has no tensor blk\.0\.attn_sinks\.weight"):
        converted("blk.0.attn_sinks.weight", np.zeros((4, 4)))


def test_the_committed_losses_are_those_of_transformers():
    found = page.read(HERE / "records.jsonl")
    theirs = json.loads((HERE / "transformers.json").read_text(encoding="utf-8"))
    assert found.about["model"] == theirs["sha256"]
    assert found.agreement["tokens"] == len(theirs["losses"]) == 255
    assert 0 < found.agreement["difference"] < 1e-4


def test_the_committed_page_is_made_from_the_records():
    assert (HERE / "README.md").read_text(encoding="utf-8") == page.page(page.read(HERE / "records.jsonl"))


def test_a_hand_made_record_gives_its_means_and_order():
    about = {"kind": "protocol", "trained": 4, "factor": 2, "bin": 1, "name": "t", "tokens": 8}
    losses = {"none": [1, 1, 2, 2, 5, 5, 5, 5], "pi": [3] * 8, "yarn": [2, 2, 2, 2, 2, 2, 2, 4]}
    methods = [{"kind": "method", "method": name, "losses": values} for name, values in losses.items()]
    found = page.results([about, {"kind": "agreement", "transformers": "5", "tokens": 9, "difference": 1e-5}, *methods])
    assert found.means("none") == (1.5, 2.0, 5.0)
    rows = [line.split(" | ") for line in page.table(found).splitlines()[2:]]
    assert [row[0] for row in rows] == ["| YaRN", "| PI", "| RoPE as trained"]
    assert rows[0][1:] == ["2.000", "2.000", "2.500 |"]
    assert "lowest under YaRN 2.500, PI 3.000." in page.claim(found)


def test_a_hand_made_record_of_the_suite_is_told_as_it_is():
    about = {"kind": "protocol", "samples": 4, "pretended": 32, "window": 64, "rounds": 1, "date": "2026-01-02"}
    about |= {"processor": "a CPU", "jax": "0.1"}
    score = lambda task, n, *found: {
        "kind": "score", "task": task, "length": n, "processor_seconds": 30.0, "generation": found[0], "ranking": found[1]
    }  # fmt: skip
    losses = {"pi": 4.0, "ntk": 3.5, "by_parts": 3.75, "found": 3.125, "ones": 3.0}
    search = {"kind": "search", "factors": [1.0, 1.5, 2.0], "losses": losses, "processor_seconds": 60.0}
    scores = [
        score("niah_single_1", 512, 100.0, 75.0),
        score("niah_single_1", 1024, 50.0, 25.0),
        score("vt", 512, 6.25, 0),
    ]
    plain = {"kind": "plain", "loss": 2.875}
    told = suite_page.section(suite_page.results([about, *scores, search, plain]), past=16384, seconds=100.0)
    assert "| Needle in noise (passkey) | 100 / 75 | 50 / 25 |" in told
    assert "| Variable tracking | 6.25 / 0 | not measured |" in told
    assert "so that one sample is 25 points" in told.replace("\n", " ")
    assert "One round over the pairs, 9 evaluations at most: the loss fell from 3.5000 under" in told.replace("\n", " ")
    assert "to 3.1250. Of 3 factors 2 are above 1, and the largest is 2." in told.replace("\n", " ")
    assert "| none: the model as trained | 2.8750 |" in told
    assert "2.5 minutes of the processor" in told.replace("\n", " ")
    assert "9 evaluations would take 0 hours" in told
    without = suite_page.section(suite_page.results([about, *scores]), past=16384, seconds=100.0)
    assert "LongRoPE" not in without
    with pytest.raises(ValueError, match="there is no score in these records"):
        suite_page.results([about, search])


def test_the_text_is_that_of_the_commit_that_the_page_names():
    git = lambda *words: subprocess.run(["git", *words], cwd=HERE.parents[1], capture_output=True)
    names = [git("ls-tree", "--name-only", page.COMMIT, folder) for folder in ("docs/", "docs/tutorials/")]
    if names[0].returncode:
        pytest.skip("NOT RUN: the commit is not here, because this is no whole clone")
    pages = [name for found in names for name in found.stdout.decode().split() if name.endswith(".md")]
    text = b"".join(git("show", f"{page.COMMIT}:{name}").stdout for name in pages)
    assert len(pages) > 15
    assert hashlib.sha256(text).hexdigest() == page.read(HERE / "records.jsonl").about["text"]
