"""Scores against the authors' numbers, and what the suite says of a model; `test_planted_texts.py` has the suite's scores."""

import json

import numpy as np
import pytest
from flax import nnx

from attnjax.long import scoring, suite
from attnjax.long.fitting import Setting, samples
from attnjax.long.subjects import Subject, of_decoder
from attnjax.modules import Decoder, TransformerConfig
from attnjax.positions import DynamicNTK, FoX, Learned, LongRoPE, PaTH, RoPE, SelectiveRoPE, SSMax, compose
from tests import golden_arrays
from tests.long.planted import WHOLE, reader


def reads_all(table):
    """The model of the golden arrays: logits are the sum of the rows of a table for all tokens read."""

    def losses(tokens):
        logits = np.cumsum(np.eye(len(table))[tokens] @ table, axis=1)[:, :-1]
        logits = logits - logits.max(-1, keepdims=True)
        picked = np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return np.log(np.exp(logits).sum(-1)) - picked

    return losses


def test_long_ppl_is_that_of_the_authors():
    golden = golden_arrays.load("long")
    tokens, (judged, judge) = golden["longppl_tokens"], golden["longppl_tables"]
    full = lambda table: np.append(np.nan, reads_all(table)(tokens[None])[0])
    short = scoring.short_losses(reads_all(judge), tokens, context=20, stride=8)
    key = scoring.key_tokens(full(judge), short)
    np.testing.assert_array_equal(np.flatnonzero(key), golden["longppl_key"])
    expected, count, ppl = golden["longppl_numbers"]
    assert key.sum() == count > 3
    assert scoring.long_ppl(full(judged), key) == pytest.approx(expected, rel=1e-5)
    assert np.exp(np.nanmean(full(judged))) == pytest.approx(ppl, rel=1e-5)
    assert scoring.long_ppl(full(judged), key & False) is None


def test_string_match_is_that_of_the_authors():
    told, answers, expected = json.loads((golden_arrays.GOLDEN / "long.json").read_text())["string_match_all"]
    assert scoring.string_match_all(told, answers) == expected == 55.56


def test_effective_length_is_the_last_at_or_above_the_threshold():
    assert scoring.effective_length({4096: 85.6, 1024: 90.0, 8192: 85.5}) == 4096
    assert scoring.effective_length({4096: 85.59}) is None


def test_the_likeliest_candidate_is_counted_per_byte_and_after_the_prompt():
    table = np.zeros((4, 4))
    table[1, 2] = 3.0  # after token 1 comes token 2
    losses = scoring.by_rows(reads_all(table))
    assert scoring.best_candidate(losses, [1], [[1, 0], [1, 2], [1, 3]], [1, 1, 1], 8) == 1
    # Two bytes that cost twice as much as one are as likely per byte; a bit more, and they lose.
    assert scoring.best_candidate(losses, [1], [[1, 0], [1, 0, 0]], [1, 3], 8) == 1
    assert scoring.best_candidate(losses, [0], [[0, 1], [0, 2]], [1, 1], 8) == -1  # a tie is no knowledge
    assert scoring.best_candidate(lambda prompt, told, size: [[np.nan]], [1], [[1, 0]], [1], 8) == -1
    # A tokenizer merged the end of the prompt with the answers: all that follows what is shared is the answer's.
    assert scoring.best_candidate(losses, [1, 0], [[1, 3], [1, 2]], [1, 1], 8) == 1
    with pytest.raises(ValueError, match="an answer and its prompt have 9 tokens, and at most 8 are allowed"):
        scoring.best_candidate(losses, [1], [[1] * 9], [1], 8)


def test_what_does_not_fit_is_said_and_has_no_score():
    found = suite.evaluate(reader(WHOLE), (600, 1024), ("niah_single_1", "niah_multikey_3"), number=2)
    table = suite.table("planted", found)
    assert "| UUID among UUIDs | - | 100.0 / 100.0 |" in table
    assert "| mean of all tasks | - | 100.0 / 100.0 |" in table
    assert "a length of 600 is too small." in table
    assert "1,024 by generation, 1,024 by ranking" in table
    with pytest.raises(ValueError, match="evaluate: task must be one of niah_single_1"):
        suite.evaluate(reader(9), (600,), ("qa",))


@pytest.fixture(scope="module")
def decoder():
    config = TransformerConfig(vocab=256, model=16, layers=1, heads=2, hidden=32)
    model = Decoder(config, rngs=nnx.Rngs(0))
    text = lambda row: bytes(row).decode("latin")
    return of_decoder("tiny", model, lambda text: list(text.encode()), text, bytewise=True)


def test_a_decoder_is_measured_by_generation_and_ranking(decoder):
    (one,) = samples("niah_single_1", Setting(500, 8, len), 1)
    prompt = decoder.encode(one.prompt + one.prefix)
    alone, padded = (decoder.complete([prompt], size, 8) for size in (len(prompt), 500))
    np.testing.assert_array_equal(alone, padded)
    losses = decoder.losses(np.array([prompt + [0] * 5]))[0]
    assert losses.shape == (len(prompt) + 4,)
    np.testing.assert_allclose(losses[: len(prompt) - 1], decoder.losses(np.array([prompt]))[0], rtol=2e-5)
    assert 4 < losses.mean() < 8
    (score,) = suite.evaluate(decoder, (500,), ("niah_single_1",), number=2)
    assert score.generation == 0


