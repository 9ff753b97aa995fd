"""Continuing a prompt: the tokens of the full forward pass, batches, ends, texts, and the command."""

import dataclasses
import io
import json
import re

import jax
import numpy as np
import pytest
from flax import nnx

from attnjax.models import MODELS, Loaded, ModelError, complete_batch, complete_texts, completion, load, load_tokenizer
from attnjax.models.__main__ import main, printable
from attnjax.models.completion import stop_tokens
from attnjax.models.param_paths import abstract, parameters, with_parameters
from attnjax.modules import Encoder
from tests.cases import slow_except
from tests.models import folders, test_tokens

PROMPTS = [[9, 2], [3, 1, 4, 1, 5]]
DRAWN = {"temperature": 9.0, "top_p": 0.95}
ROPE = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
ROPE |= {"num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
FAMILIES = {
    "gpt2": {"vocab_size": 258, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "llama": ROPE,
    "mistral": {**ROPE, "sliding_window": 3},
    "bloom": {"vocab_size": 11, "hidden_size": 16, "n_layer": 2, "n_head": 2},
    "t5": {**folders.T5, "d_model": 16, "decoder_start_token_id": 0},
}


def made(path, family: str) -> Loaded:
    """A model of random numbers that are large, so that what it says depends on what came before."""
    table = {"model_type": family, **FAMILIES[family]}
    draw = np.random.default_rng(1)

    def large(value: np.ndarray) -> np.ndarray:
        if value.ndim == 1:
            return value
        return draw.normal(size=value.shape).astype(np.float32)

    return load(folders.folder(path, table, {name: large(one) for name, one in folders.tensors(table).items()}))


def unread(family: str, **fields) -> Loaded:
    """A model without numbers."""
    table = FAMILIES[family] | fields
    spec = MODELS[family].config(table)
    return Loaded(abstract(MODELS[family], spec), spec, MODELS[family], table)


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    """A folder with a model of random bytes and its tokenizer; tests read it and share its programs."""
    path = tmp_path_factory.mktemp("speaker") / "model"
    loaded = made(path, "gpt2")
    return loaded, bytewise(path)


def greedy(call, prompt: list[int], *source: np.ndarray) -> list[int]:
    """Eight tokens, each by a pass over the whole sequence."""
    tokens = list(prompt)
    for _ in range(8):
        padded = np.zeros((1, 13), np.int32)
        padded[0, : len(tokens)] = tokens
        tokens.append(int(np.argmax(np.asarray(call(*source, padded))[0, len(tokens) - 1])))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("family", slow_except(FAMILIES, "gpt2"))
def test_a_batch_says_what_the_full_forward_pass_says_of_each_prompt(tmp_path, family):
    """Absolute positions, RoPE, RoPE with a window, ALiBi and T5's bias. Logits that are NaN are an error."""
    loaded = made(tmp_path, family)
    call = jax.jit(lambda *tokens: loaded.model(*tokens))
    alone = lambda one: greedy(call, [0], np.array([one])) if family == "t5" else greedy(call, one)
    expected = [alone(one) for one in PROMPTS]
    assert expected[0] != expected[1], "a model that always says the same would prove nothing"
    assert complete_batch(loaded, PROMPTS, 8) == expected
    values = parameters(loaded.model)
    values["embedding", "table"] = values["embedding", "table"] * np.float32(np.nan)
    with pytest.raises(ModelError, match="logits are NaN"):
        complete_batch(dataclasses.replace(loaded, model=with_parameters(loaded.model, values)), PROMPTS, 8)


def test_draws_of_a_prompt_depend_on_its_seed_alone(speaker):
    """Prompt i draws with the seed + i, and 0 comes after the last seed."""
    draw = lambda prompts, seed: complete_batch(speaker[0], prompts, 8, **DRAWN, seed=seed)
    both, turned = draw(PROMPTS, 2**32 - 1), PROMPTS[::-1]
    assert draw(turned, 0)[0] == both[1]
    assert draw(turned, 2**32 - 2)[1] == both[0]
    assert draw(PROMPTS, 3) != both


def test_rows_end_at_their_own_end_tokens(speaker, tmp_path):
    loaded, _ = speaker
    complete = lambda loaded, stop=(): complete_batch(loaded, PROMPTS, 8, **DRAWN, stop=stop)
    free = complete(loaded)
    cut = lambda stop: [row[: next((i for i, token in enumerate(row) if token in stop), 8)] for row in free]
    stop = (free[0][2], free[1][5])
    assert len({8, *map(len, cut(stop))}) == 3
    assert complete(loaded, stop) == cut(stop)
    declared = dataclasses.replace(loaded, json={**loaded.json, "eos_token_id": [10**6, stop[0]]})
    assert stop_tokens(declared) == [stop[0]]
    assert stop_tokens(unread("gpt2", eos_token_id=0)) == [0]
    assert complete(declared, stop[1:]) == cut(stop)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(stop)}))
    assert complete(dataclasses.replace(declared, folder=tmp_path)) == cut(stop)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "at least one prompt"),
        ([[1], []], "prompt 2 has no tokens"),
        ([[1], [2, 258]], r"token 258 .*0\.\.257"),
        ([[1], list(range(8)) * 8], r"positions 0\.\.63, got positions 0\.\.65"),
    ],
)
def test_prompts_that_are_refused(speaker, prompts, message):
    with pytest.raises(ValueError, match=message):
        complete_batch(speaker[0], prompts, 3)


