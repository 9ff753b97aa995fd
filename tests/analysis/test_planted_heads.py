"""Heads that were written by hand are found, where they were put and nowhere else; random numbers have none."""

import dataclasses

import numpy as np
import pytest

from attnjax.analysis.counting import count_heads
from attnjax.analysis.heads import check_head, module, visible_keys
from attnjax.analysis.loaded_model import LoadedModel
from attnjax.analysis.scores import best_head, score_heads, stands_out
from attnjax.modules import Encoder
from attnjax.positions import ALiBi, Learned, NoPE, RoPE
from tests.analysis import planted_heads as planted

WINDOWS = 24
CONTENT = ("same_token", "separator", "induction")


def measured(subject, windows=WINDOWS, **options):
    """Counts and scores on random tokens, every window a document of its own."""
    counts = count_heads(subject, planted.tokens(windows), np.arange(windows), {}, separators=(3, 4), **options)
    return counts, score_heads(counts)


def standing(found) -> dict[str, list[tuple[int, int]]]:
    """(layer, head) of all heads that stand out, by pattern."""
    marked = {name: np.argwhere(stands_out(name, one)) for name, one in found.items()}
    return {name: [tuple(place) for place in places.tolist()] for name, places in marked.items() if len(places)}


@pytest.mark.parametrize("make", [planted.previous_by_bias, planted.previous_by_rotation])
def test_a_head_for_the_previous_token(make):
    counts, found = measured(make())
    previous = found["previous_token"]
    assert previous.score[0, 0] == pytest.approx(1, abs=1e-6)
    # The other head attends to the i + 1 keys that row i sees alike, and that is chance.
    assert previous.score[0, 1] == pytest.approx(np.mean([1 / (i + 1) for i in range(1, 32)]), abs=1e-6)
    assert previous.chance == pytest.approx(previous.score[0, 1], abs=1e-6)
    assert (previous.baseline, previous.offset) == (1.0, 1)
    assert (previous.rows, previous.documents) == (31 * WINDOWS, WINDOWS)
    assert best_head(counts["previous_token"]) == pytest.approx(1, abs=1e-6)
    assert standing(found) == {"previous_token": [(0, 0)]}
    assert "next_token" not in found


def test_an_encoder_can_attend_to_the_next_token():
    _, found = measured(planted.previous_by_bias(Encoder))
    uniform = pytest.approx(1 / 32, abs=1e-6)
    assert found["previous_token"].score[0].tolist() == [pytest.approx(1, abs=1e-6), uniform]
    assert found["next_token"].score[0, 1] == uniform
    assert (found["next_token"].baseline, found["next_token"].offset) == (1.0, -1)
    assert visible_keys(planted.previous_by_bias(Encoder), 5).all()


def test_an_induction_circuit():
    counts, found = measured(planted.induction())
    score = found["induction"].score
    assert score[1, 0] > 0.999
    assert np.delete(score.ravel(), 2).max() < 0.35
    assert standing(found) == {"previous_token": [(0, 0)], "induction": [(1, 0)]}
    assert best_head(counts["induction"]) > 0.999
    assert found["induction"].baseline < 0.4


def test_a_circuit_without_its_first_layer_finds_nothing():
    subject = planted.induction()
    model = planted.blank(subject.config)
    whole = module(subject)
    model.embedding.table[...] = whole.embedding.table[...]
    model.stack.blocks[1].attention.w_q[...] = whole.stack.blocks[1].attention.w_q[...]
    model.stack.blocks[1].attention.w_k[...] = whole.stack.blocks[1].attention.w_k[...]
    assert standing(measured(LoadedModel(model))[1]) == {}


@pytest.mark.quick("0-rope")
@pytest.mark.parametrize("encoding", [NoPE(), RoPE()], ids=["nope", "rope"])
@pytest.mark.parametrize("seed", [0, 1])
def test_random_numbers_have_no_heads(encoding, seed):
    settings = planted.config(layers=2, heads=4, model=16, head_dim=4, encoding=encoding)
    _, found = measured(planted.drawn(settings, seed))
    assert standing(found) == {}
    for name in CONTENT:
        assert (found[name].low <= found[name].baseline).all(), name