def test_a_ranking_asks_a_model_of_endings_where_there_is_one():
    """It reads no padding, which encodings that depend on the length would see."""

    def endings(prompt, told, size):
        return [np.full(len(one), 1.0 if i else 0.5) for i, one in enumerate(told)]

    def losses(tokens):
        raise AssertionError("whole rows were asked for")

    encode = lambda text: list(text.encode())
    subject = Subject("planted", encode, bytes, losses, None, endings=endings, bytewise=True)
    setting = Setting(1024, 32, len)
    assert suite.ranking(subject, samples("niah_single_1", setting, 3), setting) == 100.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "options"),
    [
        (RoPE(), {}),
        (RoPE(), {"window": 9, "window_first": 2}),
        (RoPE(), {"scan_layers": True}),
        (Learned(160), {}),
        (FoX(), {}),
        (PaTH(), {}),
        (SelectiveRoPE(), {}),
        (compose(SSMax(), FoX()), {}),
    ],
    ids=["rope", "window", "scanned", "learned", "fox", "path", "selective_rope", "ssmax_fox"],
)
def test_endings_of_a_prompt_that_is_read_once_cost_what_whole_rows_do(encoding, options):
    """Endings of several lengths, one of them empty; the prompt is padded to 256 tokens, or to the longest that are allowed."""
    config = TransformerConfig(vocab=50, model=16, layers=2, heads=2, hidden=32, encoding=encoding, **options)
    subject = of_decoder("tiny", Decoder(config, rngs=nnx.Rngs(0)), list, str)
    draw = np.random.default_rng(0).integers
    prompt, told = draw(50, size=137).tolist(), [draw(50, size=n).tolist() for n in (3, 17, 0, 1)]
    for size in (154, 160):
        ours, rows = subject.endings(prompt, told, size), scoring.by_rows(subject.losses)(prompt, told, size)
        assert [len(one) for one in ours] == [3, 17, 0, 1]
        for one, other in zip(ours, rows, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scaling", [DynamicNTK(4.0, 16), LongRoPE((1.0,) * 4, (3.0,) * 4, 42)], ids=["ntk", "longrope"]
)
def test_an_ending_costs_the_same_beside_a_longer_one(scaling):
    """Under encodings that depend on the length, of which padding is no part; 42 tokens lie between the two lengths."""
    config = {"vocab": 50, "model": 16, "layers": 1, "heads": 2, "hidden": 32, "embed_std": 1.0, "kernel_std": 0.3}
    config = TransformerConfig(**config, encoding=RoPE(scaling=scaling))
    subject = of_decoder("tiny", Decoder(config, rngs=nnx.Rngs(0)), list, str)
    draw = np.random.default_rng(0).integers
    prompt, short, long = (draw(50, size=n).tolist() for n in (40, 2, 20))
    (alone,) = subject.endings(prompt, [short], 64)
    for told, size in (([short, long], 64), ([long, short[:1], short], 64), ([short], 160)):
        found = dict(zip(map(len, told), subject.endings(prompt, told, size), strict=True))[2]
        np.testing.assert_allclose(found, alone, rtol=2e-5, atol=2e-5)
    whole = subject.losses(np.array([prompt + short], np.int32))[0, 40:]
    np.testing.assert_allclose(alone[1:], whole, rtol=2e-5, atol=2e-5)
    padded = scoring.by_rows(subject.losses)(prompt, [short], 64)[0]
    assert np.abs(padded - alone).max() > 1e-3, "what the docstring of by_rows says"


def test_long_ppl_reads_the_first_windows_with_an_eighth_as_context():
    """Token by token: a quarter of the short context shares it, and the model is its own judge."""
    draw = np.random.default_rng(0)
    length, size = 64, 5 * 64
    tokens = np.where(draw.random(size) < 0.7, 0, draw.integers(64, size=size))
    losses = reads_all(0.15 * np.eye(64))  # the more often a token was read, the likelier it is
    costs = []
    for window in tokens[: 4 * length].reshape(4, length):
        full = losses(window[None])[0]
        for t in range(8, length):
            begin = (t - 8) // 2 * 2
            short = losses(window[None, begin : t + 1])[0][-1]
            costs += [full[t - 1]] if short - full[t - 1] > 2 and full[t - 1] < 2 else []
    found = suite.text_long_ppl(Subject("planted", list, str, losses, None), tokens.tolist(), length)
    assert len(costs) > 20
    assert found["key_tokens"] == pytest.approx(len(costs) / (4 * length))
    assert found["long_ppl"] == pytest.approx(np.exp(np.mean(costs)))


def test_long_ppl_of_a_text():
    """A model that finds a token cheap where all 64 are in the window and dear where only 8 to 9 are: all others are key."""
    losses = lambda tokens: np.where(tokens.shape[1] > 60, 0.5, 3.0) * np.ones((len(tokens), tokens.shape[1] - 1))
    model = Subject("planted", list, str, losses, None)
    found = suite.text_long_ppl(model, list(range(400)), 64)
    read = lambda count, whole: {"windows_read": count, "windows": whole}
    assert found == {"long_ppl": pytest.approx(np.exp(0.5)), "key_tokens": pytest.approx(56 / 64), **read(4, 6)}
    assert suite.text_long_ppl(model, [1] * 63, 64) == {"long_ppl": None, "key_tokens": None, **read(0, 0)}
    assert suite.text_long_ppl(model, [1] * 63, 4) == {"long_ppl": None, "key_tokens": None, **read(0, 15)}
    short = suite.text_long_ppl(model, list(range(150)), 64)
    assert (short["windows_read"], short["windows"]) == (2, 2)
