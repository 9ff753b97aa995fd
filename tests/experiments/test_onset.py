"""The onset law: predictions by hand, and repairs that change the unseen codes alone."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import attnjax
from attnjax.positions.base import Sizes, Tile
from configs.onset import CELLS
from experiments.onset import measures, predict, repair

TRAINED = 64
ROPE = [cell for cell in CELLS if cell.startswith("rope")]


def test_predictions_are_the_committed_ones_and_those_by_hand(tmp_path):
    made = tmp_path / "predictions.csv"
    predict.main(made)
    assert made.read_bytes() == predict.FILE.read_bytes()
    rows = pd.read_csv(made).set_index(["task", "cell"])
    assert len(rows) == 22 + 26 + 21
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


def test_stopped_pairs_keep_their_angle_and_the_others_go_on():
    # One pair of channels with q = k = (1, 0): the score is the cosine of the angle. Pair 0 turns by 1 radian a token, pair 1
    # by 0.1, and stops at distance 2.
    encoding = repair.StoppedRoPE(theta=100.0, last=2, stopped=(1,))
    q = jnp.asarray([[1.0, 1.0, 0.0, 0.0]])
    p = encoding.constants(Sizes(4, 1, 1, 4))
    query, keys = jnp.asarray([7]), jnp.arange(8)
    tile = Tile(jnp.zeros((1, 8)), q, jnp.repeat(q, 8, 0), query, keys, jnp.ones((1, 8), bool), 0.5)
    n = 7.0 - np.arange(8)
    np.testing.assert_allclose(
        jax.jit(encoding.score)(p, tile)[0], 0.5 * (np.cos(n) + np.cos(0.1 * np.minimum(n, 2))), atol=1e-6
    )


def test_stopped_waves_stay_at_the_last_seen_position():
    encoding = repair.StoppedSinusoidal(theta=100.0, last=2, stopped=(1,))
    found = jax.jit(encoding.embed)(encoding.constants(Sizes(4, 1, 1, 4)), jnp.zeros((5, 4)), jnp.arange(5))
    n = np.arange(5)
    fast, slow = 1.0 * n, 0.1 * np.minimum(n, 2)
    np.testing.assert_allclose(found, np.stack([np.sin(fast), np.cos(fast), np.sin(slow), np.cos(slow)], 1), atol=1e-6)


@pytest.mark.parametrize(
    ("cell", "repaired", "control"),
    [
        # Wavelengths of the base 1,195.8: 6.3, 15.2, 37.0, 89.6, ...
        ("rope 3 1.4", (3, 4, 5, 6, 7), (0, 1, 2)),
        # 2 pi 10,000^(k / 32) passes 64 at k = 9, with 83.8.
        ("sinusoidal", tuple(range(9, 32)), tuple(range(9))),
    ],
)
def test_unseen_waves_are_those_longer_than_training(cell, repaired, control):
    changes = CELLS[cell]["model.encoding"]
    encoding = attnjax.encoding(changes["name"], **changes["options"])
    for kind, waves in (("repaired", repaired), ("control", control)):
        made = repair.stopped(encoding, Sizes(64, 4, 4, 16), TRAINED, kind)
        assert (made.stopped, made.last) == (waves, 63)


@pytest.mark.parametrize(
    ("cell", "axes", "seen"),
    [("t5 usual", (4, 32), 27), ("learned 1", (64, 512), 64)],  # row 26 of T5 begins at distance 59, row 27 at 67
)
def test_unseen_rows_take_the_last_seen_one(cell, axes, seen):
    changes = CELLS[cell]["model.encoding"]
    encoding = attnjax.encoding(changes["name"], **changes["options"])
    table = np.arange(float(math.prod(axes))).reshape(axes)
    of_run = table if cell == "t5 usual" else table.T
    params = {"embedding": {"table": table}, "stack": {"q": table, "position": {"table": np.stack([of_run, of_run])}}}
    found = repair.mended(encoding, params, TRAINED, "repaired")
    assert found["embedding"]["table"] is found["stack"]["q"] is table
    by_row = np.asarray(found["stack"]["position"]["table"])
    by_row = by_row if cell == "t5 usual" else by_row.swapaxes(-1, -2)
    np.testing.assert_array_equal(by_row[..., :seen], np.stack([table[:, :seen]] * 2))
    np.testing.assert_array_equal(by_row[..., seen:], np.stack([table[:, [seen - 1] * (axes[1] - seen)]] * 2))


def test_a_loss_leaves_that_of_the_reference():
    index = pd.MultiIndex.from_tuples([("kerple", 0), ("kerple", 1), ("rope", 0), ("rope", 1)], names=["cell", "seed"])
    losses = [[1.0, 0.9, 0.8], [1.0, 0.7, 0.6], [1.1, 0.9, 0.9], [9.0, 9.0, 9.0]]
    scores = pd.DataFrame(losses, index, columns=[64, 96, 128])
    fit = measures.fitted(scores, 2.0)
    assert fit.tolist() == [True, True, True, False]
    # The reference is 1, 0.8, 0.7, so that the excess of RoPE is 0.1, 0.1, 0.2.
    risen = measures.rises(scores, fit)[fit]
    np.testing.assert_allclose(risen.loc["rope", 0], [0.0, 0.0, 0.1], atol=1e-12)
    assert measures.places(risen).tolist() == [1, measures.NEVER, 2]


def test_predictions_are_compared_over_the_same_samples():
    table = pd.DataFrame({name: [1, 2, 3, 4, 23] for name in measures.PREDICTIONS} | {"place": [1, 3, 5, 7, 23]})
    table["trained"], table["men"] = 1, [23, 4, 3, 2, 1]
    runs = [np.array([one, one, one]) for one in table.place]
    found = measures.compared(measures.Cells(table, runs)).set_index("prediction")
    assert found.loc["onset", ["tau", "low", "high", "near"]].tolist() == [1.0, 1.0, 1.0, 3 / 5]
    assert np.isnan(found.loc["trained", "tau"])
    assert found.loc["men", ["tau", "more_low", "more_high"]].tolist() == [-1.0, 2.0, 2.0]


def test_repair_takes_away_a_share_of_the_rise_over_the_reference():
    # The reference falls by 0.5; the model rises from 1 to 2, so by 1.5; repair gives back 1.2, the control takes 0.3.
    rows = [("trained", 64, 1.0), ("repaired", 64, 1.0), ("control", 64, 1.2), ("moved", 64, 0.3)]
    rows += [("trained", 256, 2.0), ("repaired", 256, 0.8), ("control", 256, 2.3)]
    records = pd.DataFrame([("rope", 0, *row) for row in rows], columns=["cell", "seed", "kind", "length", "value"])
    found = measures.gone(records, {64: 1.0, 256: 0.5}).set_index("kind")
    np.testing.assert_allclose(found.rise, 1.5)
    np.testing.assert_allclose(found.share[["repaired", "control"]], [0.8, -0.2])
