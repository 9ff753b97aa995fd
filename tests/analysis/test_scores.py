"""Scores of heads from counts: sums by hand, baselines and intervals by loops."""

import numpy as np
import pytest

from attnjax.analysis import counting, scores
from attnjax.analysis.counting import Counts


def counts(documents: int = 6, seed: int = 0) -> Counts:
    """One layer of two heads, three offsets, random sums."""
    draw = np.random.default_rng(seed)
    rows = draw.integers(1, 9, documents).astype(float)
    mass = draw.uniform(size=(documents, 1, 2)) * rows[:, None, None]
    hits = np.floor(draw.uniform(size=(documents, 3)) * (rows[:, None] + 1))
    return Counts(mass, rows, hits, 0.1 * rows, np.array([0, 1, 2]))


def test_a_score_is_the_mean_over_rows_not_over_documents():
    made = Counts(
        np.array([[[3.0, 0.0]], [[0.0, 1.0]]]),
        np.array([3.0, 1.0]),
        np.array([[3.0, 1], [1, 1]]),
        np.ones(2),
        np.arange(2),
    )
    found = scores.scores(made)
    np.testing.assert_allclose(found.score, [[0.75, 0.25]])
    assert (found.rows, found.documents) == (4, 2)
    assert found.chance == 0.5
    # Each document's offset is chosen by the other: offset 0 on the first (a tie counts as the smaller), 0 on the second.
    assert found.baseline == 1.0
    assert found.offset == 0
    # Resamples are the first twice, the second twice, or both: shares 1, 0 and 3/4.
    np.testing.assert_allclose([found.low[0, 0], found.high[0, 0]], [0.0, 1.0])


def test_the_baseline_is_chosen_on_other_documents():
    made = counts()
    total = 0.0
    for d in range(6):
        others = [e for e in range(6) if e % 2 != d % 2]
        best = max(range(3), key=lambda o: sum(made.hits[e, o] for e in others))
        total += made.hits[d, best]
    found = scores.scores(made)
    assert found.baseline == pytest.approx(total / made.rows.sum())
    assert found.offset == int(made.hits.sum(0).argmax())


def test_offsets_that_hit_by_chance_alone_are_not_flattered():
    draw, naive, crossed = np.random.default_rng(1), [], []
    for _ in range(20):
        hits = draw.binomial(1, 0.2, (40, 60)).astype(float)
        naive.append(hits.mean(0).max())
        made = Counts(np.zeros((40, 1, 1)), np.ones(40), hits, np.zeros(40), np.arange(60))
        crossed.append(scores.scores(made, resamples=10).baseline)
    # 20 means of 40 draws at 0.2 have a standard error of 0.014.
    assert np.mean(naive) > 0.3
    assert np.mean(crossed) == pytest.approx(0.2, abs=3 * 0.014)


def test_intervals_against_a_plain_bootstrap():
    made = counts(12)
    found = scores.scores(made)
    draw = np.random.default_rng(7)
    hits = scores.baseline_hits(made)
    samples, gains = [], []
    for _ in range(4000):
        chosen = draw.integers(12, size=12)
        rows = made.rows[chosen].sum()
        samples.append(made.mass[chosen].sum(0) / rows)
        against = [hits[chosen].sum() / rows, made.chance[chosen].sum() / rows]
        gains.append([samples[-1] - other for other in against])
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    np.testing.assert_allclose(found.low, low, atol=0.01)
    np.testing.assert_allclose(found.high, high, atol=0.01)
    np.testing.assert_allclose(found.gain, np.percentile(gains, 2.5, axis=0).min(0), atol=0.015)


def test_draws_repeat_and_have_the_size_of_the_sample():
    draws = scores.resampled(5, 100)
    assert (draws.sum(1) == 5).all()
    np.testing.assert_array_equal(draws, scores.resampled(5, 100))


