"""Tasks of next tokens with planted models, as `attnjax evaluate RUN` measures a run: `suite.own_task` on a stored run.

A model that follows the rule must score everything at every length; one that sees the last tokens only must fall, past its
window, to what guessing leaves it; and one mistake must cost what one place is worth.
"""

import jax
import numpy as np
import pytest

from attnjax.config import canonical_json, parse, run_id
from attnjax.evaluation.suite import own_task
from attnjax.train import checkpoint, step
from attnjax.train.loop import make_task
from attnjax.train.step import Trainer, members
from tests.cases import slow_except
from tests.evaluation import planted

TASKS = {
    "mqar": ("mqar", {"vocab": 64, "pairs": 4, "power": 1.0, "filler": "zero"}, 64, planted.recalled),
    "flip_flop": ("flip_flop", {"ignore": 0.9}, 5, planted.remembered),
    "S5": ("word_problem", {"group": "S5"}, 120, planted.multiplied),
}
"""Name and options of a task, its tokens, and its planted model of a window."""


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Metrics by length of a planted model in place of a run's own, from a checkpoint in the run's folder."""

    def measure(name, predict, lengths, number=32):
        task, options, vocab, _ = TASKS[name]
        model = planted.planted(predict, vocab)
        monkeypatch.setattr(step, "build", lambda run, task, encoding=None: model)
        evaluate = {"lengths": [16], "validation_lengths": [], "count": 8, "batch": 8}
        about = {"name": task, "length_min": 16, "length_max": 16, "options": options}
        run = parse({"task": about, "evaluate": evaluate, "train": {"steps": 1, "batch": 2}})
        folder = tmp_path / run_id(run)
        (folder / "result").mkdir(parents=True)
        (folder / "config.json").write_text(canonical_json(run))
        state = Trainer(run, make_task(run)).start(members([run]))
        checkpoint.save(folder / "result" / "checkpoints", 1, jax.tree.map(lambda leaf: leaf[0], jax.device_get(state)))
        rows = own_task(folder, lengths, number)
        assert {(row["task"], row["samples"]) for row in rows} == {(task, number)}
        return {row["length"]: row for row in rows}

    return measure


@pytest.mark.parametrize("name", slow_except(TASKS, "mqar"))
def test_who_follows_the_rule_scores_everything_at_every_length(name, measured):
    """The loss is that of a logit of 20 among zeros."""
    _, _, vocab, model = TASKS[name]
    for scores in measured(name, model(planted.WHOLE), (16, 120)).values():
        assert scores["token_accuracy"] == 1
        assert scores["loss_nonoverlapping"] == pytest.approx(np.log1p((vocab - 1) * np.exp(-planted.SURE)), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "window", "within", "past", "spread"),
    [
        # A key that stands at 2 i returns in one of 56 slots, and is seen in the first i + 9 of them.
        ("mqar", 24, 16, 10.5 / 56, 0.13),
        # Of a read with no write among the six instructions before it, the bit is guessed.
        ("flip_flop", 12, 6, 1 - 0.95**6 / 2, 0.15),
        # What stands before the window is the identity one time in 120.
        ("S5", 16, 16, (16 + 104 / 120) / 120, 0.01),
    ],
    ids=TASKS,
)
def test_a_local_model_fails_beyond_its_window(name, window, within, past, spread, measured):
    scores = measured(name, TASKS[name][3](window), (within, 120))
    assert scores[within]["token_accuracy"] == 1
    assert scores[120]["token_accuracy"] == pytest.approx(past, abs=spread)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place", "cost"), [("S5", 0, 1 / 16), ("mqar", 7, 0), ("flip_flop", 0, 0)])
def test_one_mistake_costs_what_its_place_is_worth(name, place, cost, measured):
    """Of MQAR place 7 is the last value of the pairs; flip-flop begins with a write, of which nothing is asked."""
    _, _, vocab, model = TASKS[name]
    right = model(planted.WHOLE)
    scores = measured(name, lambda x, t: (right(x, t) + (t == place)) % vocab, (16,))
    assert scores[16]["token_accuracy"] == pytest.approx(1 - cost, abs=1e-6)
