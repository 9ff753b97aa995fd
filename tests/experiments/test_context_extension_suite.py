"""The suite in the experiment of context extension: questions by hand, planted models, and the page of its records."""

import json
import math
import pathlib
import types

import numpy as np
import pytest

from attnjax.records import jsonl
from experiments.context_extension import planting, suite, suite_records, texts
from experiments.context_extension.page import page, render
from experiments.context_extension.results import read
from experiments.context_extension.subjects import Scores
from tests.experiments.test_context_extension import EXTENSION, FACTOR, L, subject_of
from tests.experiments.test_context_extension_page import RECORDS, made_up
from tests.long.planted import WHOLE, reader

pytestmark = pytest.mark.slow
LONGEST = 1024
METHODS = ("none", "yarn")


@pytest.fixture(scope="module")
def corpus():
    text = np.frombuffer(b"".join(b"line %d of a text\n" % i for i in range(4000)), np.uint8)
    none = lambda *_: pytest.fail("not asked for")
    return texts.Corpus("byte", none, text, text, none, (), (ord("\n"),), False, 0.125, {"text": "made up"})


def kind_of(byte):
    return (byte - planting.FIRST_VALUE) // planting.VALUES


@pytest.mark.parametrize("lines", [1, 3])
@pytest.mark.parametrize("length", [128, LONGEST])
def test_a_question_is_answered_by_its_text_alone(corpus, lines, length):
    asked = suite.questions(corpus, lines, length, LONGEST, 20)
    for one in asked:
        assert len(one.prompt) + 1 == length
        right, *wrong = one.answers
        values = [byte for byte in one.prompt if byte >= 128]
        assert len({kind_of(byte) for byte in values}) == len(values) == 4 * lines
        assert values.count(right) == 1
        assert not set(wrong) & set(values)
        assert {kind_of(byte) for byte in one.answers} == {kind_of(right)}
        assert len(set(one.answers)) == 5
        assert one.prompt[-2:] == [ord("\n"), planting.QUESTIONS[kind_of(right)]]
        stated = [line for line in bytes(one.prompt).split(b"\n") if line and line[0] >= 128]
        assert [len(line) for line in stated] == [4] * lines
        rest = [line for line in bytes(one.prompt).split(b"\n") if line not in stated]
        whole = rest[1:-2]  # the first and the last line of the text are cut, and the question follows them
        assert all(line.endswith(b" of a text") for line in whole), "lines of the text stay whole"
    longer = suite.questions(corpus, lines, LONGEST, LONGEST, 20)
    assert [one.answers for one in asked] == [one.answers for one in longer]
    depths = [np.flatnonzero(np.array(one.prompt) >= 128)[0] / LONGEST for one in longer]
    last = [np.flatnonzero(np.array(one.prompt[:-1]) >= 128)[-1] / LONGEST for one in longer]
    assert min(depths) < 0.2 < 0.8 < max(last)


def test_a_text_that_cannot_hold_its_lines_is_refused(corpus):
    with pytest.raises(ValueError, match="a text of 20 bytes cannot hold 3 lines of facts"):
        suite.questions(corpus, 3, 20, LONGEST, 1)


def planted(window):
    """A model that finds the fact, or the answer of a task of RULER, in the last `window` bytes; else all bytes are alike."""

    def next_losses(params, numbers, tokens):
        costs = np.full((len(tokens), 256), 5.0)
        for cost, row in zip(costs, np.asarray(tokens), strict=True):
            kind = planting.QUESTIONS.index(row[-1])
            cost[[byte for byte in row[-window:] if byte >= 128 and kind_of(byte) == kind]] = 1.0
        return costs

    scores = lambda params, numbers, rows: Scores(reader(window).losses(rows), None)
    return types.SimpleNamespace(params=None, next_losses=next_losses, scores=scores)


def score(subject, corpus, task, length, count=12):
    return suite.score(subject, None, corpus, task, length, LONGEST, count)


@pytest.mark.parametrize("task", suite.LINES)
def test_a_lookup_finds_every_fact_and_a_local_model_none_beyond_its_window(corpus, task):
    assert [score(planted(WHOLE), corpus, task, n) for n in (128, LONGEST)] == [100, 100]
    assert score(planted(128), corpus, task, 128) == 100
    # Facts stand anywhere, so that about an eighth of them is among the last 128 bytes.
    assert score(planted(128), corpus, task, LONGEST, 40) == pytest.approx(12.5, abs=5 * math.sqrt(12.5 * 87.5 / 40))


def test_tasks_of_ruler_are_asked_where_they_fit(corpus):
    found = {task: [score(planted(WHOLE), corpus, task, n, 2) for n in (128, 512, 1024)] for task in suite.TASKS[2:]}
    assert found == {
        "niah_single_1": [None, 100, 100],
        "niah_multikey_2": [None, 100, 100],
        "niah_multikey_3": [None, None, 100],
        "vt": [None, None, 100],
        "cwe": [None, None, None],
        "fwe": [None, None, 100],
    }
    assert score(planted(300), corpus, "vt", 1024) < 50


