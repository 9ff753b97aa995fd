"""The comparison with transformers: what is compared, how differences are counted, and what is said without the library.

The numbers of transformers themselves are compared where torch and transformers are installed.
"""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest

from attnjax.attention import Mask
from attnjax.models.base import with_fields
from attnjax.models.loading import load
from attnjax.models.param_paths import parameters, with_parameters
from attnjax.models.saving import save
from attnjax.positions import DynamicNTK, RoPE
from experiments.parity import comparing
from experiments.parity.__main__ import main, told
from experiments.parity.comparing import Difference, cached, difference, differences, ours
from experiments.parity.inputs import by_length, draw
from experiments.parity.peer import Numbers
from tests.models.toys import TENSORS, TOYS, folder

pytestmark = pytest.mark.slow


@pytest.fixture
def plain(tmp_path):
    return load(folder(tmp_path / "model", "plain", TENSORS["plain"]()), models=TOYS)


def cross_entropy(logits, inputs) -> float:
    """Of the next token where neither is padding, in double precision."""
    shares = np.exp(np.asarray(logits).astype(np.float64))
    shares /= shares.sum(-1, keepdims=True)
    places = [(b, t) for b, t in np.ndindex(2, 5) if inputs.valid[b, t] and inputs.valid[b, t + 1]]
    return float(-np.mean([np.log(shares[b, t, inputs.tokens[b, t + 1]]) for b, t in places]))