def test_models_that_are_refused():
    found = unread("gpt2")
    encoder = nnx.eval_shape(lambda: Encoder(found.spec.config, rngs=nnx.Rngs(0)))
    with pytest.raises(ModelError, match="gpt2 "):
        complete_batch(dataclasses.replace(found, model=encoder), PROMPTS, 2)
    with pytest.raises(ModelError, match="decoder_start_token_id"):
        complete_batch(unread("t5", decoder_start_token_id=None), PROMPTS, 2)
    for value in ("3", -1, 1.5, [True], {"a": 1}):
        with pytest.raises(ModelError, match="eos_token_id "):
            stop_tokens(dataclasses.replace(found, json={"eos_token_id": value}))


# Text ----------------------------------------------------------------------------------------------------------------


def bytewise(folder):
    """A byte-level tokenizer with 256 tokens of a byte, and a token of three: " th"."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, "Ġt", "Ġth"]
    merges = [("Ġ", "t"), ("Ġt", "h")]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({word: i for i, word in enumerate(words)}, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def fallback(folder):
    """A tokenizer as Llama's: words with the space before them, and tokens of bytes for all else."""
    words = {"<unk>": 0, **{f"<0x{i:02X}>": i + 1 for i in range(256)}, "▁a": 257, "▁b": 258}
    pieces = {"type": "BPE", "vocab": words, "merges": [], "byte_fallback": True, "unk_token": "<unk>"}
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    text = {"version": "1.0", "added_tokens": [], "model": pieces}
    text |= {"decoder": {"type": "Sequence", "decoders": decoders}}
    (folder / "tokenizer.json").write_text(json.dumps(text))
    return load_tokenizer(folder)


KINDS = {"bytewise": bytewise, "fallback": fallback}
TEXT = "né 你好! 😀 the end, the end."


def continued(monkeypatch, tokenizer, prompt, tokens, stops=()):
    """The text of a model that goes on with these tokens."""
    monkeypatch.setattr(completion, "complete_batch", lambda *_: [tokens])
    (text,) = complete_texts(unread("gpt2"), tokenizer, prompt, len(tokens), stop_strings=stops)
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_and_text_are_the_text_of_all_tokens(monkeypatch, tmp_path, kind):
    tokenizer = KINDS[kind](tmp_path)
    for prompt in ("n", "né 你", "né 你好! 😀 th"):
        tokens = tokenizer.encode(TEXT)[len(tokenizer.encode(prompt)) :]
        assert (
            continued(monkeypatch, tokenizer, prompt, tokens) == tokenizer.decode(tokenizer.encode(TEXT))[len(prompt) :]
        )
    if kind == "fallback":
        # A run of bytes is decoded as a whole: the broken one behind the prompt changes its last character.
        assert continued(monkeypatch, tokenizer, "你", [0xE4 + 1]) == "\N{REPLACEMENT CHARACTER}" * 4


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (["the e"], "né 你好! 😀 "),  # spans tokens
        (["h"], "né 你好! 😀 t"),  # ends a token
        (["t"], "né 你好! 😀 "),  # ends within a token, and begins there
        (["end.", "nd,"], "né 你好! 😀 the e"),
        (["好"], "né 你"),
        (["xyz", "the end!"], TEXT),  # neither
        (["né"], TEXT),  # in the prompt
        ([".."], TEXT),
    ],
)
def test_the_text_is_cut_before_the_first_stop_string(monkeypatch, tmp_path, stops, expected):
    tokenizer = bytewise(tmp_path)
    assert "né" + continued(monkeypatch, tokenizer, "né", tokenizer.encode(TEXT)[3:], stops) == expected


