"""Heads written by hand are found by one call; counts and scores against loops; statistics of weights by hand."""

import math

import jax
import numpy as np
import pytest

from attnjax.config import parse
from attnjax.evaluation import LoadedModel, counts, head_scores, heads
from attnjax.evaluation.counts import Counts, best_head, count_heads, stands_out, token_targets
from attnjax.evaluation.heads import held_out
from attnjax.modules import Encoder
from attnjax.positions import ALiBi, Learned
from attnjax.train.loop import make_task
from attnjax.train.model import build
from tests.evaluation import planted_heads as planted

# Whole models -----------------------------------------------------------------------------------------------------------


def untrained(**settings) -> LoadedModel:
    run = parse({"model": {"layers": 2, "model": 16, "heads": 2, "hidden": 16}, **settings})
    task = make_task(run)
    model = build(run, task)
    return LoadedModel(model.module(model.init(jax.random.key(0))), "untrained", run, task)


def standing(found) -> dict[str, list[tuple[int, int]]]:
    """(layer, head) of all heads that stand out, by pattern."""
    marked = {name: np.argwhere(stands_out(name, one)).tolist() for name, one in found.items()}
    return {name: [tuple(place) for place in places] for name, places in marked.items() if places}


@pytest.fixture(scope="module")
def previous():
    """The scores of a head for the previous token."""
    return head_scores(planted.previous_by_bias(), planted.tokens(32), separators=(3, 4))


def test_a_head_for_the_previous_token_and_the_printed_table(previous):
    pattern = previous.patterns["previous_token"]
    # The other head attends to the i + 1 keys that row i sees alike, and that is chance.
    uniform = np.mean([1 / (i + 1) for i in range(1, 32)])
    np.testing.assert_allclose(pattern.score, [[1, uniform]], atol=1e-6)
    assert pattern.chance == pytest.approx(uniform, abs=1e-6)
    assert (pattern.baseline, pattern.offset, pattern.rows, pattern.documents) == (1.0, 1, 31 * 32, 32)
    assert standing(previous.patterns) == {"previous_token": [(0, 0)]}
    assert previous.best("previous_token") == (0, 0)
    entropies = [0, np.mean([math.log(i + 1) for i in range(32)])]
    np.testing.assert_allclose(previous.entropy[0], entropies, atol=1e-5)
    np.testing.assert_allclose(previous.distance[0], [31 / 32, np.mean(np.arange(32) / 2)], atol=1e-5)
    np.testing.assert_allclose(previous.sink[0], [1 / 31, uniform], atol=1e-5)
    assert [line.split()[:2] for line in str(previous).splitlines()[1:3]] == [["0.0", "1.000*"], ["0.1", "0.099"]]


def test_an_induction_circuit_needs_both_layers():
    subject = planted.induction()
    tokens = planted.tokens(32)
    counted = count_heads(subject, tokens, np.arange(32), {}, separators=(3, 4))
    found = {name: counts.scores(one) for name, one in counted.items()}
    assert standing(found) == {"previous_token": [(0, 0)], "induction": [(1, 0)]}
    assert best_head(counted["induction"]) > 0.999
    assert found["induction"].baseline < 0.4
    first = subject.module()
    planted.put(first.stack.blocks[0].attention.w_o, ..., 0.0)
    alone = count_heads(LoadedModel(first), tokens, np.arange(32), {})
    still = standing({name: counts.scores(one) for name, one in alone.items()})
    assert still == {"previous_token": [(0, 0)]}


def test_an_encoder_can_attend_to_the_next_token():
    subject = planted.previous_by_bias(Encoder)
    assert subject.visible_keys(5).all()
    tokens = planted.tokens(4)
    found = counts.scores(count_heads(subject, tokens, np.arange(4), {})["next_token"])
    assert (found.baseline, found.offset) == (1.0, -1)
    assert found.score[0, 1] == pytest.approx(1 / 32, abs=1e-6)


