"""Continuing a prompt: the tokens of the full forward pass, batches, ends, pieces of text, and the command."""

import dataclasses
import io
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.models import (
    MODELS,
    Loaded,
    ModelError,
    complete_batch,
    complete_texts,
    load,
    load_tokenizer,
    loading,
    stream,
)
from attnjax.models.__main__ import main
from attnjax.models.completion import Continuation, start, stop_tokens
from attnjax.models.param_paths import parameters, with_parameters
from attnjax.modules import Encoder
from tests.cases import slow_except
from tests.models import test_tokens
from tests.models.toys import TENSORS, TOYS, folder

PROMPT = [3, 1, 4]
LONG, SHORT = [3, 1, 4, 1, 5], [9, 2]
DRAWN = {"temperature": 9.0, "top_p": 0.95}
ROPE = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
ROPE |= {"num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
FAMILIES = {
    "gpt2": {"vocab_size": 11, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "llama": ROPE,
    "mistral": {**ROPE, "sliding_window": 3},
    "bloom": {"vocab_size": 11, "hidden_size": 16, "n_layer": 2, "n_head": 2},
    "t5": {
        **{"vocab_size": 11, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 2},
        "decoder_start_token_id": 0,
    },
}
SEED = {"fused": 0, "plain": 1}


def made(family, **fields) -> Loaded:
    """A model of random numbers that are large, so that what it says depends on what came before."""
    json_ = {**FAMILIES[family], **fields}
    kind = MODELS[family]
    spec = kind.config(json_)
    shapes = nnx.eval_shape(lambda: kind.build(spec, nnx.Rngs(0)))
    draw = np.random.default_rng(1)

    def value(name: str, shape: tuple[int, ...]):
        drawn = draw.normal(size=shape)
        return 1 + drawn / 10 if name == "scale" else drawn / 20 if name.startswith("b") else drawn

    values = {
        path: jnp.asarray(value(str(path[-1]), leaf.shape), leaf.dtype) for path, leaf in parameters(shapes).items()
    }
    return Loaded(with_parameters(shapes, values), spec, kind, json=json_)


def toy(path, family="fused", **fields) -> Loaded:
    """The same from a folder."""
    tensors = TENSORS[family](seed=SEED[family])
    large = {name: 6 * value if value.ndim > 1 else value for name, value in tensors.items()}
    return load(folder(path / "model", family, large, **fields), models=TOYS)


def complete(loaded: Loaded, prompt: list[int], tokens: int, **options) -> list[int]:
    return complete_batch(loaded, [prompt], tokens, **options)[0]


def greedy(model, prompt: list[int], *source: np.ndarray) -> list[int]:
    """Eight tokens, each by a pass over the whole sequence."""
    tokens = list(prompt)
    call = jax.jit(lambda *tokens: model(*tokens))
    for _ in range(8):
        padded = np.zeros((1, len(prompt) + 8), np.int32)
        padded[0, : len(tokens)] = tokens
        tokens.append(int(np.argmax(np.asarray(call(*source, padded))[0, len(tokens) - 1])))
    return tokens[len(prompt) :]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_says_what_the_full_forward_pass_says_of_each_prompt(family):
    """Absolute positions, RoPE, RoPE with a window, ALiBi and T5's bias."""
    loaded, prompts = made(family), [SHORT, LONG]
    alone = lambda one: greedy(loaded.model, [0], np.array([one])) if family == "t5" else greedy(loaded.model, one)
    expected = [alone(one) for one in prompts]
    assert expected[0] != expected[1], "a model that always says the same would prove nothing"
    assert complete_batch(loaded, prompts, 8) == expected


def test_draws_of_a_prompt_depend_on_its_seed_alone():
    """With the last seed for the first prompt, the second has 0."""
    loaded = made("llama")
    both = complete_batch(loaded, [SHORT, LONG], 8, **DRAWN, seed=2**32 - 1)
    assert both == [complete(loaded, SHORT, 8, **DRAWN, seed=2**32 - 1), complete(loaded, LONG, 8, **DRAWN)]
    assert complete_batch(loaded, [SHORT, LONG], 8, **DRAWN, seed=3) != both


def test_rows_end_at_their_own_end_tokens(tmp_path):
    loaded, prompts = made("llama"), [SHORT, LONG]
    free = complete_batch(loaded, prompts, 8, **DRAWN)
    cut = lambda stop: [row[: next((i for i, token in enumerate(row) if token in stop), 8)] for row in free]
    stop = next(pair for pair in itertools.combinations(range(11), 2) if len({0, 8, *map(len, cut(pair))}) == 4)
    assert complete_batch(loaded, prompts, 8, **DRAWN, stop=stop) == cut(stop)
    declared = dataclasses.replace(loaded, json={**loaded.json, "eos_token_id": [10**6, stop[0]]})
    assert stop_tokens(declared) == [stop[0]]
    assert complete_batch(declared, prompts, 8, **DRAWN, stop=stop[1:]) == cut(stop)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(stop)}))
    last_word = dataclasses.replace(declared, folder=tmp_path)
    assert complete_batch(last_word, prompts, 8, **DRAWN) == cut(stop)