def test_the_best_head_is_counted_on_documents_that_did_not_choose_it():
    made = counts(8)
    total = 0.0
    for d in range(8):
        others = [e for e in range(8) if e % 2 != d % 2]
        best = max(range(2), key=lambda n: sum(made.mass[e, 0, n] for e in others))
        total += made.mass[d, 0, best]
    assert scores.best_head(made) == pytest.approx(total / made.rows.sum())


def test_documents_without_rows_do_not_count():
    made = counts()
    more = Counts(*(np.concatenate([part[:2], 0 * part[:1], part[2:]]) for part in made[:-1]), made.offsets)
    for one, other in zip(scores.scores(made), scores.scores(more)):
        np.testing.assert_array_equal(one, other)


def test_without_rows_or_with_one_document_there_is_no_interval():
    nothing = Counts(*(0 * part for part in counts()[:-1]), np.arange(3))
    empty = scores.scores(nothing)
    assert np.isnan(scores.best_head(nothing))
    assert np.isnan(empty.score).all()
    assert empty.documents == 0
    assert not scores.stands_out("induction", empty).any()
    single = Counts(*(part[:1] for part in counts()[:-1]), np.arange(3))
    one = scores.scores(single)
    assert np.isfinite(one.score).all()
    assert np.isnan([one.low, one.high, one.gain]).all()
    assert np.isnan(one.baseline)
    assert np.isnan(scores.best_head(single))


def test_what_stands_out():
    full = np.full((4, 1, 2), [0.9, 0.1])
    made = Counts(full, np.ones(4), np.full((4, 1), 0.5), np.full(4, 0.2), np.arange(1))
    assert scores.stands_out("induction", scores.scores(made)).tolist() == [[True, False]]
    # No head beats an offset at what an offset finds by definition: above one half is what counts.
    certain = made._replace(hits=np.ones((4, 1)))
    assert scores.stands_out("induction", scores.scores(certain)).tolist() == [[False, False]]
    assert scores.stands_out("previous_token", scores.scores(certain)).tolist() == [[True, False]]


def test_offsets_end_at_the_nearest_visible_key():
    offsets, keys = counting.offset_keys(np.tri(3, dtype=bool))
    assert offsets.tolist() == [0, 1, 2]
    assert keys.tolist() == [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    offsets, keys = counting.offset_keys(np.ones((3, 3), bool))
    assert offsets.tolist() == [-2, -1, 0, 1, 2]
    assert keys[0].tolist() == [2, 2, 2]
    window = np.tri(4, dtype=bool) & ~np.tri(4, k=-2, dtype=bool)
    offsets, keys = counting.offset_keys(window)
    assert offsets.tolist() == [0, 1]
    assert keys[1].tolist() == [0, 0, 1, 2]


def test_counts_against_loops():
    draw = np.random.default_rng(0)
    visible = np.tri(5, dtype=bool)
    weights = np.where(visible, draw.uniform(size=(1, 3, 2, 5, 5)), 0).astype(np.float32)
    targets = draw.uniform(size=(2, 3, 5, 5)) < 0.3
    _, keys = counting.offset_keys(visible)
    mass, rows, hits, chance = (np.asarray(part) for part in counting.count(weights, targets, visible, keys))
    for q, b in np.ndindex(2, 3):
        expected = np.zeros((1, 2)), 0, np.zeros(5), 0.0
        total, number, hit, share = expected
        for i in range(5):
            here = [j for j in range(i + 1) if targets[q, b, i, j]]
            number += bool(here)
            share += len(here) / (i + 1)
            total = total + weights[:, b, :, i][:, :, here].sum(-1)
            hit += [max(i - o, 0) in here for o in range(5)]
        np.testing.assert_allclose(mass[q, b], total, atol=1e-6)
        np.testing.assert_array_equal(hits[q, b], hit)
        assert rows[q, b] == number
        assert chance[q, b] == pytest.approx(share, abs=1e-5)
