"""RULER's tasks with planted models, by the whole way of the suite: samples, generation, ranking, averages.

A model that reads all of the text must score 100 % at every length, and one that reads its end alone must fail where the text
is longer than that.
"""

import numpy as np
import pytest

from attnjax.long import scoring, suite
from attnjax.registry import SUITES
from tests.long.planted import COUNTING, WHOLE, chain, common, frequent, needle, reader

WINDOWS = {"niah_single_1": 900, "niah_multikey_2": 900, "niah_multikey_3": 1500, "vt": 2500, "cwe": 2500, "fwe": 1500}
"""Bytes that a local model sees, a few more than a text has at which it must still score everything."""
FAR = 12_000
"""Bytes of a text of which it sees a fifth at most."""


def scores(window, task, length, number=4):
    (found,) = suite.evaluate(reader(window), (length,), (task,), number=number)
    assert not found.problem
    return found.generation, found.ranking


def test_every_task_of_the_suite_is_here():
    assert set(WINDOWS) == set(SUITES["long"])


@pytest.mark.parametrize("task", WINDOWS)
def test_a_model_that_reads_everything_scores_everything(task):
    assert [scores(WHOLE, task, length) for length in (WINDOWS[task] - 50, FAR)] == [(100, 100), (100, 100)]


@pytest.mark.parametrize("task", WINDOWS)
def test_a_local_model_fails_beyond_its_window(task):
    """Guessing among five answers is right in 20 %; an answer of several words may hold some of them."""
    window = WINDOWS[task]
    assert scores(window, task, window - 50) == (100, 100)
    generation, ranking = scores(window, task, FAR, 8)
    assert generation < 50
    assert ranking < 60


@pytest.mark.parametrize("depth", [0.0, 1.0])
def test_a_needle_near_the_question_is_in_the_window(depth):
    (found,) = suite.evaluate(reader(900), (3000,), ("niah_single_1",), number=2, depth=depth)
    assert (found.generation, found.ranking) == (100 * depth, 100 * depth)


def test_effective_length_ends_with_the_window():
    found = suite.evaluate(reader(900), (700, 3000), ("niah_single_1", "niah_multikey_2"), number=8)
    for kind in ("generation", "ranking"):
        mean = suite.averages(found, kind)
        assert (mean[700], scoring.effective_length(mean)) == (100, 700)
        assert mean[3000] < 70


def test_what_planted_models_find_is_told_by_hand():
    assert needle("x magic number for a-b mentioned in the provided text is", "for c is: 1. for a-b is: 2.") == ["2"]
    assert chain("assigned the value 7, they are:", "VAR A = 7 VAR C = 8 VAR BB = VAR A VAR D = VAR C") == ["A", "BB"]
    asked = "that appear most often.\n{}\nQuestion: which? Answer:"
    assert common("", asked.format("1. old 2. old") + " 1. old\n" + asked.format("1. a 2. b 3. b")) == ["b", "a"]
    assert frequent("", "coded words. aaaaaa bbbbbb bbbbbb ... \nQuestion:") == ["bbbbbb", "aaaaaa"]


def test_words_can_be_counted_in_a_part_of_the_text():
    """A sample tells which words are frequent: success in `cwe` and `fwe` alone says little about the use of a long context.

    All lists of one size are shuffled alike, so that a ranking at one length is all or nothing: several lengths are averaged.
    """
    counting = lambda task, *lengths: suite.evaluate(reader(WINDOWS[task], COUNTING), lengths, (task,), number=8)
    assert counting("fwe", FAR)[0].generation > 70
    assert np.mean([one.ranking for one in counting("cwe", 5000, 6000, 7000)]) > 50
    assert 20 < counting("cwe", FAR)[0].generation < 50
