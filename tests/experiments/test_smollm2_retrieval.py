"""Needles past the trained length: prompts of known size, losses as without a cache, the committed records and their page."""

import pathlib

import jax
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax.long.words import KEYS
from attnjax.modules import Decoder, TransformerConfig, extended
from experiments.smollm2 import needles, page, retrieval, retrieval_page

HERE = pathlib.Path(__file__).parents[2] / "experiments" / "smollm2"
LENGTH = 2048
BYTES = lambda text: list(text.encode())
ALIKE = needles.alike(BYTES)


@pytest.fixture
def roomy(monkeypatch):
    """A byte is a token here, so that a question with its answer has more tokens than with a tokenizer."""
    for module in (needles, retrieval):
        monkeypatch.setattr(module, "ANSWER", 200)


def decoder():
    config = TransformerConfig(vocab=128, model=16, layers=2, heads=2, hidden=32, kv_heads=1, encoding=aj.RoPE())
    return Decoder(config, rngs=nnx.Rngs(0))


def test_a_prompt_fills_its_length_with_a_needle_at_each_depth(roomy):
    found = needles.filled(BYTES, ALIKE, LENGTH, 3)
    line = len(needles.ruler.NOISE) + 1
    assert LENGTH - 200 - line < len(found.text) <= LENGTH - 200
    whole = len(found.text)
    for depth, (question, answer) in zip(needles.DEPTHS, found.asked, strict=True):
        key = question.split(" for ")[1].split(" mentioned")[0]
        assert key in KEYS
        needle = f"One of the special magic numbers for {key} is:{answer}."
        assert found.text.count(needle) == 1
        # The introduction and the needles themselves have about 400 of the characters.
        assert abs(found.text.index(needle) / whole - depth) < 0.2
    assert found == needles.filled(BYTES, ALIKE, LENGTH, 3) != needles.filled(BYTES, ALIKE, LENGTH, 4)


def test_a_length_without_room_is_refused(roomy):
    with pytest.raises(ValueError, match="700 tokens are too few for a prompt with 5 needles"):
        needles.filled(BYTES, ALIKE, 700, 0)