@pytest.mark.parametrize("value", ["3", -1, 1.5, [True], {"a": 1}])
def test_an_end_token_that_is_none(value):
    with pytest.raises(ModelError, match="eos_token_id must be a token or a list of tokens, got"):
        complete(made("gpt2", eos_token_id=value), PROMPT, 2)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "at least one prompt, got none"),
        ([[]], "the prompt has no tokens"),
        ([[1], []], "prompt 2 has no tokens"),
        ([[1], [2, 11]], r"token 11 is not in .*0\.\.10"),
        ([[1], list(range(8)) * 4], r"positions 0\.\.31, got positions 0\.\.33"),
    ],
)
def test_prompts_that_are_refused(prompts, message):
    with pytest.raises(ValueError, match=message):
        complete_batch(made("gpt2"), prompts, 3)


def test_models_that_are_refused():
    found = made("gpt2", tie_word_embeddings=False)
    encoder = dataclasses.replace(found, model=nnx.eval_shape(lambda: Encoder(found.spec.config, rngs=nnx.Rngs(0))))
    with pytest.raises(ModelError, match="does not go on"):
        complete(encoder, PROMPT, 2)
    with pytest.raises(ModelError, match="decoder_start_token_id"):
        complete(made("t5", decoder_start_token_id=None), PROMPT, 2)
    values = parameters(found.model)
    values["embedding", "w_out"] = values["embedding", "w_out"] * jnp.nan
    broken = dataclasses.replace(found, model=with_parameters(found.model, values))
    with pytest.raises(ModelError, match="NaN after 0 tokens"):
        complete(broken, PROMPT, 2)


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
    text = {
        "version": "1.0",
        "added_tokens": [],
        "model": pieces,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
    (folder / "tokenizer.json").write_text(json.dumps(text))
    return load_tokenizer(folder)


KINDS = {"bytewise": bytewise, "fallback": fallback}
TEXT = "né 你好! 😀 the end, the end."


def grown(tokenizer, prompt, tokens, size, stops=(), ends=False):
    """The pieces when tokens come `size` at a time."""
    row = Continuation(tokenizer, prompt, stops)
    pieces = [row.add(tokens[i : i + size], last=ends and i + size >= len(tokens)) for i in range(0, len(tokens), size)]
    return row, [*pieces, row.finish()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_pieces_are_whole_characters_and_together_the_text(tmp_path, kind, size):
    tokenizer = KINDS[kind](tmp_path)
    tokens = tokenizer.encode(TEXT)
    for cut in (0, 3, 11):
        row, pieces = grown(tokenizer, tokens[:cut] or tokens[:1], tokens[cut or 1 :], size)
        assert row.begin + "".join(pieces) == TEXT
        assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
        assert "".join(pieces) == row.text
    if size == 1 and kind == "bytewise":
        assert len([piece for piece in pieces if piece]) > 15, "text comes as soon as it is settled"


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("stops", "expected", "last"),
    [
        (["the e"], "né 你好! 😀 ", " e"),  # spans tokens
        (["h"], "né 你好! 😀 t", " th"),  # ends a token
        (["t"], "né 你好! 😀 ", " th"),  # ends within a token, and begins there
        (["end.", "nd,"], "né 你好! 😀 the e", ","),
        (["好"], "né 你", "好"),
        (["😀 the en", "the"], "né 你好! 😀 ", "e"),  # that which a token completes first
        (["xyz", "the end!"], TEXT, "."),  # neither: what waited comes at the end
        (["né"], TEXT, "."),  # in the prompt
        ([".."], TEXT, "."),
    ],
)
def test_the_text_is_cut_before_the_first_stop_string(tmp_path, size, stops, expected, last):
    tokenizer = bytewise(tmp_path)
    prompt, tokens = tokenizer.encode("né"), tokenizer.encode(TEXT)[3:]
    row, pieces = grown(tokenizer, prompt, tokens, size, stops)
    assert "né" + "".join(pieces) == expected
    assert tokenizer.decode(row.tokens).endswith(last)
    assert (len(row.tokens) < len(tokens)) == (expected != TEXT)
    assert row.add(tokens) == row.finish() == ""


def test_a_tokenizer_that_takes_text_back_is_refused():
    """Decoded text gets a closing bracket, which the next token moves."""

    class Brackets:
        def settled(self, tokens):
            return f"({len(tokens)})"

        decode = settled

    row = Continuation(Brackets(), [])
    with pytest.raises(ModelError, match="writes the prompt differently when tokens follow: use token ids instead"):
        row.add([1])
    row = Continuation(Brackets(), [], target=False)
    row.begin = ""
    row.add([1])
    with pytest.raises(ModelError, match="changes text that was settled when tokens follow: use token ids instead"):
        row.add([1])


@pytest.fixture(scope="module")
def speaker(tmp_path_factory):
    """A model of random bytes with its tokenizer."""
    return made("gpt2", vocab_size=258, n_positions=64), bytewise(tmp_path_factory.mktemp("tokenizer"))


PROMPTS = ["né 你好", "a", "Once upon a time, the"]
RULE = {"temperature": 40.0, "min_p": 0.001, "seed": 3}


@pytest.mark.slow
def test_texts_are_those_of_the_tokens(speaker):
    loaded, tokenizer = speaker
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    expected = [tokenizer.decode([*a, *b]) for a, b in zip(ids, complete_batch(loaded, ids, 21, **RULE))]
    found = complete_texts(loaded, tokenizer, PROMPTS, 21, **RULE)
    assert [a + b for a, b in zip(PROMPTS, found)] == expected
    assert len({*found}) == 3


@pytest.mark.parametrize("chunk", slow_except([1, 4, 30], 4))
def test_streamed_text_is_the_text(speaker, chunk):
    loaded, tokenizer = speaker
    pieces = list(stream(loaded, tokenizer, PROMPTS[0], 21, **RULE, chunk=chunk))
    assert "".join(pieces) == complete_texts(loaded, tokenizer, PROMPTS[:1], 21, **RULE)[0]
    assert all(pieces)
    assert (len(pieces) > 4) == (chunk < 30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_strings": [""]}, "a stop string must be a text with at least one character, got ''"),
        ({"stop_strings": [3]}, "a stop string must be a text with at least one character, got 3"),
        ({"tokens": 0}, "stream: tokens must be at least 1, got 0"),
        ({"chunk": 0}, "stream: chunk must be at least 1, got 0"),
        ({"prompt": ""}, "the prompt has no tokens"),
        ({"top_p": 0.5}, "top_p=0.5 needs a temperature above 0"),
    ],
)
def test_mistakes_are_refused(speaker, options, message):
    with pytest.raises(ValueError, match=message):
        list(stream(*speaker, **{"prompt": "a", "tokens": 3, **options}))