def test_the_next_byte_costs_what_it_costs_in_a_row():
    """The two ways to read a model, at the last place."""
    subject = subject_of()
    tokens = np.random.default_rng(3).integers(0, 11, (3, FACTOR * L)).astype(np.int32)
    for method in ("yarn", "streaming_llm"):
        numbers = subject.numbers(method, EXTENSION, FACTOR * L)
        found = np.asarray(subject.next_losses(subject.params, numbers, tokens))
        for token in (0, 7):
            rows = np.pad(tokens, ((0, 0), (0, 1)), constant_values=token)
            expected = np.asarray(subject.scores(subject.params, numbers, rows).loss)[:, -1]
            np.testing.assert_allclose(found[:, token], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.exp(-found).sum(1), 1, rtol=1e-5)


def made_up_suite(path):
    """YaRN finds all facts; as trained, half of them at the trained length and 30 % past it. RULER's is at chance."""
    about = {"trained": 8, "factor": 4, "lengths": [8, 16, 32], "samples": {"fact": 32, "niah_single_1": 8}}
    about |= {"candidates": 5, "methods": list(METHODS), "text": "made up"}
    made = {"kind": "made", "processor": "none", "date": "2026-02-01", "python": "3", "jax": "0", "flax": "0"}
    rows = [{"kind": "protocol", **about}, made]
    for run in range(3):
        # The losses of `made_up` as trained are 2.1, 2.6 and 3.1, and 0.1 more with each run.
        sliding = {"8": 2.1 + 0.1 * run, "16": 2.6 + 0.1 * run, "32": 3.1 + 0.1 * run + 0.002 * run}
        rows.append({"kind": "run", "run": f"r{run}", "seed": run, "sliding": sliding})
        for method in METHODS:
            facts = (
                {"8": 50.0, "16": 30.0, "32": 30.0 + run}
                if method == "none"
                else dict.fromkeys(("8", "16", "32"), 100.0)
            )
            ranking = {"fact": facts, "niah_single_1": {"8": None, "16": 12.5, "32": 25.0 + 12.5 * run}}
            rows.append({"kind": "suite", "run": f"r{run}", "method": method, "ranking": ranking, "seconds": 30.0})
    jsonl.append(path / suite_records.RECORDS, *rows)
    return path


def test_numbers_and_sentences_by_hand(tmp_path):
    found = suite_records.read(made_up_suite(made_up(tmp_path)) / suite_records.RECORDS)
    assert found.asked == [("fact", 8), ("fact", 16), ("fact", 32), ("niah_single_1", 16), ("niah_single_1", 32)]
    one = found.estimate("none", "fact", 32)
    assert (one.value, one.low, one.high) == pytest.approx((31, 30, 32))
    text = page(read(tmp_path / RECORDS), found)
    assert "guessing scores 20 %" in text
    assert "as trained, the models find *fact in text* 50 (range 50 to 50) % there, every run above 20 %" in text
    assert "chosen by no result: the first at 16." in text
    assert "differs by 0.0040 nats at most" in text
    assert "**Fact in text at 32**, from most to fewest: YaRN 100, RoPE as trained 31." in text
    # (12.5 + 12.5 + 12.5 + 25 + 37.5 + 50) / 6 of 16 questions, of which guesses differ by sqrt(0.16 / 16).
    assert (
        "**RULER's tasks**: 25 % over all methods, tasks and lengths (Needle in noise (passkey) 25), where guessing"
        in text
    )
    assert "the same 16 questions" in text
    assert "off by 10 points (one standard deviation): that is no sign that anything is found." in text
    assert "The highest of 4 cells is 38 (range 25 to 50)" in text
    assert "**Samples**: 32 of each fact task and 8 of each RULER task" in text
    assert "| YaRN | 100 (range 100 to 100) | 100 (range 100 to 100) | 100 (range 100 to 100) |" in text
    assert "beside other work: 3.0 minutes." in text
    assert "{" not in text
    made = [path.name for path in render(tmp_path)]
    assert made[-2:] == ["figure_suite.png", "figure_suite.svg"]
    assert "### Needle in noise (passkey): percent found (guessing 20)" in (tmp_path / "table.md").read_text()


def test_a_run_without_all_methods_does_not_count(tmp_path):
    path = made_up_suite(tmp_path) / suite_records.RECORDS
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert list(suite_records.read(path).sliding) == ["r0", "r1"]
    path.write_text("".join(lines[:3]))
    with pytest.raises(ValueError, match="there is no run with all its methods"):
        suite_records.read(path)
    assert suite_records.read(tmp_path / "nothing") is None


def test_what_is_measured_is_not_measured_again(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(suite_records.measuring, "measure", lambda *_: {"sliding": {"128": [1.0, 2.0]}})
    subject = planted(WHOLE)
    subject.name, subject.seed, subject.numbers = "r0", 0, lambda *_: None
    protocol, path = suite_records.Protocol(128), tmp_path / suite_records.RECORDS
    arguments = ([subject], corpus, protocol, {"r0": [1.0]}, path, METHODS, {"fact": 2, "vt": 2})
    suite_records.record(*arguments)
    before = path.read_bytes()
    rows = [json.loads(line) for line in before.splitlines()]
    assert [(row["kind"], row.get("method")) for row in rows[2:]] == [
        ("run", None),
        ("suite", "none"),
        ("suite", "yarn"),
    ]
    assert rows[2]["sliding"] == {"128": 1.5}
    assert rows[3]["ranking"] == {
        "fact": {"128": 100.0, "256": 100.0, "512": 100.0, "1024": 100.0},
        "vt": {"128": None, "256": None, "512": None, "1024": 100.0},
    }
    suite_records.record(*arguments)
    assert path.read_bytes() == before
    assert pathlib.Path(path).name == "suite.jsonl"