def test_windows_of_one_document_are_added_whatever_the_batch():
    subject, tokens = LoadedModel(planted.drawn(planted.config())), planted.tokens(5)
    linked = {"mine": np.random.default_rng(0).uniform(size=(5, 32, 32)) < 0.1}
    apart = count_heads(subject, tokens, np.arange(5), linked, batch=5)
    together = count_heads(subject, tokens, np.array([7, 3, 7, 3, 9]), linked, batch=2)
    for name, one in apart.items():
        for a, b in zip(one[:-1], together[name][:-1], strict=True):
            np.testing.assert_allclose([a[1] + a[3], a[0] + a[2], a[4]], b, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_a_run_is_shown_held_out_examples_of_its_task(tmp_path):
    found = head_scores(untrained(task={"name": "reverse_string", "length_max": 6}))
    separator = 2  # two symbols come first; input, separator and answer
    assert found.tokens.shape == (64, 13)
    assert (found.tokens[:, 6] == separator).all()
    np.testing.assert_array_equal(found.tokens[:, 7:], found.tokens[:, 5::-1])
    assert found.patterns["separator"].rows == 64 * 6
    encoder = untrained(task={"name": "reverse_string", "length_max": 6, "form": "encoder"})
    assert not head_scores(encoder).patterns["separator"].rows
    # Every file is one byte again and again, so that a window tells its file, which is one document.
    for i in range(60):
        (tmp_path / f"{i}.txt").write_bytes(bytes([40 + i]) * 300)
    subject = untrained(task={"name": "text", "options": {"path": str(tmp_path)}, "length_max": 32})
    rows, document = held_out(subject)
    test = {byte for byte in make_task(subject.run).for_split("test").data.tolist() if byte}
    assert set(rows.ravel().tolist()) <= test | {0}, "bytes that were not trained on"
    files = {byte: set(document[(rows == byte).all(1)].tolist()) for byte in test}
    assert sum(map(len, files.values())) == len(set().union(*files.values())) == len(files) > 1


ZEROS, SUBJECT = np.zeros((2, 8), int), planted.previous_by_bias()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: head_scores(SUBJECT), "previous by bias .*tokens"),
        (lambda: head_scores(SUBJECT, ZEROS + 12), r"0..11 .*12..12"),
        (lambda: head_scores(SUBJECT, np.zeros((2, 8))), r"float64\[2, 8\]"),
        (lambda: head_scores(SUBJECT, ZEROS, document=np.arange(3)), r"2 windows.*\(3,\)"),
        (lambda: head_scores(SUBJECT, ZEROS, linked={"a": ZEROS > 0}), r"'a'.*\[2, 8, 8\]"),
        (
            lambda: head_scores(LoadedModel(planted.blank(planted.config(encoding=Learned(16)))), planted.tokens(2)),
            "0..15.*0..31",
        ),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_patterns_without_a_score_and_layers_that_see_differently_are_named(previous):
    with pytest.raises(ValueError, match="previous_token, .*'previous'"):
        previous.best("previous")
    nothing = {"separator": previous.patterns["separator"]._replace(rows=0)}
    with pytest.raises(ValueError, match="separator"):
        previous._replace(patterns=nothing).best("separator")
    windows = LoadedModel(planted.blank(planted.config(encoding=ALiBi(), layers=2, windows=(4, None))))
    with pytest.raises(ValueError, match=r"\(4, None\)"):
        windows.visible_keys(3)


# Patterns and counts ------------------------------------------------------------------------------------------------------

LOOPS = {
    "previous_token": lambda t, i, j: j == i - 1,
    "next_token": lambda t, i, j: j == i + 1,
    "first_token": lambda t, i, j: j == 0 and i > 0,
    "same_token": lambda t, i, j: j < i and t[j] == t[i],
    "separator": lambda t, i, j: j < i and t[j] in (2, 5),
    "induction": lambda t, i, j: 0 < j <= i and t[j - 1] == t[i],
}


def test_targets_are_those_of_loops():
    tokens = np.random.default_rng(0).integers(0, 6, (4, 12))
    found = token_targets(tokens, (2, 5))
    assert set(found) == set(LOOPS)
    for name, is_target in LOOPS.items():
        expected = [[[is_target(t, i, j) for j in range(12)] for i in range(12)] for t in tokens.tolist()]
        np.testing.assert_array_equal(found[name], expected, err_msg=name)
    text = token_targets(np.frombuffer(b"a b\nc", np.uint8)[None])
    assert np.argwhere(text["separator"][0]).tolist() == [[2, 1], [3, 1], [4, 1], [4, 3]]


def test_counts_against_loops():
    draw, visible = np.random.default_rng(0), np.tri(5, dtype=bool)
    weights = np.where(visible, draw.uniform(size=(1, 3, 2, 5, 5)), 0).astype(np.float32)
    targets = draw.uniform(size=(2, 3, 5, 5)) < 0.3
    _, keys = counts.offset_keys(visible)
    mass, rows, hits, chance = (np.asarray(part) for part in counts.count(weights, targets, visible, keys))
    for q, b in np.ndindex(2, 3):
        found = [[j for j in range(i + 1) if targets[q, b, i, j]] for i in range(5)]
        total = sum(weights[:, b, :, i][:, :, here].sum(-1) for i, here in enumerate(found))
        np.testing.assert_allclose(mass[q, b], total, atol=1e-6)
        assert rows[q, b] == sum(map(bool, found))
        assert hits[q, b].tolist() == [sum(max(i - o, 0) in found[i] for i in range(5)) for o in range(5)]
        assert chance[q, b] == pytest.approx(sum(len(here) / (i + 1) for i, here in enumerate(found)), abs=1e-5)


# Scores ---------------------------------------------------------------------------------------------------------------------