def test_a_string_is_one_prompt_and_one_stop_string(speaker):
    free = complete_texts(*speaker, "a", 5, **RULE)
    assert free == complete_texts(*speaker, ["a"], 5, **RULE)
    stop = free[0][1:3]
    assert complete_texts(*speaker, "a", 5, **RULE, stop_strings=stop) == [free[0][: free[0].find(stop)]]


def test_a_prompt_that_goes_on_has_no_end_token_and_a_source_has_one(tmp_path):
    tokenizer = test_tokens.written(tmp_path, "[S] $A [E]")
    prompt = lambda family: start(made(family), tokenizer, "the dog")[0].prompt
    assert (prompt("gpt2"), prompt("t5")) == ([0, 2, 3], [0, 2, 3, 6])


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def spoken(tmp_path, monkeypatch):
    """A folder of a model with a tokenizer of letters, one of which is a control sequence."""
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.setattr(loading, "MODELS", TOYS)
    words = [*"abcdefghi", "\x1b[31m", "?"]
    found = toy(tmp_path)
    one = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[-1]))
    one.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    one.save(str(found.folder / "tokenizer.json"))
    return found, words


def test_the_command_with_token_ids(spoken, monkeypatch, capsys):
    found, _ = spoken
    expected = complete_batch(found, [PROMPT, [9]], 6, temperature=30.0, top_p=0.9, min_p=0.01, seed=7)
    drawn = ["--ids", "--tokens", "6", "--temperature", "30", "--top-p", "0.9", "--min-p", "0.01", "--seed", "7"]
    monkeypatch.setattr("sys.stdin", io.StringIO("3 1,4\n9\n"))
    for prompts in (["3 1 4", "9"], ["-"]):
        assert main([str(found.folder), *prompts, *drawn]) == 0
        output = capsys.readouterr()
        assert [[int(token) for token in line.split()] for line in output.out.splitlines()] == expected
        assert output.err.startswith("12 tokens in ")


