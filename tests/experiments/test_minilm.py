"""Passages with needles, planted encoders that find them or cannot, MiniLM's embeddings, and the committed page."""

import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attnjax.modules import Encoder, TransformerConfig, stretched
from attnjax.positions import Learned
from experiments.minilm import page, texts
from experiments.minilm.__main__ import LENGTHS, cells, digest
from experiments.minilm.facts import FACTS
from experiments.minilm.model import MiniLM
from experiments.minilm.reading import METHODS, TRAINED, ranks

HERE = pathlib.Path(__file__).parents[2] / "experiments" / "minilm"
STATEMENTS, QUESTIONS = (list(one) for one in zip(*FACTS, strict=True))
SEEN = texts.WINDOW - 2
WORDS = [("a", "bcd", "ef") * 400] * len(FACTS)


def encode(text):
    """A token 100 (i + 1) + j per word of fact i or of its question, and a token 1 per letter of every other text."""
    for one in (STATEMENTS, QUESTIONS):
        if text in one:
            return [100 * (one.index(text) + 1) + j for j in range(len(text.split()))]
    return [1] * len(text)


class Planted:
    """Counts the tokens of each fact, and of the rest, in the first `sees` tokens of what it is given."""

    def __init__(self, sees):
        self.sees = sees

    def embed(self, given, *, group=1, rows=texts.WINDOW):
        assert (len(given[0]) + 1) // group < rows  # no position lies outside the table
        counts = [np.bincount(np.array(text[: self.sees]) // 100, minlength=len(FACTS) + 1) for text in given]
        return np.array([one / np.linalg.norm(one) for one in counts])


def found(reader):
    records = [one for length in LENGTHS for one in cells(reader, encode, WORDS, length)]
    return {(one["length"], one["method"]): np.array(one["ranks"]) for one in records}


def visible(length):
    """Which needles begin in the first window."""
    return np.array([one.begin < SEEN for one in texts.passages(encode, STATEMENTS, WORDS, length)])


def test_an_encoder_that_sees_all_answers_every_question():
    given = found(Planted(None))
    assert set(given) == {(n, TRAINED) for n in (256, 512)} | {(n, one) for n in (1024, 2048) for one in METHODS}
    for (length, method), one in given.items():
        if method == "cut":
            seen = visible(length)
            assert 0 < seen.sum() < len(seen)
            assert (one[seen] == 1).all()
            assert (one[~seen] == len(FACTS)).all()
        else:
            assert (one == 1).all(), (length, method)


def test_an_encoder_that_sees_the_first_512_tokens_fails_behind_them_unless_it_reads_chunks():
    for (length, method), one in found(Planted(SEEN)).items():
        seen = visible(length)
        assert (one[seen] == 1).all()
        assert (one[~seen] == (1 if method == "chunks" else len(FACTS))).all()


def test_cells_that_are_done_are_not_measured_again():
    done = {(1024, one) for one in METHODS if one != "grouped"}
    assert [one["method"] for one in cells(Planted(None), encode, WORDS, 1024, done)] == ["grouped"]


def test_passages_have_their_length_and_the_needle_whole_between_words():
    for length, size in ((256, 254), (512, 510), (1024, 1020), (2048, 2040)):
        made = texts.passages(encode, STATEMENTS, WORDS, length)
        depths = []
        for one, statement in zip(made, STATEMENTS, strict=True):
            assert len(one.tokens) == size
            assert list(one.tokens[one.begin : one.end]) == encode(statement)
            assert one.begin % 6 in (0, 1, 4)  # words have 1, 3 and 2 tokens
            depths.append(one.begin / (size - len(encode(statement))))
        # One depth (i + 1/2) / n each, from which a word of three tokens may lead back.
        wanted = (np.arange(len(FACTS)) + 0.5) / len(FACTS)
        assert np.abs(np.sort(depths) - wanted).max() < 3 / (size - 20)
    begins = lambda length: [one.begin for one in texts.passages(encode, STATEMENTS, WORDS, length)]
    assert np.argsort(begins(1024)).tolist() == np.argsort(begins(2048)).tolist()


def test_a_haystack_that_is_too_short_is_refused():
    short = [("a",) * 100] * len(FACTS)
    with pytest.raises(ValueError, match=r"a haystack has 11\d tokens with its needle, 254 are needed"):
        texts.passages(encode, STATEMENTS, short, 256)


def test_haystacks_share_no_docstring(monkeypatch):
    monkeypatch.setattr(texts, "docstrings", lambda: iter(["a b c", "d e", "f g", "h i j k"]))
    assert texts.haystacks(len, 0, 4) == []
    one_each = lambda word: [word]
    assert texts.haystacks(one_each, 2, 4) == [("a", "b", "c", "d", "e"), ("f", "g", "h", "i", "j", "k")]
    with pytest.raises(ValueError, match="docstrings for 2 haystacks, not for 3"):
        texts.haystacks(one_each, 3, 4)


def test_docstrings_are_those_of_python_itself():
    made = texts.docstrings()
    first = [next(made) for _ in range(20)]
    assert len(set(first)) == 20
    assert min(map(len, first)) >= texts.SHORTEST


def test_ties_and_numbers_that_are_none_count_as_wrong():
    assert ranks(np.eye(3), np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]])) == [2, 2, 1]
    assert ranks(np.eye(2), np.array([[np.nan, 0], [0, 1]])) == [2, 2]


class Specials:
    """A tokenizer of nothing but the special tokens."""

    def encode(self, text, *, specials=True):
        assert (text, specials) == ("", True)
        return [1, 2]