def test_scores_do_not_depend_on_the_batch():
    subject = planted.drawn(planted.config())
    whole, parts = (measured(subject, windows=5, batch=batch)[0] for batch in (5, 2))
    for name, one in whole.items():
        for a, b in zip(one, parts[name]):
            np.testing.assert_allclose(a, b, atol=1e-4, err_msg=name)


def test_windows_of_one_document_are_added():
    subject = planted.drawn(planted.config())
    tokens = planted.tokens(4)
    apart = count_heads(subject, tokens, np.arange(4), {})
    together = count_heads(subject, tokens, np.array([7, 3, 7, 3]), {})
    for name, one in apart.items():
        np.testing.assert_allclose(together[name].mass, one.mass[[1, 0]] + one.mass[[3, 2]])
        np.testing.assert_array_equal(together[name].rows, one.rows[[1, 0]] + one.rows[[3, 2]])


def test_given_targets_are_scored_beside_the_others():
    linked = {"three_back": np.broadcast_to(np.eye(32, k=-3, dtype=bool), (6, 32, 32))}
    counts = count_heads(planted.previous_by_bias(), planted.tokens(6), np.arange(6), linked)
    found = score_heads(counts)["three_back"]
    assert found.score[0, 1] == pytest.approx(np.mean([1 / (i + 1) for i in range(3, 32)]), abs=1e-6)
    assert (found.offset, found.baseline, found.rows) == (3, 1.0, 29 * 6)


def test_a_window_of_the_config_hides_keys():
    settings = planted.config(window=(1, 0), encoding=NoPE())
    subject = LoadedModel(planted.blank(settings))
    np.testing.assert_array_equal(visible_keys(subject, 3), [[1, 0, 0], [1, 1, 0], [0, 1, 1]])
    _, found = measured(subject, windows=2)
    assert found["first_token"].rows == 2
    assert found["previous_token"].chance == 0.5


def test_windows_of_layers_must_agree():
    settings = planted.config(windows=(4,), encoding=NoPE())
    np.testing.assert_array_equal(visible_keys(LoadedModel(planted.blank(settings)), 3), np.tri(3, dtype=bool))
    subject = LoadedModel(planted.blank(dataclasses.replace(settings, layers=2, windows=(4, None))))
    with pytest.raises(ValueError, match=r"all layers of model must see equally far, got windows \(4, None\)"):
        visible_keys(subject, 3)


def test_a_text_longer_than_the_table_is_refused():
    subject = LoadedModel(planted.blank(planted.config(encoding=Learned(16))))
    with pytest.raises(ValueError, match=r"Learned has rows for positions 0..15, got positions 0..31"):
        measured(subject, windows=2)


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (1, 0, "layer must be in 0..0 for previous by bias, got 1"),
        (0, 2, "head must be in 0..1 for previous by bias, got 2"),
        (0, -1, "head must be in 0..1 for previous by bias, got -1"),
        (True, 0, "layer must be in 0..0 for previous by bias, got True"),
        (0.0, 0, "layer must be in 0..0 for previous by bias, got 0.0"),
    ],
)
def test_a_head_that_is_not_there_is_refused(layer, head, message):
    with pytest.raises(ValueError, match=message):
        check_head(planted.previous_by_bias(), layer, head)


@pytest.mark.parametrize(
    ("tokens", "document", "linked", "message"),
    [
        (np.full((2, 8), 12), np.arange(2), {}, r"tokens must be in 0..11 for model, got values in 12..12"),
        (np.zeros((2, 0), int), np.arange(2), {}, r"tokens must be integers \[B, T\], at least one, got int64\[2, 0\]"),
        (np.zeros((2, 8)), np.arange(2), {}, r"tokens must be integers \[B, T\], at least one, got float64\[2, 8\]"),
        (np.zeros((2, 8), int), np.arange(3), {}, r"one entry for each of the 2 windows, got shape \(3,\)"),
        (
            np.zeros((2, 8), int),
            np.arange(2),
            {"name": np.zeros((2, 8, 7), bool)},
            r"targets of 'name' must be booleans \[2, 8, 8\], got bool\[2, 8, 7\]",
        ),
    ],
)
def test_mistakes_are_named(tokens, document, linked, message):
    subject = LoadedModel(planted.blank(planted.config(encoding=ALiBi())))
    with pytest.raises(ValueError, match=message):
        count_heads(subject, tokens, document, linked)