def test_the_command_with_text(spoken, capsys):
    found, words = spoken
    free = [words[token] for token in complete(found, PROMPT, 8)]
    shown = lambda made: " ".join(["d b e", *made]).replace("\x1b", "\ufffd")
    command = [str(found.folder), "d b e", "--tokens", "8"]
    assert main(command) == 0
    assert capsys.readouterr().out == shown(free) + "\n"
    at = next(i for i in range(2, 8) if free[i] not in free[:i])
    for more in ([], ["--stream"]):
        assert main([*command, "--stop", free[at], *more]) == 0
        output = capsys.readouterr()
        assert output.out == shown(free[:at]) + " \n"
        assert output.err.startswith(f"{at + 1} tokens in ")
    assert main([*command, "a"]) == 0
    first, second = capsys.readouterr().out.split("---\n")
    assert first == shown(free) + "\n"
    assert second.startswith("a ")


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("hello", ["--ids"], "got 'hello'"),
        ("9" * 30, ["--ids"], "got '999"),
        ("", ["--ids"], "the prompt has no tokens"),
        ("11", ["--ids"], "token 11"),
        ("1", ["--ids", "--tokens", "0"], "at least 1, got 0"),
        ("1", ["--ids", "--temperature", "nan"], "temperature"),
        ("1", ["--ids", "--top-k", "3"], "top_k=3 needs a temperature above 0"),
        ("1", ["--ids", "--top-p", "1.5", "--temperature", "1"], "top_p must be at most 1, got 1.5"),
        ("1", ["--ids", "--stream"], "--stream"),
        ("a", ["--stop", ""], "stop string"),
    ],
)
def test_a_mistake_is_one_sentence_and_2(spoken, capsys, prompt, options, message):
    found, _ = spoken
    assert main([str(found.folder), *options, "--", prompt]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnjax.models: error: ")
    assert message in error
    assert error.count("\n") == 1
