"""Going on with a text: the tokens of the full forward pass, the ends that files declare, and the command."""

import dataclasses
import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.cli import main
from attnjax.cli.generating import _fields, changed, printable
from attnjax.models import folder as folders
from attnjax.models.completion import complete, complete_batch, stop_tokens
from attnjax.models.errors import DamagedFile, ModelError
from attnjax.models.folder import Loaded, load
from attnjax.models.param_paths import parameters, with_parameters
from attnjax.modules import Encoder, EncoderDecoder
from attnjax.positions import ReRoPE, RoPE, StreamingLLM
from tests.models.toys import TENSORS, TOYS, folder, fused_tensors, plain_tensors

pytestmark = pytest.mark.slow

PROMPT = [3, 1, 4]
SEED = {"fused": 0, "plain": 1}


def loaded(path, family="fused", **fields) -> Loaded:
    """Matrices are large, so that what a model says depends on what came before."""
    tensors = {
        name: 6 * value if value.ndim > 1 else value for name, value in TENSORS[family](seed=SEED[family]).items()
    }
    return load(folder(path / "model", family, tensors, **fields), models=TOYS)


def greedy(model, prompt: list[int], *source: np.ndarray) -> list[int]:
    """Eight tokens, each by a pass over the whole sequence."""
    tokens = list(prompt)
    call = jax.jit(lambda *tokens: model(*tokens))
    for _ in range(8):
        padded = np.zeros((1, len(prompt) + 8), np.int32)
        padded[0, : len(tokens)] = tokens
        tokens.append(int(np.argmax(np.asarray(call(*source, padded))[0, len(tokens) - 1])))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("family", TOYS)
def test_greedy_tokens_are_those_of_the_full_forward_pass(tmp_path, family):
    found = loaded(tmp_path, family)
    expected = greedy(found.model, PROMPT)
    assert len(set(expected)) > 2, "a model that always says the same would prove nothing"
    assert complete(found, PROMPT, 8) == expected


@pytest.mark.slow
def test_drawing_depends_on_the_seed_alone(tmp_path):
    found = loaded(tmp_path)
    draws = [complete(found, PROMPT, 8, temperature=30.0, top_k=5, seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_an_end_ends(tmp_path):
    expected = complete(loaded(tmp_path), PROMPT, 8)
    stop = max(expected, key=expected.index)
    cut = expected[: expected.index(stop)]
    assert len(cut) > 1
    assert complete(loaded(tmp_path, eos_token_id=stop), PROMPT, 8) == cut
    found = loaded(tmp_path, eos_token_id=[10**6, stop])
    assert stop_tokens(found) == [stop]
    assert complete(found, PROMPT, 8) == cut
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop]}))
    assert complete(loaded(tmp_path, eos_token_id=10), PROMPT, 8) == cut, "generation_config.json has the last word"


def test_several_ends(tmp_path):
    expected = complete(loaded(tmp_path), PROMPT, 8)
    unused = next(token for token in range(11) if token not in expected)
    stop = max(expected, key=expected.index)
    found = loaded(tmp_path, eos_token_id=[unused, stop])
    assert complete(found, PROMPT, 8) == expected[: expected.index(stop)]


@pytest.mark.parametrize("value", ["3", -1, 1.5, [True], {"a": 1}])
def test_an_end_that_is_none(tmp_path, value):
    with pytest.raises(DamagedFile, match="eos_token_id must be a token or a list of tokens, got"):
        complete(loaded(tmp_path, eos_token_id=value), PROMPT, 2)