def test_the_loss_is_that_of_the_next_token(plain):
    inputs = draw(plain, 6, seed=1)
    assert inputs.tokens.shape == (2, 6)
    assert inputs.source is None
    assert inputs.valid.tolist() == [[True] * 6, [False] + [True] * 5]
    assert inputs.positions.tolist() == [[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4]]
    assert 0 not in draw(plain, 1000, seed=1).tokens, "padding has no gradient in PyTorch"
    assert set(range(1, 11)) == set(draw(plain, 1000, seed=1).tokens[0].tolist())
    output, loss, gradients = ours(plain, inputs)
    alone = jax.jit(lambda tokens: plain.model(tokens))
    for row, first in ((0, 0), (1, 1)):
        expected = alone(inputs.tokens[row : row + 1, first:])[0]
        np.testing.assert_allclose(output[row, first:], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(cached(plain, inputs)[inputs.valid], output[inputs.valid], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, cross_entropy(output, inputs), rtol=1e-5)
    assert gradients.keys() == TENSORS["plain"]().keys()


def test_gradients_have_the_published_layout(plain, x64):
    inputs = draw(plain, 6, seed=1)
    _, _, gradients = ours(plain, inputs)
    wide = load(plain.folder, dtype="float64", models=TOYS).model
    values, step = parameters(wide), 1e-5
    mask = Mask(k_valid=inputs.valid)
    logits = jax.jit(lambda values: with_parameters(wide, values)(inputs.tokens, mask=mask, pos=inputs.positions))
    for name, place, path, index in (
        ("layers.0.v.weight", (5, 2), ("stack", "blocks", 0, "attention", "w_v"), (2, 1, 1)),
        ("layers.1.o.weight", (3, 6), ("stack", "blocks", 1, "attention", "w_o"), (1, 2, 3)),
        ("head.weight", (4, 5), ("embedding", "w_out"), (5, 4)),
    ):
        moved = [{**values, path: values[path].at[index].add(sign * step)} for sign in (1, -1)]
        up, down = (cross_entropy(logits(one), inputs) for one in moved)
        slope = (up - down) / (2 * step)
        assert abs(slope) > 1e-5
        np.testing.assert_allclose(gradients[name][place], slope, rtol=1e-3, err_msg=name)


def test_no_padding_where_frequencies_depend_on_the_length(plain):
    spec = with_fields(plain.spec, encoding=RoPE(scaling=DynamicNTK(2.0, 4)))
    assert not by_length(plain.spec)
    assert by_length(spec)
    found = dataclasses.replace(plain, spec=spec)
    inputs = draw(found, 8, seed=1)
    assert inputs.valid.all()
    assert cached(found, inputs) is None


def test_rows_of_a_comparison(plain):
    """Padding does not count, names may lack the prefix, and what transformers does not have is an error."""
    inputs = draw(plain, 4, seed=1)
    output, gradients = np.ones((2, 4, 11)), {"a": np.ones(2), "b": np.full(2, 1e-9)}
    other = output.copy()
    other[1, 0] = 5.0
    mine, peer = (
        Numbers(output, np.array(2.0), gradients),
        Numbers(other, np.array(1.0), {**gradients, "b": np.zeros(2)}),
    )
    assert differences(plain, inputs, mine, 2 * output, peer) == [
        Difference("output", 0.0, 0.0),
        Difference("output through caches", 1.0, 1.0),
        Difference("loss", 1.0, 1.0),
        Difference("gradient of a", 0.0, 0.0),
        Difference("gradient of b", 1e-9, 1e-6),
    ]
    with pytest.raises(ValueError, match="the model of transformers has no b$"):
        differences(plain, inputs, mine, None, peer._replace(gradients={"a": np.ones(2)}))


def test_differences_are_relative_to_the_largest_number():
    a, b = np.array([1.0, 2.0], np.float32), np.array([1.0, 4.0], np.float32)
    assert difference("x", a, b) == Difference("x", 2.0, 0.5)
    assert difference("x", a, b, floor=20.0) == Difference("x", 2.0, 0.1)
    assert difference("x", 0 * a, 0 * b) == Difference("x", 0.0, 0.0)
    assert difference("x", a, 0 * b).relative == 1.0
    with pytest.raises(ValueError, match=r"x: ours has shape \(1,\), theirs \(2,\)"):
        difference("x", a[:1], b)


def test_the_table():
    found = [Difference("output", 1e-6, 2e-7), Difference("loss", 0.0, 0.0)]
    found += [Difference(f"gradient of {i}", 1e-6, 1e-6 * i) for i in range(15)]
    lines, failed = told(found, 1e-3)
    assert failed == 0
    assert lines[0].split() == ["largest", "difference", "absolute", "relative"]
    assert lines[1].split() == ["output", "1.0e-06", "2.0e-07"]
    assert lines[3].startswith("gradient of 14 ")
    assert lines[-2:] == ["and 5 gradients with smaller differences", "none of 17 exceed the relative tolerance 0.001"]
    lines, failed = told([*found, Difference("gradient of nan", float("nan"), float("nan"))], 1.2e-5)
    assert failed == 3
    assert lines[3].startswith("gradient of nan")
    assert lines[-1] == "3 of 18 exceed the relative tolerance 1.2e-05"


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_the_libraries(monkeypatch, capsys, missing):
    for name in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, type(sys)(name))
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["anywhere"]) == 2
    expected = f"parity compares with transformers, and {missing} is not installed: pip install torch transformers"
    assert capsys.readouterr().err == f"parity: error: {expected}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "0"], "from 1 to 999999999, got '0'"),
        (["--tolerance", "0"], "must be a number between 0 and 1, got '0'"),
        (["--tolerance", "nan"], "must be a number between 0 and 1, got 'nan'"),
        (["--seed", "x"], "from 0 to 2^32 - 1, got 'x'"),
        (["--dtype", "float16"], "invalid choice: 'float16'"),
    ],
)
def test_mistakes_in_the_command(options, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(["nowhere", *options])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_the_exit_status_is_that_of_the_numbers(monkeypatch, capsys):
    found = [Difference("output", 1e-6, 1e-5), Difference("loss", 0.0, 0.0)]
    monkeypatch.setattr(comparing, "compare", lambda folder, tokens, seed, dtype: found)
    assert main(["model"]) == 0
    assert main(["model", "--tolerance", "1e-6"]) == 1
    assert "1 of 2 exceed the relative tolerance 1e-06" in capsys.readouterr().out


def published(transformers, family: str):
    """A small random model of transformers."""
    small = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    llama = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    llama |= {"num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64}
    t5 = {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    bert = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    t = transformers
    return {
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**small)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**llama)),
        "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(**t5, decoder_start_token_id=0)),
        "bert": lambda: t.BertForMaskedLM(t.BertConfig(**bert)),
    }[family]()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bert"])
def test_the_numbers_of_transformers(tmp_path, capsys, family):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    published(transformers, family).save_pretrained(tmp_path / "theirs")
    assert main([str(tmp_path / "theirs"), "--tokens", "20", "--tolerance", "1e-4"]) == 0
    assert "none of " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bert"])
def test_what_we_save_transformers_loads(tmp_path, family):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = published(transformers, family).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours", shard_bytes=20_000)
    again = type(theirs).from_pretrained(str(tmp_path / "ours")).eval()
    tokens = {"input_ids": torch.arange(20)[None]}
    tokens |= {"decoder_input_ids": torch.arange(5)[None]} if family == "t5" else {}
    with torch.no_grad():
        assert torch.equal(again(**tokens).logits, theirs(**tokens).logits)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == family
