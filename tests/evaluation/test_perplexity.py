"""Perplexity in windows by hand and as transformers has it; texts, their bytes and sources."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnjax.evaluation.perplexity import Tokens, perplexity, read_source, tokens_of
from attnjax.evaluation.text_model import TextModel
from attnjax.models import MODELS, load_tokenizer, with_fields
from attnjax.models.param_paths import abstract, parameters, with_parameters
from attnjax.tasks import Text
from attnjax.tasks.text import place
from tests import golden_arrays
from tests.golden import drawn


def context_costs(tokens):
    """A planted model: a token costs as many nats as there are tokens before it in the window."""
    return np.broadcast_to(np.arange(1.0, tokens.shape[1]), (1, tokens.shape[1] - 1))


@pytest.mark.parametrize(
    ("before", "each", "total", "length", "stride", "read", "costs"),
    [
        ([], False, 4, 8, 4, [[0, 1, 2, 3]], [1, 2, 3]),
        # One token of overlap; the last window has two tokens.
        ([], False, 8, 4, 3, [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]], [1, 2, 3, 1, 2, 3, 1]),
        # Full context for all but the first.
        ([], False, 6, 4, 1, [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]], [1, 2, 3, 3, 3]),
        ([], False, 2, 2, 1, [[0, 1]], [1]),
        # Tokens before the text: in the first window alone, or in each, which then has fewer of the text.
        ([9], False, 6, 4, 2, [[9, 0, 1, 2], [1, 2, 3, 4], [3, 4, 5]], [1, 2, 3, 2, 3, 2]),
        ([9], True, 6, 4, 2, [[9, 0, 1, 2], [9, 2, 3, 4], [9, 4, 5]], [1, 2, 3, 2, 3, 2]),
        ([8, 9], False, 6, 5, 4, [[8, 9, 0, 1, 2], [2, 3, 4, 5]], [2, 3, 4, 1, 2, 3]),
        ([8, 9], True, 6, 5, 2, [[8, 9, 0, 1, 2], [8, 9, 2, 3, 4], [8, 9, 4, 5]], [2, 3, 4, 3, 4, 3]),
    ],
)
def test_every_token_but_the_first_counts_once(before, each, total, length, stride, read, costs):
    seen, text = [], Tokens(list(range(total)), 24, before)
    losses = lambda tokens: seen.append(tokens[0].tolist()) or context_costs(tokens)
    found = perplexity(losses, text, length, stride, each_window=each)
    assert seen == read
    assert (found["tokens"], found["bytes"]) == (len(costs), 24)
    assert found["nats_per_token"] == pytest.approx(sum(costs) / len(costs))
    assert found["ppl"] == pytest.approx(math.exp(sum(costs) / len(costs)))
    assert found["bits_per_byte"] == pytest.approx(sum(costs) / math.log(2) / 24)


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
        found = perplexity(losses, Tokens(golden["tokens"].tolist(), 61), int(length), int(stride))
        assert found["tokens"] == count == 60
        assert found["nats_per_token"] * 60 == pytest.approx(nats, rel=1e-9)


@pytest.mark.parametrize(
    ("total", "length", "stride", "message"),
    [
        (9, 4, 4, "stride .*3, got 4"),
        (9, 4, 0, "stride .*1, got 0"),
        (9, 1, None, "length .*2, got 1"),
        (0, 4, 2, "2 tokens.*got 0"),
    ],
)
def test_mistakes_are_refused(total, length, stride, message):
    with pytest.raises(ValueError, match=message):
        perplexity(context_costs, Tokens(list(range(total)), 9), length, stride)


def test_losses_that_are_no_numbers_are_refused():
    broken = lambda tokens: np.where(tokens[:, 1:] == 6, np.nan, 1.0)
    with pytest.raises(ValueError, match="token 6 .*finite.*float32"):
        perplexity(broken, Tokens(list(range(9)), 9), 4, 2)


# Texts and their bytes --------------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_text_whatever_the_tokenizer_puts_around_it_or_says_of_offsets(tmp_path):
    """A normalizer takes spaces away and adds some, so that offsets miss bytes; a token behind the text is not counted."""
    tokenizers = pytest.importorskip("tokenizers")
    words, unknown = {"[S]": 0, "né": 1, "ö": 2, "[E]": 3}, "[S]"
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=unknown))
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Strip(), tokenizers.normalizers.Prepend(" ")]
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["[S]", "[E]"])
    around, text = tokenizers.processors.TemplateProcessing, "  né ö né "
    kinds = {(): "$A", (0,): "[S] $A", (3,): "$A [E]", (0, 3): "[S] $A [E]"}
    for ids, template in kinds.items():
        made.post_processor = around(template, special_tokens=[("[S]", 0), ("[E]", 3)])
        made.save(str(tmp_path / "tokenizer.json"))
        tokenizer = load_tokenizer(tmp_path)
        encode, before = functools.partial(tokenizer.encode, continued=True), tokenizer.before
        assert before == ([0] if 0 in ids else [])
        assert encode("[S] né") == [0, 1], "one token before the text, and none behind it"
        subject = TextModel("", None, encode, tokenizer.decode, before=before)
        # Without a token before the text its first one is not predicted, which has three bytes.
        assert tokens_of(subject, text.encode()) == (
            [1, 2, 1],
            len(text.encode()) - (0 if before else 3),
            tuple(before),
        )
    with pytest.raises(ValueError, match="UTF-8 .*position 2"):
        tokens_of(subject, b"ab\xff")


# Sources ----------------------------------------------------------------------------------------------------------------------

LINES = "".join(f"a line that two files have, number {i}\n" for i in range(9))


def corpus(folder, **options):
    """A folder of 40 files of their own, and of one in the training split and one in the test split that share their lines."""
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"file {i}, " * 50)
    for split in ("train", "test"):
        name = next(f"a{i}.txt" for i in range(99) if place(f"a{i}.txt")[0] == split)
        (folder / name).write_text(LINES)
    (folder / "notes.md").write_text("notes")
    return Text(str(folder), **options)


def test_a_file_is_read_as_a_whole_unless_the_model_was_trained_on_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = bytes(range(200))
    (tmp_path / "a.txt").write_bytes(data)
    own = Text(str(tmp_path / "a.txt"))
    assert read_source("a.txt") == read_source("a.txt", Text("elsewhere")) == (data, "")
    assert read_source("a.txt", own)[0] == data[190:]
    part, said = read_source("stdlib")
    assert "test split" in said
    assert 10**5 < len(part) <= 2**24
    monkeypatch.setattr("attnjax.evaluation.perplexity.MOST", 9)
    assert read_source("stdlib")[0] == part[:9]
    with pytest.raises(ValueError, match="nowhere"):
        read_source("nowhere")


def test_the_text_of_a_run_is_read_in_the_split_of_its_own_options(tmp_path):
    """Files that say the same are placed together, so that the test split by file would have lines of training."""
    for split_by, shared in (("file", True), ("group", False)):
        text = corpus(tmp_path / split_by, split_by=split_by)
        data, _ = read_source(str(tmp_path / split_by), text)
        assert data == text.for_split("test").data.tobytes()
        assert all(LINES.encode() in one for one in (data, text.data.tobytes())) == shared
    one = Text(str(tmp_path / "file"), pattern="1*.txt")
    assert read_source(str(tmp_path / "file"), one)[0] == one.for_split("test").data.tobytes()


def test_parts_of_the_text_of_a_run_by_another_name_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = corpus(tmp_path / "folder", pattern="*.txt")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "7.txt")
    alone, library = Text(str(tmp_path / "folder" / "7.txt")), str(Text().root / "json")
    cases = [(source, text) for source in ("folder/7.txt", "folder/../folder/7.txt", "link", ".")]
    for source, trained_on in [*cases, ("folder", alone), (library, Text())]:
        with pytest.raises(ValueError, match="trained on: name that text"):
            read_source(source, trained_on)
    assert read_source("folder/notes.md", text) == (b"notes", ""), "no file that the pattern takes"
    assert read_source("folder/8.txt", alone)[1] == ""