@pytest.mark.slow
def test_embeddings_are_mean_features_whatever_stands_beside_them():
    config = TransformerConfig(
        vocab=32, model=8, layers=1, heads=2, hidden=8, encoding=Learned(texts.WINDOW, std=1.0), norm_position="post"
    )
    model = Encoder(config, rngs=nnx.Rngs(0))
    reader = MiniLM(model, Specials())
    rng = np.random.default_rng(0)
    long, short = (rng.integers(3, 32, T).tolist() for T in (9, 4))

    def by_hand(text, model=model, group=1):
        tokens = jnp.array([[1, *text, 2]])
        mean = model.features(tokens, pos=np.arange(tokens.shape[1]) // group)[0].mean(0)
        return mean / jnp.linalg.norm(mean)

    both = reader.embed([long, short])
    np.testing.assert_allclose(both, [by_hand(long), by_hand(short)], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reader.embed([long], group=3)[0], by_hand(long, group=3), rtol=1e-5, atol=1e-6)
    rows = by_hand(long, stretched(model, 600))
    np.testing.assert_allclose(reader.embed([long], rows=600)[0], rows, rtol=1e-5, atol=1e-6)
    assert min(np.abs(one - both[0]).max() for one in (rows, by_hand(long, group=3))) > 0.001


def test_the_committed_embeddings_are_those_of_transformers():
    record = page.read(HERE / "records.jsonl")
    theirs = json.loads((HERE / "transformers.json").read_text(encoding="utf-8"))
    assert record.about["model"] == theirs["sha256"]
    assert record.agreement["texts"] == len(theirs["embeddings"]) == 13
    assert record.agreement["longest"] == max(theirs["tokens"]) == texts.WINDOW
    assert 0 < record.agreement["difference"] < 1e-5


def test_the_committed_page_is_made_from_the_records_of_these_facts():
    record = page.read(HERE / "records.jsonl")
    assert (HERE / "README.md").read_text(encoding="utf-8") == page.page(record)
    assert (record.about["facts"], record.about["lengths"]) == (digest(FACTS), list(LENGTHS))
    assert all(len(one.ranks) == len(FACTS) for one in record.cells.values())


def test_a_hand_made_record_gives_its_shares_and_differences():
    about = {"kind": "protocol", "window": 12, "lengths": [6, 12, 24], "questions": 5}
    ends = [3, 8, 10, 11, 20]  # two begin or end where [SEP] of the first window stands, or behind it
    given = {
        (6, TRAINED): [1, 1, 1, 1, 1],
        (12, TRAINED): [1, 1, 1, 1, 5],
        (24, "cut"): [1, 1, 1, 5, 5],
        (24, "stretched"): [2, 2, 2, 4, 4],
        (24, "grouped"): [1, 2, 2, 5, 5],
        (24, "chunks"): [1, 1, 1, 1, 2],
    }
    records = [
        {"kind": "cell", "length": length, "method": method, "ranks": found, "ends": ends}
        for (length, method), found in given.items()
    ]
    found = page.results([about, {"kind": "agreement"}, *records])
    cell = found.cell(24, "cut")
    assert cell.inside.tolist() == [True, True, True, False, False]
    assert (cell.first.value, cell.lower.tolist()) == (0.6, [1, 1, 1, 0, 0])
    # Wilson's ends for 3 of 5, by his formula: (p + z^2 / 2n +- z sqrt(p q / n + z^2 / 4n^2)) / (1 + z^2 / n), z = 1.96.
    np.testing.assert_allclose([cell.first.low, cell.first.high], [0.2307, 0.8824], atol=1e-4)
    rows = lambda text: [[one.split(" [")[0].strip() for one in row.split("|")[1:-1]] for row in text.splitlines()]
    assert rows(page.table(found, lambda one: one.first))[2:] == [
        ["Cut at 512", "100.0", "80.0", "60.0"],
        ["Table stretched", "100.0", "80.0", "0.0"],
        ["Positions in groups", "100.0", "80.0", "20.0"],
        ["Mean of chunks", "100.0", "80.0", "80.0"],
    ]
    assert rows(page.split(found)) == [
        ["method", "24, in the first (3)", "24, behind (2)"],
        ["---", "---:", "---:"],
        ["Cut at 512", "100.0", "0.0"],
        ["Table stretched", "75.0", "25.0"],
        ["Positions in groups", "83.3", "0.0"],
        ["Mean of chunks", "100.0", "87.5"],
    ]
    assert [row[1] for row in rows(page.differences(found))[2:]] == ["-5.0", "-10.0", "35.0"]
    assert [row[1] for row in rows(page.differences(found, page.firsts))[2:]] == ["-60.0", "-40.0", "20.0"]
    assert page.claim(found) == (
        "Asked 5 questions, MiniLM puts the one passage of 5 with the answer first for 100.0 % at 6 tokens and 80.0 % at 12 "
        "tokens, where its table of positions ends. On average that passage is there above 80.0 % of the others (chance 50 %), "
        "and at 24 tokens: mean of chunks 95.0 %, cut at 512 60.0 %, table stretched 55.0 %, positions in groups 50.0 %. The "
        "95 % interval of the difference from cutting is above 0 for none."
    )


def test_a_record_without_one_of_its_cells_is_refused(tmp_path):
    lines = (HERE / "records.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "records.jsonl").write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"no record of a pretrained encoder past .*\(2048, 'chunks'\)"):
        page.read(tmp_path / "records.jsonl")