def test_what_cannot_be_continued(tmp_path):
    found = loaded(tmp_path, "plain")
    with pytest.raises(ModelError, match="the prompt has no tokens"):
        complete(found, [], 2)
    with pytest.raises(ModelError, match=r"token 11 is not in the model's vocabulary, 0\.\.10"):
        complete(found, [1, 11], 2)
    with pytest.raises(ValueError, match=r"has rows for positions 0\.\.15, got positions 0\.\.21"):
        complete(found, PROMPT, 20)
    encoder = dataclasses.replace(found, model=nnx.eval_shape(lambda: Encoder(found.spec.config, rngs=nnx.Rngs(0))))
    with pytest.raises(ModelError, match="a plain reads text and does not go on with it"):
        complete(encoder, PROMPT, 2)
    values = parameters(found.model)
    values["embedding", "w_out"] = values["embedding", "w_out"] * jnp.nan
    broken = dataclasses.replace(found, model=with_parameters(found.model, values))
    with pytest.raises(ModelError, match="logits are NaN after 0 tokens; a wider dtype"):
        complete(broken, PROMPT, 2)


@pytest.mark.slow
def test_an_encoder_decoder_reads_its_source(tmp_path):
    found = loaded(tmp_path)
    shapes = nnx.eval_shape(lambda: EncoderDecoder(found.spec.config, rngs=nnx.Rngs(0)))
    draw = np.random.default_rng(0)
    values = {path: jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype) for path, leaf in parameters(shapes).items()}
    model = with_parameters(shapes, values)
    pair = dataclasses.replace(found, model=model, json={"decoder_start_token_id": 2})
    assert complete(pair, PROMPT, 8) == greedy(model, [2], np.array([PROMPT]))
    with pytest.raises(DamagedFile, match="must say decoder_start_token_id, a token, got None"):
        complete(found.__class__(model, found.spec, found.architecture), PROMPT, 4)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(folders, "MODELS", TOYS)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    found = loaded(tmp_path)
    path = str(tmp_path / "model")
    assert main(["generate", path, "3 1,4", "--ids", "--tokens", "8"]) == 0
    output = capsys.readouterr()
    assert output.out.split() == [str(token) for token in complete(found, PROMPT, 8)]
    assert output.err.startswith("8 tokens in ")
    drawn = ["generate", path, "3 1 4", "--ids", "--tokens", "8", "--temperature", "30", "--top-k", "5", "--seed", "7"]
    assert main(drawn) == 0
    expected = complete(found, PROMPT, 8, temperature=30.0, top_k=5, seed=7)
    assert capsys.readouterr().out.split() == [str(token) for token in expected]


def test_the_command_with_several_prompts(tmp_path, monkeypatch, capsys):
    """On the command line, and the same in two files; the second draws with the next seed, and so on."""
    monkeypatch.setattr(folders, "MODELS", TOYS)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    found, path = loaded(tmp_path), str(tmp_path / "model")
    files = [tmp_path / name for name in ("one", "two")]
    for file, content in zip(files, (b"3 1 4\n9", b"5\r\n6 7 8\n")):
        file.write_bytes(content)
    drawn = ["--temperature", "30", "--top-p", "0.9", "--min-p", "0.01", "--seed", "7"]
    rule = {"temperature": 30.0, "top_p": 0.9, "min_p": 0.01}
    expected = complete_batch(found, [PROMPT, [9], [5], [6, 7, 8]], 6, **rule, seed=7)
    for prompts in (["3 1 4", "9", "5", "6 7 8"], [*map(str, files), "--from-file"]):
        assert main(["generate", path, *prompts, "--ids", "--tokens", "6", *drawn]) == 0
        assert [[int(token) for token in line.split()] for line in capsys.readouterr().out.splitlines()] == expected
    for content, message in (
        (b"5\n\n6", "line 2 of .* is empty: each line must be a prompt"),
        (b"", "line 1 of .* is empty: each line must be a prompt"),
        (b"5\xff", "is not UTF-8: byte 1 is no part of a character"),
    ):
        files[0].write_bytes(content)
        assert main(["generate", path, "--from-file", "--ids", str(files[0])]) == 2
        assert re.search(message, capsys.readouterr().err)