def drawn(documents: int = 6) -> Counts:
    """One layer of two heads, three offsets, random sums."""
    draw = np.random.default_rng(0)
    rows = draw.integers(1, 9, documents).astype(float)
    mass = draw.uniform(size=(documents, 1, 2)) * rows[:, None, None]
    hits = np.floor(draw.uniform(size=(documents, 3)) * (rows[:, None] + 1))
    return Counts(mass, rows, hits, 0.1 * rows, np.array([0, 1, 2]))


def test_scores_by_hand():
    """The mean over rows, not over documents; each document's offset is chosen by the other."""
    mass, hits = np.array([[[3.0, 0.0]], [[0.0, 1.0]]]), np.array([[3.0, 1], [1, 1]])
    found = counts.scores(Counts(mass, np.array([3.0, 1.0]), hits, np.ones(2), np.arange(2)))
    np.testing.assert_allclose(found.score, [[0.75, 0.25]])
    assert (found.rows, found.documents, found.chance, found.baseline, found.offset) == (4, 2, 0.5, 1.0, 0)
    # Resamples are the first twice, the second twice, or both: shares 1, 0 and 3/4.
    assert (found.low[0, 0], found.high[0, 0]) == pytest.approx((0.0, 1.0))


def crossed(values, rows) -> float:
    """The share of the best column, chosen on the documents of the other parity."""
    total = 0.0
    for d in range(len(values)):
        others = [e for e in range(len(values)) if e % 2 != d % 2]
        total += values[d, max(range(values.shape[1]), key=lambda c: sum(values[e, c] for e in others))]
    return total / rows.sum()


def test_the_best_of_several_is_chosen_on_other_documents():
    made = drawn()
    assert counts.scores(made).baseline == pytest.approx(crossed(made.hits, made.rows))
    assert best_head(made) == pytest.approx(crossed(made.mass[:, 0], made.rows))


def test_intervals_against_a_plain_bootstrap():
    made = drawn(12)
    found, draw, samples, gains = counts.scores(made), np.random.default_rng(7), [], []
    best = [made.hits[np.arange(12) % 2 != side].sum(0).argmax() for side in (0, 1)]
    hits = np.array([made.hits[d, best[d % 2]] for d in range(12)])
    for _ in range(4000):
        chosen = draw.integers(12, size=12)
        rows = made.rows[chosen].sum()
        samples.append(made.mass[chosen].sum(0) / rows)
        gains.append([samples[-1] - other[chosen].sum() / rows for other in (hits, made.chance)])
    np.testing.assert_allclose([found.low, found.high], np.percentile(samples, [2.5, 97.5], axis=0), atol=0.01)
    np.testing.assert_allclose(found.gain, np.percentile(gains, 2.5, axis=0).min(0), atol=0.015)


def test_documents_without_rows_do_not_count_and_one_has_no_interval():
    made = drawn()
    more = Counts(*(np.concatenate([part[:2], 0 * part[:1], part[2:]]) for part in made[:-1]), made.offsets)
    for one, other in zip(counts.scores(made), counts.scores(more), strict=True):
        np.testing.assert_array_equal(one, other)
    empty = counts.scores(Counts(*(0 * part for part in made[:-1]), made.offsets))
    assert np.isnan(empty.score).all()
    assert not stands_out("induction", empty).any()
    single = Counts(*(part[:1] for part in made[:-1]), made.offsets)
    one = counts.scores(single)
    assert np.isfinite(one.score).all()
    assert np.isnan([one.low, one.high, one.gain]).all()
    assert np.isnan([one.baseline, best_head(single)]).all()


def test_what_stands_out():
    full = np.full((4, 1, 2), [0.9, 0.1])
    made = Counts(full, np.ones(4), np.full((4, 1), 0.5), np.full(4, 0.2), np.arange(1))
    assert stands_out("induction", counts.scores(made)).tolist() == [[True, False]]
    # No head beats an offset at what an offset finds by definition: above one half is what counts.
    certain = counts.scores(made._replace(hits=np.ones((4, 1))))
    assert stands_out("induction", certain).tolist() == [[False, False]]
    assert stands_out("previous_token", certain).tolist() == [[True, False]]


# Statistics of weights ------------------------------------------------------------------------------------------------------


def test_a_key_ahead_is_as_far_as_one_behind():
    ahead = np.array([[0, 0, 1.0], [0.5, 0, 0.5]], np.float32)
    np.testing.assert_allclose(heads.mean_distance(ahead), [2, 1], atol=1e-6)


def test_losses_are_those_of_the_logits_with_heads_switched_off_or_not():
    subject, tokens = LoadedModel(planted.drawn(planted.config())), planted.tokens(2)
    gate = np.array([[0.0, 1.0]], np.float32)
    found = []
    for factor in (None, gate):
        logits = np.asarray(subject.logits(tokens, factor), np.float64)[:, :-1]
        truth = np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        found.append(np.asarray(subject.losses(tokens, factor)))
        np.testing.assert_allclose(found[-1], np.log(np.exp(logits).sum(-1)) - truth, rtol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 1e-3