START = "né 你好"
RULE = {"temperature": 40.0, "min_p": 0.001, "seed": 3}
OPTIONS = ["--temperature", "40", "--min-p", "0.001", "--seed", "3", "--tokens", "21"]


@pytest.fixture(scope="module")
def said(speaker):
    """What follows the prompt, by its tokens."""
    loaded, tokenizer = speaker
    prompt = tokenizer.encode(START)
    (tokens,) = complete_batch(loaded, [prompt], 21, **RULE)
    return tokenizer.decode([*prompt, *tokens])[len(START) :]


def test_texts_that_are_refused(speaker):
    refused = {"stop string .*''": {"stop_strings": [""]}, "steps .* got 0": {"tokens": 0}}
    refused |= {"prompt 1 has no tokens": {"prompts": ""}}
    for message, wrong in refused.items():
        with pytest.raises(ValueError, match=message):
            complete_texts(*speaker, **{"prompts": "a", "tokens": 3, **wrong})


def test_a_string_is_one_prompt_and_one_stop_string(speaker, said):
    stop = said[2:4]
    assert complete_texts(*speaker, START, 21, **RULE, stop_strings=stop) == [said[: said.find(stop)]]
    assert complete_texts(*speaker, [START], 21, **RULE, stop_strings=[stop]) == [said[: said.find(stop)]]


def test_a_prompt_that_goes_on_has_no_end_token_and_a_source_has_one(monkeypatch, tmp_path):
    tokenizer = test_tokens.written(tmp_path, "[S] $A [E]")
    seen = []
    monkeypatch.setattr(completion, "complete_batch", lambda loaded, prompts, *_: [*map(seen.append, prompts)] and [[]])
    for family in ("gpt2", "t5"):
        complete_texts(unread(family), tokenizer, "the dog", 1)
    assert seen == [[0, 2, 3], [0, 2, 3, 6]]


# The command ---------------------------------------------------------------------------------------------------------


def test_the_command_with_token_ids(speaker, monkeypatch, capsys):
    found, _ = speaker
    expected = complete_batch(found, PROMPTS, 8, **DRAWN, seed=7)
    drawn = ["--ids", "--tokens", "8", "--temperature", "9", "--top-p", "0.95", "--seed", "7"]
    monkeypatch.setattr("sys.stdin", io.StringIO("9 2\n3 1,4 1 5\n"))
    for prompts in (["9 2", "3 1 4 1 5"], ["-"]):
        assert main([str(found.folder), *prompts, *drawn]) == 0
        output = capsys.readouterr()
        assert [[int(token) for token in line.split()] for line in output.out.splitlines()] == expected
        assert output.err.endswith(" s, with compilation\n")


def test_the_command_with_text(speaker, said, capsys):
    path = str(speaker[0].folder)
    assert main([path, START, *OPTIONS]) == 0
    assert capsys.readouterr().out == printable(START + said) + "\n"
    stop = said[2:4]
    assert main([path, START, *OPTIONS, "--stop", stop]) == 0
    assert capsys.readouterr().out == printable(START + said[: said.find(stop)]) + "\n"
    assert printable("a\x1b[31m\tb\n") == "a\ufffd[31m\tb\n"
    mistakes = {"'hello'": ["--ids", "hello"], "token 999": ["--ids", "9" * 30]}
    for message, wrong in (mistakes | {"stop string": ["--stop", "", "a"]}).items():
        assert main([path, *wrong]) == 2
        assert re.fullmatch(f"attnjax.models: error: .*{message}.*\n", capsys.readouterr().err)
