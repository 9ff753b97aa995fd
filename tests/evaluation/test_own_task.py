"""A run's own task, as `attnjax evaluate RUN` measures it, with planted models: `suite.own_task` on a stored run.

A model that follows the rule of MQAR must score everything at every length; one that sees the last tokens only must fall,
past its window, to what guessing leaves it; and a mistake where nothing is asked must cost nothing.
"""

import numpy as np
import pytest

from attnjax.config import parse
from attnjax.evaluation.suite import own_task
from attnjax.train import step
from tests.evaluation.planted import SURE, WHOLE, planted, recalled
from tests.evaluation.stored import started, stored

RIGHT = recalled(WHOLE)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Metrics by length of a planted model in place of a run's own, from a checkpoint in the run's folder."""

    def measure(predict, lengths):
        monkeypatch.setattr(step, "build", lambda run, task, encoding=None: planted(predict, 64))
        options = {"vocab": 64, "pairs": 4, "power": 1.0, "filler": "zero"}
        about = {"name": "mqar", "length_min": 16, "length_max": 16, "options": options}
        evaluate = {"lengths": [16], "validation_lengths": [], "count": 8, "batch": 8}
        run = parse({"task": about, "evaluate": evaluate, "train": {"steps": 1, "batch": 2}})
        rows = own_task(stored(tmp_path, run, started(run)), lengths, 32)
        assert {(row["task"], row["samples"]) for row in rows} == {("mqar", 32)}
        return {row["length"]: row for row in rows}

    return measure


def test_who_follows_the_rule_scores_everything_at_every_length(measured):
    """The loss is that of a logit of 20 among zeros."""
    for scores in measured(RIGHT, (16, 120)).values():
        assert scores["token_accuracy"] == 1
        assert scores["loss_nonoverlapping"] == pytest.approx(np.log1p(63 * np.exp(-SURE)), abs=1e-6)


@pytest.mark.slow
def test_a_local_model_fails_beyond_its_window(measured):
    """A key that stands at 2 i returns in one of 56 slots, and is seen in the first i + 9 of them."""
    scores = measured(recalled(24), (16, 120))
    assert scores[16]["token_accuracy"] == 1
    assert scores[120]["token_accuracy"] == pytest.approx(10.5 / 56, abs=0.13)


@pytest.mark.slow
def test_a_mistake_at_the_last_value_of_the_pairs_costs_nothing(measured):
    assert measured(lambda x, t: (RIGHT(x, t) + (t == 7)) % 64, (16,))[16]["token_accuracy"] == 1
