"""Perplexity in windows: by hand with a planted model, the sums of transformers with a tiny GPT-2, texts and their bytes."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.long.perplexity import perplexity, tokens_of, windows
from attnjax.long.subjects import Subject
from attnjax.models import MODELS, load_tokenizer, with_fields
from attnjax.models.param_paths import abstract, parameters, with_parameters
from tests import golden_arrays
from tests.golden import drawn


def context_costs(tokens):
    """A planted model: a token costs as many nats as there are tokens before it in the window."""
    return np.broadcast_to(np.arange(1.0, tokens.shape[1]), (1, tokens.shape[1] - 1))


@pytest.mark.parametrize(
    ("total", "length", "stride", "costs"),
    [
        (4, 8, 4, [1, 2, 3]),  # the text is shorter than a window
        (8, 4, 3, [1, 2, 3, 1, 2, 3, 1]),  # one token of overlap; the last window has two tokens
        (8, 4, 1, [1, 2, 3, 3, 3, 3, 3]),  # full context for all but the first
        (8, 4, 2, [1, 2, 3, 2, 3, 2, 3]),
        (9, 4, 2, [1, 2, 3, 2, 3, 2, 3, 2]),
        (2, 2, 1, [1]),
    ],
)
def test_every_token_but_the_first_counts_once(total, length, stride, costs):
    found = perplexity(context_costs, list(range(total)), 24, length, stride)
    assert (found.nats, found.tokens) == (sum(costs), total - 1)
    assert len(costs) == total - 1
    assert found.nats_per_token == pytest.approx(sum(costs) / len(costs))
    assert found.perplexity == pytest.approx(math.exp(sum(costs) / len(costs)))
    assert found.bits_per_byte == pytest.approx(sum(costs) / math.log(2) / 24)
    assert found.tokens_per_byte == pytest.approx(len(costs) / 24)


@pytest.mark.parametrize("total", range(2, 40))
def test_windows_count_each_token_with_the_context_that_is_promised(total):
    for length, stride in ((2, 1), (5, 2), (8, 7), (16, 8), (64, 32)):
        counted = []
        for begin, end, first in windows(total, length, stride):
            assert begin % stride == 0
            assert begin < first < end <= begin + length
            assert all(token - begin >= length - stride or begin == 0 for token in range(first, end))
            counted += range(first, end)
        assert counted == list(range(1, total))


def test_a_gpt2_has_the_sums_of_transformers(x64):
    golden, kind = golden_arrays.load("perplexity"), MODELS["gpt2"]
    spec = kind.config(json.loads(str(golden["config"])))
    spec = with_fields(spec, dtype="float64", param_dtype="float64")
    name = lambda weight: "transformer." + weight.names[0].removeprefix("transformer.")
    given = {one.path: one.to_ours(drawn.weight(name(one), one.shape)) for one in kind.weights(spec)}
    empty = abstract(kind, spec)
    model = with_parameters(empty, {path: jnp.asarray(given[path], p.dtype) for path, p in parameters(empty).items()})
    call = jax.jit(lambda tokens: jax.nn.log_softmax(model(tokens)))

    def losses(tokens):
        return -np.take_along_axis(np.asarray(call(tokens))[:, :-1], tokens[:, 1:, None], -1)[..., 0]

    for length, stride, nats, count in golden["rows"]:
        found = perplexity(losses, golden["tokens"].tolist(), 61, int(length), int(stride))
        assert found.tokens == count == 60
        assert found.nats == pytest.approx(nats, rel=1e-9)


@pytest.mark.parametrize(
    ("total", "length", "stride", "message"),
    [
        (9, 4, 4, "stride must be below the length of a window, 4, so that the first token of a window is predicted"),
        (9, 4, 0, "perplexity: stride must be at least 1, got 0"),
        (9, 1, None, "perplexity: length must be at least 2, got 1"),
        (1, 4, 2, "a text must have at least 2 tokens, of which the first is given; got 1"),
        (0, 4, 2, "a text must have at least 2 tokens, of which the first is given; got 0"),
    ],
)
def test_mistakes_are_refused(total, length, stride, message):
    with pytest.raises(ValueError, match=message):
        perplexity(context_costs, list(range(total)), 9, length, stride)


def test_losses_that_are_no_numbers_are_refused():
    broken = lambda tokens: np.where(tokens[:, 1:] == 6, np.nan, 1.0)
    with pytest.raises(ValueError, match="the loss of token 6 is not finite; a wider dtype, such as float32, may help"):
        perplexity(broken, list(range(9)), 9, 4, 2)


# Texts ---------------------------------------------------------------------------------------------------------------


def subject(**options):
    return Subject("planted", **{"encode": None, "decode": None, "losses": context_costs, "complete": None, **options})


def test_bytes_are_tokens_for_a_bytewise_model():
    assert tokens_of(subject(bytewise=True), b"\xff\x00a") == ([255, 0, 97], 2)


def test_bytes_before_the_second_token_are_not_counted(tmp_path):
    """Of "né ö né" the first of three words has three bytes; a token that begins every text has none."""
    tokenizers = pytest.importorskip("tokenizers")
    words, unknown = {"[S]": 0, "né": 1, "ö": 2}, "[S]"
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=unknown))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for begins, expected in ((False, ([1, 2, 1], 6)), (True, ([0, 1, 2, 1], 10))):
        if begins:
            made.add_special_tokens(["[S]"])
            made.post_processor = tokenizers.processors.TemplateProcessing("[S] $A", special_tokens=[("[S]", 0)])
        made.save(str(tmp_path / "tokenizer.json"))
        tokenizer = load_tokenizer(tmp_path)
        reader = subject(encode=tokenizer.encode, starts=tokenizer.starts)
        assert tokens_of(reader, "né ö né".encode()) == expected
        assert tokens_of(reader, b"")[1] == 0
    assert tokenizer.starts("né ö né") == [0, 0, 4, 7]
    with pytest.raises(
        ValueError, match="must be UTF-8 for a model with a tokenizer: byte 2 is no part of a character"
    ):
        tokens_of(reader, b"ab\xff")