def test_the_command_with_stop_strings_and_pieces(tmp_path, monkeypatch, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.setattr(folders, "MODELS", TOYS)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    found, path = loaded(tmp_path), str(tmp_path / "model")
    words = [*"abcdefghi", "\x1b[31m", "?"]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[-1]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    free = [words[token] for token in complete(found, PROMPT, 8)]
    at = next(i for i in range(2, 8) if free[i] not in free[:i])
    expected = " ".join(["d b e", *free[:at]]).replace("\x1b", "\ufffd") + " \n"
    command = ["generate", path, "d b e", "--tokens", "8"]
    for more in ([], ["--stream"]):
        assert main([*command, "--stop", free[at], *more]) == 0
        output = capsys.readouterr()
        assert output.out == expected
        assert output.err.startswith(f"{at + 1} tokens in ")
    assert main(["generate", path, "d b e", "a", "--stream"]) == 2
    assert "--stream shows one text, got 2 prompts" in capsys.readouterr().err
    assert main(["generate", path, "d b e", "a", "--tokens", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[2]] == ["--- 1 ---", "--- 2 ---"]
    assert lines[1].startswith("d b e ")
    assert lines[3].startswith("a ")


def test_the_command_with_text(tmp_path, monkeypatch, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.setattr(folders, "MODELS", TOYS)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    found = loaded(tmp_path)
    words = [*"abcdefghi", "\x1b[31m", "?"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[-1])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    assert main(["generate", str(tmp_path / "model"), "d b e", "--tokens", "8"]) == 0
    expected = [words[token] for token in [*PROMPT, *complete(found, PROMPT, 8)]]
    assert capsys.readouterr().out == " ".join(expected).replace("\x1b", "\ufffd") + "\n"


def test_the_command_with_a_trained_tokenizer(tmp_path, monkeypatch, capsys):
    """Pairs of letters that are often together become tokens, as in every byte-pair encoding."""
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.setattr(folders, "MODELS", TOYS)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    found = loaded(tmp_path)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=11, show_progress=False)
    made.train_from_iterator(["abab cab dab ebb fcab"] * 9, trainer)
    assert made.get_vocab_size() == 11
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    prompt = made.encode("cab dab").ids
    assert 2 <= len(prompt) < len("cab dab"), "some pairs are tokens"
    assert main(["generate", str(tmp_path / "model"), "cab dab", "--tokens", "8"]) == 0
    said = capsys.readouterr().out
    assert said == made.decode([*prompt, *complete(found, prompt, 8)]) + "\n"
    assert said.startswith("cab dab")


def test_the_command_with_another_encoding(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(folders, "MODELS", TOYS)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    path = str(folder(tmp_path / "model", "plain", plain_tensors()))
    assert (
        main(["generate", path, "3 1 4", "--ids", "--tokens", "8", "--encoding", "rope", "--option", "theta=50"]) == 0
    )
    output = capsys.readouterr()
    expected = complete(load(path, models=TOYS, fields={"encoding": RoPE(theta=50.0)}), PROMPT, 8)
    assert output.out.split() == [str(token) for token in expected]
    assert output.err.splitlines()[0] == "weights in the files that are not used: positions.weight"


def test_the_command_gives_a_method_the_window_that_it_is_made_for():
    """StreamingLLM of the paper, section 3.2: four first tokens and a window; an encoding without a window changes none."""
    streaming = _fields("streaming_llm", ["window=20"])
    assert streaming == {
        "encoding": StreamingLLM(window=20),
        "window": (20, 0),
        "windows": None,
        "window_first": 4,
    }
    assert _fields("rerope", []) == {"encoding": ReRoPE()}


def test_what_is_new_is_told_in_short():
    names = [f"layer.{i}" for i in range(7)]
    assert changed((), ()) == []
    assert changed(names, ["a"]) == [
        "random parameters, which the files do not have: layer.0, layer.1, layer.2, layer.3, layer.4 and 2 more",
        "weights in the files that are not used: a",
    ]


def test_control_characters_are_not_obeyed():
    assert printable("a\tb\n\x1b[2J\x07\u202e\x7f\x9b é") == "a\tb\n\ufffd[2J\ufffd\ufffd\ufffd\ufffd é"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "0"], "from 1 to 999999999, got '0'"),
        (["--tokens", "many"], "from 1 to 999999999, got 'many'"),
        (["--temperature", "-1"], "must be a number of at least 0, got '-1'"),
        (["--temperature", "nan"], "must be a number of at least 0, got 'nan'"),
        (["--temperature", "inf"], "must be a number of at least 0, got 'inf'"),
        (["--top-k", "0"], "from 1 to 999999999, got '0'"),
        (["--top-p", "0"], "must be a number above 0 and at most 1, got '0'"),
        (["--top-p", "1.5"], "must be a number above 0 and at most 1, got '1.5'"),
        (["--min-p", "nan"], "must be a number above 0 and at most 1, got 'nan'"),
        (["--seed", "-1"], "from 0 to 2^32 - 1, got '-1'"),
        (["--seed", "99999999999999999999"], "from 0 to 2^32 - 1, got '99999999999999999999'"),
        (["--dtype", "floot32"], "did you mean 'float32'"),
        (["--encoding", "alibbi"], "did you mean 'alibi'"),
        (["--bogus"], "unrecognized arguments: --bogus"),
    ],
)
def test_mistakes_in_the_command_exit_with_2(options, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(["generate", "nowhere", "3 1 4", *options])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("hello", ["--ids"], "with --ids the prompt must be token ids such as '464 3290', got 'hello'"),
        ("-3", ["--ids"], "got '-3'"),
        ("9" * 30, ["--ids"], "got '999"),
        ("", ["--ids"], "the prompt has no tokens"),
        ("11", ["--ids"], "token 11 is not in the model's vocabulary, 0..10"),
        ("1", ["--ids", "--top-k", "3"], "top_k=3 needs a temperature above 0"),
        ("1", ["--ids", "--top-k", "30", "--temperature", "1"], "top_k must be at most 11, got 30"),
        ("1", ["--ids", "--top-p", "0.9"], "top_p=0.9 needs a temperature above 0"),
        ("1", ["--ids", "--min-p", "0.1"], "min_p=0.1 needs a temperature above 0"),
        ("1", ["--ids", "--stream"], "--stream is about text, and --ids needs no tokenizer: leave one of them out"),
        ("1", ["--ids", "--stop", "a"], "--stop is about text, and --ids needs no tokenizer: leave one of them out"),
        ("nowhere", ["--ids", "--from-file"], "nowhere cannot be read: No such file or directory"),
        ("a", [], "has no tokenizer.json"),
        ("1", ["--ids", "--option", "theta=5"], "--option needs --encoding NAME"),
        ("1", ["--ids", "--encoding", "rope", "--option", "theta"], "must be KEY=VALUE"),
        ("1", ["--ids", "--encoding", "rope", "--option", "base=5"], "encoding 'rope' has no option 'base'"),
        ("1", ["--ids", "--encoding", "learned"], "encoding 'learned' needs the option 'length'"),
    ],
)
def test_mistakes_of_content_are_one_line_and_2(tmp_path, monkeypatch, capsys, prompt, options, message):
    monkeypatch.setattr(folders, "MODELS", TOYS)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "programs"))
    path = folder(tmp_path / "model", "fused", fused_tensors())
    assert main(["generate", str(path), *options, "--", prompt]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnjax: error: ")
    assert message in error
    assert "Traceback" not in error


def test_a_folder_that_is_none(tmp_path, capsys):
    assert main(["generate", str(tmp_path / "nowhere"), "a"]) == 2
    assert "but it does not exist" in capsys.readouterr().err
    path = folder(tmp_path / "model", "plain", plain_tensors())
    assert main(["generate", str(path), "1", "--ids"]) == 2
    assert "model_type must be one of bert, bloom, gpt2" in capsys.readouterr().err


def test_help_does_not_import_jax():
    code = """
import sys
from attnjax.cli import main
for command in (["generate", "--help"], ["parity", "--help"], ["generate", "nowhere", "x", "--ids"]):
    try:
        main(command)
    except SystemExit:
        pass
print(sorted({"jax", "numpy", "torch", "tokenizers"} & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert "attnjax generate models/gpt2" in done.stdout
