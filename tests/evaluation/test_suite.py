"""The suite "long": planted readers, the scores of its authors, and a decoder by generation and ranking."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from attnjax.evaluation import LoadedModel, suite
from attnjax.evaluation.samples import Setting, samples
from attnjax.evaluation.text_model import TextModel, Trained, read_past
from attnjax.modules import TransformerConfig
from attnjax.positions import DynamicNTK, FoX, Learned, LongRoPE, PaTH, RoPE, SelectiveRoPE, SSMax, YaRN, compose
from attnjax.registry import SUITES
from tests import golden_arrays
from tests.cases import slow_except
from tests.evaluation.planted import WHOLE, Reader
from tests.evaluation.planted_heads import drawn

WINDOWS = {"niah_single_1": 900, "niah_multikey_2": 900, "niah_multikey_3": 1500, "vt": 2500, "cwe": 2500, "fwe": 1500}
"""Bytes that a local model sees, a few more than a text has at which it must still score everything."""
FAR = 12_000
"""Bytes of a text of which it sees a fifth at most."""


def scores(window, task, length, number=4):
    (found,) = suite.evaluate(Reader(window), (length,), (task,), number=number)
    return found["generation"], found["ranking"]


@pytest.mark.parametrize("task", WINDOWS)
def test_who_reads_everything_scores_everything_and_who_reads_the_end_fails_beyond_it(task):
    """Guessing among five answers is right in 20 %; an answer of several words may hold some of them."""
    assert set(WINDOWS) == set(SUITES["long"])
    window = WINDOWS[task]
    assert scores(WHOLE, task, FAR) == scores(window, task, window - 50) == (100, 100)
    generation, ranking = scores(window, task, FAR, 8)
    assert generation < 50
    assert ranking < 60


def test_effective_length_ends_with_the_window():
    found = suite.evaluate(Reader(900), (700, 3000), ("niah_single_1", "niah_multikey_2"), number=8)
    for kind in ("generation", "ranking"):
        mean = suite.averages(found, kind)
        assert (mean[700], suite.effective_length(mean)) == (100, 700)
        assert mean[3000] < 70
    assert suite.effective_length({4096: 85.6, 1024: 90.0, 8192: 85.5}) == 4096
    assert suite.effective_length({4096: 85.59}) is None


def test_what_does_not_fit_has_its_reason_in_place_of_a_score():
    short, long = suite.evaluate(Reader(WHOLE), (600, 1024), ("niah_multikey_3",), number=2)
    assert long == {"task": "niah_multikey_3", "length": 1024, "samples": 2, "generation": 100.0, "ranking": 100.0}
    assert "a length of 600" in short["problem"]
    assert "generation" not in short
    assert suite.averages([short, long], "generation") == {1024: 100.0}
    with pytest.raises(ValueError, match="task .*niah_single_1.*qa"):
        suite.evaluate(Reader(9), (600,), ("qa",))


def test_string_match_is_that_of_the_authors():
    told, answers, expected = json.loads((golden_arrays.GOLDEN / "long.json").read_text())["string_match_all"]
    assert suite.string_match_all(told, answers) == expected == 55.56


def test_the_likeliest_candidate_is_counted_per_byte_and_after_the_prompt():
    costs = {0: np.log(4), 1: np.log(4), 2: 0.1, 3: np.log(4)}
    after_1 = lambda prompt, told, size: [np.array([costs[t] if prompt[-1] == 1 else 1.0 for t in one]) for one in told]
    best = lambda *arguments, endings=after_1: suite.best_candidate(SimpleNamespace(endings=endings), *arguments)
    assert best([1], [[1, 0], [1, 2], [1, 3]], [1, 1, 1], 8) == 1
    # Two bytes that cost twice as much as one are as likely per byte; a bit more bytes, and they win.
    assert best([1], [[1, 0], [1, 0, 0]], [1, 2], 8) == -1
    assert best([1], [[1, 0], [1, 0, 0]], [1, 3], 8) == 1
    assert best([1], [[1, 0]], [1], 8, endings=lambda *_: [[np.nan]]) == -1
    # A tokenizer merged the end of the prompt with the answers: all that follows what is shared is the answer's.
    assert best([1, 0], [[1, 3], [1, 2]], [1, 1], 8) == 1
    with pytest.raises(ValueError, match="9 tokens, .* 8 "):
        best([1], [[1] * 9], [1], 8)


# A decoder ------------------------------------------------------------------------------------------------------------------


def tiny(vocab=50, scale=0.3, **fields):
    config = {"vocab": vocab, "model": 16, "layers": 2, "heads": 2, "hidden": 32, **fields}
    model = drawn(TransformerConfig(**config), scale=scale)
    return TextModel(
        "tiny", model, lambda text: list(text.encode()), lambda row: bytes(row).decode("latin"), bytewise=True
    )


def test_a_decoder_is_measured_by_generation_and_ranking():
    subject, setting = tiny(256, layers=1), Setting(500, SUITES["long"]["niah_single_1"].bytes, len, short=16_384)
    made = samples("niah_single_1", setting, 4)
    prompts = [subject.encode(one.prompt + one.prefix)[-300 - 9 * i :] for i, one in enumerate(made)]
    told = subject.complete(prompts, setting.length - setting.reserve, setting.reserve)
    rows = np.array(
        [[*prompt, *answer, *[0] * 500][:500] for prompt, answer in zip(prompts, told.tolist(), strict=True)]
    )
    logits = np.asarray(LoadedModel(subject.model).logits(rows.astype(np.int32)))
    for row, prompt, answer in zip(logits, prompts, told, strict=True):
        np.testing.assert_array_equal(row.argmax(-1)[len(prompt) - 1 :][: len(answer)], answer)
    (score,) = suite.evaluate(subject, (500,), ("niah_single_1",), number=2)
    assert score["generation"] == 0
    assert score["ranking"] in (0, 50, 100)


def test_a_token_beyond_the_embedding_is_named():
    subject = tiny()
    for call in (
        lambda: subject.losses(np.array([[1, 50]])),
        lambda: subject.complete([[1, 50]], 4, 2),
        lambda: subject.endings([1], [[50]], 4),
        lambda: subject.endings([50], [[1]], 4),
    ):
        with pytest.raises(ValueError, match=r"0\.\.49 .*tiny.*\.\.50"):
            call()


ENCODINGS = {
    "window": (RoPE(), {"window": 9, "window_first": 2}),
    "scanned": (RoPE(), {"scan_layers": True}),
    "learned": (Learned(160), {}),
    "fox": (FoX(), {}),
    "path": (PaTH(), {}),
    "selective_rope": (SelectiveRoPE(), {}),
    "ssmax_fox": (compose(SSMax(), FoX()), {}),
}


@pytest.mark.parametrize("name", slow_except(ENCODINGS, "window"))
def test_endings_of_a_prompt_that_is_read_once_cost_what_whole_rows_do(name):
    """Endings of several lengths, one of them empty."""
    encoding, options = ENCODINGS[name]
    subject, draw = tiny(encoding=encoding, **options), np.random.default_rng(0).integers
    prompt, told = draw(50, size=137).tolist(), [draw(50, size=n).tolist() for n in (3, 17, 0, 1)]
    rows = np.array([[*prompt, *one, *[0] * 23][:160] for one in told], np.int32)
    for one, ending, losses in zip(subject.endings(prompt, told, 160), told, subject.losses(rows), strict=True):
        np.testing.assert_allclose(one, losses[len(prompt) - 1 :][: len(ending)], rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scaling", [DynamicNTK(4.0, 16), LongRoPE((1.0,) * 4, (3.0,) * 4, 42)], ids=["ntk", "longrope"]
)
def test_frequencies_of_the_length_are_those_of_the_longest_text(scaling):
    """Whatever padding the prompt and its endings have: with size = 64 all losses are those of 64 tokens."""
    subject = tiny(encoding=RoPE(scaling=scaling), layers=1, scale=0.5)
    draw = np.random.default_rng(0).integers
    prompt, short, long = (draw(50, size=n).tolist() for n in (40, 2, 20))
    expected = subject.losses(np.array([[*prompt, *short, *[0] * 22]], np.int32))[0, 39:41]
    for told in ([short], [short, long], [long, short[:1], short]):
        found = dict(zip(map(len, told), subject.endings(prompt, told, 64), strict=True))[2]
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    assert np.abs(subject.endings(prompt, [short], 42)[0] - expected).max() > 1e-3


def test_a_model_read_past_its_trained_length_says_by_what():
    plain = dataclasses.replace(tiny(encoding=RoPE(theta=100.0), embed_std=1.0), trained=Trained(16))
    found = read_past(plain, "rerope", 40, window=3)
    assert (found.name, found.bytewise, found.model.config.encoding.window) == ("tiny (rerope)", True, 3)
    assert found.note == "Read by rerope at 2.5 times the trained length of 16 tokens."
    assert "5 times the trained length of 8 tokens" in read_past(plain, "pi", 40, trained=8).note
    with pytest.raises(ValueError, match="max_position_embeddings.*--trained"):
        read_past(tiny(encoding=RoPE()), "rerope", 40)


def test_a_later_scaling_is_taken_off_unless_the_given_length_is_more_than_the_original():
    later = tiny(encoding=RoPE(scaling=YaRN(4.0, 16)))
    plain = dataclasses.replace(later, trained=Trained(16, scaled_after=True))
    scaling_at = lambda trained: read_past(plain, "p_rope", 64, trained=trained).model.config.encoding.scaling
    assert scaling_at(None) is scaling_at(16) is None
    assert scaling_at(64) == YaRN(4.0, 16)
