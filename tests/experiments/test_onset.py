"""The onset law: predictions by hand, and repairs that change the unseen codes alone."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import attnjax
from attnjax.config import load, override, parse
from attnjax.positions.base import Sizes, Tile
from attnjax.train.loop import make_task
from attnjax.train.model import build
from configs.onset import CELLS, MARKOV
from experiments.onset import predict, repair

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


@pytest.mark.parametrize(("cell", "seen", "axis"), [("t5 usual", 27, -1), ("learned 1", 64, -2)])
def test_unseen_rows_take_the_last_seen_one(cell, seen, axis):
    # T5: row 26 begins at distance 59, and row 27 at 67.
    run = parse(override(load("onset:markov").config, {**MARKOV, **CELLS[cell]}))
    task = make_task(run)
    model = build(run, task)
    shapes = jax.eval_shape(jax.vmap(model.init), jax.random.split(jax.random.key(0), 2))
    params = jax.tree.map(lambda leaf: np.arange(float(leaf.size)).reshape(leaf.shape), shapes)
    same, mended = repair.changed(run, task, model, params, "repaired")
    assert same is model
    np.testing.assert_array_equal(mended["embedding"]["table"], params["embedding"]["table"])
    before, after = (jax.tree.leaves_with_path(one["stack"]) for one in (params, mended))
    for (path, old), (_, new) in zip(before, after, strict=True):
        if path[-1].key == "table":
            old = np.moveaxis(np.array(old), axis, 0)
            new = np.moveaxis(np.asarray(new), axis, 0)
            old[seen:] = old[seen - 1]
        np.testing.assert_array_equal(new, old)
