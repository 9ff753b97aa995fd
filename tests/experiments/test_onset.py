"""The onset law: predictions by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from configs.onset import CELLS
from experiments.onset import predict

TRAINED = 64
ROPE = [cell for cell in CELLS if cell.startswith("rope")]


def test_predictions_are_the_committed_ones_and_those_by_hand(tmp_path):
    made = tmp_path / "predictions.csv"
    predict.main(made)
    assert made.read_bytes() == predict.FILE.read_bytes()
    rows = pd.read_csv(made).set_index(["task", "cell"])
    assert len(rows) == 25 + 26 + 25, "NoPE on text alone"
    # 1.4 x 64 = 89.6, in windows of 92; 64 + 0.41 x 89.6 = 100.7, in windows of 104.
    rope = rows.loc["markov", "rope 3 1.4"]
    assert rope[["unseen", "onset", "trained", "liu", "phase"]].tolist() == [89.6, 92, 66, 92, 104]
    # A string of 44 symbols and again has 87 tokens, distances to 86.
    t5 = rows.loc["recall", "t5 83"]
    assert t5[["unseen", "onset", "trained", "class"]].tolist() == [83.0, 44, 33, "rises"]
    assert rows.loc["markov", "t5 83"][["unseen", "onset", "class"]].tolist() == [83.0, math.inf, "stays"]


def test_the_critical_dimension_of_a_model_from_scratch_is_the_first_unseen_wave():
    for cell in ROPE:
        options = CELLS[cell]["model.encoding"]["options"]
        law = predict.first_unseen("rope", options, TRAINED)
        assert predict.critical(options["theta"], 16, TRAINED) == pytest.approx(law)


def test_a_sum_of_cosines_falls_below_zero():
    # cos(2 pi n / 16) + cos(2 pi n / 8) is 1.63, 0.71, -0.32 at n = 1, 2, 3.
    assert predict.negative(np.array([16.0, 8.0])) == 3