@pytest.mark.quick("self_extend")
@pytest.mark.parametrize("method", ["none", "self_extend", "streaming_llm", "yarn"])
def test_losses_from_the_cache_are_those_of_the_whole_text(roomy, method):
    """Under each method, at twice the trained length: prompt, question and answer read at once give the same losses."""
    model = decoder()
    if method != "none":
        model = extended(model, method, trained=LENGTH // 2, factor=2.0)
    prompt = needles.filled(BYTES, ALIKE, LENGTH, 0)
    losses, greedy, ranked = retrieval.answered(model, BYTES, prompt, LENGTH)
    whole = jax.jit(lambda tokens: jax.nn.log_softmax(model(tokens)))

    def cost(question, answer):
        tokens = np.asarray(BYTES(prompt.text + question + answer))
        logs = np.asarray(whole(tokens[None]))[0][-len(answer) - 1 : -1]
        mine = tokens[-len(answer) :]
        return -logs[np.arange(len(mine)), mine].mean(), (logs.argmax(-1) == mine).all()

    for i, (question, answer) in enumerate(prompt.asked):
        others = [cost(question, other)[0] for _, other in prompt.asked]
        mine, hit = cost(question, answer)
        assert losses[i] == pytest.approx(mine, abs=2e-4)
        assert (greedy[i], ranked[i]) == (hit, int(np.argmin(others)) == i)


def test_numbers_of_different_lengths_are_refused(roomy):
    prompt = needles.Prompt("text", (("q", " 1"), ("q", " 12")))
    with pytest.raises(ValueError, match="all questions must have as many tokens, and so all numbers"):
        retrieval.answered(decoder(), BYTES, prompt, LENGTH)


def record(length, method, prompt, losses, ranked=True):
    found = {"greedy": [False] * len(losses), "ranked": [ranked] * len(losses)}
    return {"kind": "retrieval", "length": length, "method": method, "prompt": prompt, "losses": losses, **found}


ABOUT = {
    "kind": "protocol",
    "trained": 8,
    "depths": [0.1, 0.9],
    "date": "2026-01-02",
    "processor": "a CPU",
    "jax": "0.1",
}


def test_a_hand_made_record_gives_its_means_ranges_and_order():
    rows = [
        record(8, "none", 0, [0.25, 0.75]),
        record(16, "none", 0, [4.0, 6.0], ranked=False),
        record(16, "yarn", 0, [1.0, 2.0]),
        record(16, "self_extend", 0, [2.0, 0.5]),
        record(16, "self_extend", 1, [0.0, 0.0]),
        record(8, "none", 1, [0.5, 1.0]),
        record(16, "none", 1, [4.0, 6.0], ranked=False),
        record(16, "yarn", 1, [2.0, 3.0], ranked=False),
    ]
    found = retrieval_page.results([ABOUT, *rows])
    lines = [line.strip("| ").split(" | ") for line in retrieval_page.table(found).splitlines()[2:]]
    assert lines == [
        ["8 tokens, RoPE as trained", "0.38", "0.88", "0.62 (0.50 to 0.75)", "100%", "0%"],
        ["16 tokens, Self-Extend", "**1.00**", "**0.25**", "0.62 (0.00 to 1.25)", "100%", "0%"],
        ["16 tokens, YaRN", "1.50", "2.50", "2.00 (1.50 to 2.50)", "50%", "0%"],
        ["16 tokens, RoPE as trained", "4.00", "6.00", "5.00 (5.00 to 5.00)", "0%", "0%"],
    ]
    claim = retrieval_page.claim(found)
    assert (
        "At 8 tokens a number has a loss of 0.62 nats per token, and 4 of 4 are identified. At 16 tokens it has 5.00"
        in claim
    )
    assert (
        "0.62 under Self-Extend (4 of 4 identified), 2.00 under YaRN (2 of 4 identified). Fewer than 3 of 4 are not"
        in claim
    )


def test_prompts_that_some_method_has_not_read_do_not_count():
    rows = [record(8, "none", i, [float(i), 0.0]) for i in (0, 1)] + [record(16, "none", 0, [2.0, 2.0])]
    found = retrieval_page.results([ABOUT, *rows])
    assert found.prompts == 1
    assert found.losses[8, "none"].tolist() == [[0.0, 0.0]]
    with pytest.raises(ValueError, match="there is no prompt that every method has read"):
        retrieval_page.results([ABOUT, rows[1], rows[2]])


def test_guessing_a_number_of_seven_digits():
    """A first digit of nine and six of ten, and a space that is certain: ln(9 x 10^6) / 8."""
    assert np.exp(8 * retrieval_page.GUESS) == pytest.approx(9e6)


def test_the_committed_records_are_whole():
    found = page.read(HERE / "records.jsonl").retrieval
    assert found is not None
    assert {*found.losses} == {*retrieval.CELLS}
    assert {losses.shape for losses in found.losses.values()} == {(found.prompts, len(needles.DEPTHS))}
    # What cannot be in sight costs at least about what guessing does; what is in sight costs less.
    streaming = found.losses[2 * retrieval.TRAINED, "streaming_llm"].mean(0)
    assert (streaming[:2] > 0.9 * retrieval_page.GUESS).all()
    assert (streaming[3:] < retrieval_page.GUESS).all()


def test_the_numbers_of_the_page_about_models_are_those_of_the_records():
    found = page.read(HERE / "records.jsonl").retrieval
    assert found is not None
    text = " ".join((HERE.parents[1] / "docs" / "models.md").read_text(encoding="utf-8").split())
    mean = lambda length, method: f"{found.losses[length, method].mean():.2f}"
    assert (
        f"a number has a loss of {mean(8192, 'none')} nats a token at 8,192 tokens and of {mean(16384, 'none')} at 16,384"
        in text
    )
    named = ", ".join(
        f"{mean(16384, method)} under {label}"
        for method, label in (
            ("dual_chunk", "dual chunks"),
            ("self_extend", "Self-Extend"),
            ("leaky_rerope", "Leaky ReRoPE without log-n scaling"),
        )
    )
    assert f"without training {named}, and {mean(16384, 'yarn')} under YaRN" in text
    assert "guessing its digits has 2.00" in text
    methods = ("dual_chunk", "self_extend", "leaky_rerope", "yarn")
    assert [found.greedy[16384, method] for method in methods] == [0, 0, 0, 0]
    assert [round(15 * found.ranked[16384, method]) for method in methods[:3]] == [5, 8, 7]
    assert retrieval_page.above_guessing(15) == 7
    assert f"{retrieval_page.MIXED:.2f}" == "0.20"
