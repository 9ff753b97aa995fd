"""Figures of heads: what they show, that both files are written, and what they refuse."""

import numpy as np
import pytest

from attnjax.analysis import curves, maps
from attnjax.analysis.scores import HeadScores
from attnjax.analysis.subject import Subject
from attnjax.positions import Learned
from attnjax.report.drawing import settings
from tests.analysis import planted_heads as planted


def subject(**fields) -> Subject:
    """A reader of bytes, two layers, every head alike."""
    return Subject(planted.blank(planted.config(vocab=256, layers=2, **fields)), "blank")


def scores(low: float = 0.2, gain: float = 0.1) -> HeadScores:
    """Two layers of two heads; the first head of all is the better one."""
    table = np.array([[0.9, 0.3], [0.2, 0.1]])
    return HeadScores(table, table - 0.05, table + 0.05, table - 0.5 + gain, 0.4, 0.1, 3, 99, 9)


def test_maps_are_weights_where_keys_are_seen():
    found = maps.head_maps(subject(), b"abc")
    assert found.shape == (2, 2, 3, 3)
    row = [[1, np.nan, np.nan], [1 / 2, 1 / 2, np.nan], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(found[1, 0], row, rtol=1e-6)
    np.testing.assert_array_equal(maps.head_map(subject(), b"abc", 1, 0), found[1, 0])


def test_a_figure_of_maps_has_a_panel_per_head_and_one_scale():
    text = "a b\n\t\x01é".encode()
    with settings():
        figure = maps.draw_maps(maps.head_maps(subject(), text), maps.byte_names(text), "title")
    *panels, _bar = figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == [f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)]
    assert len({id(panel.images[0].norm) for panel in panels}) == 1
    labels = [tick.get_text() for tick in panels[2].get_xticklabels()]
    assert labels == ["a", "\u2423", "b", "\u21b5", "\u2192", "01", "c3", "a9"]
    assert [tick.get_text() for tick in panels[2].get_yticklabels()] == labels
    assert not any(tick.get_text() for tick in panels[1].get_xticklabels())


def test_long_texts_have_numbers_instead_of_names():
    text = b"x" * 64
    with settings():
        figure = maps.draw_maps(np.zeros((1, 1, 64, 64)), maps.byte_names(text), "title")
    labels = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert labels[0] == "0"
    assert labels[-1] == "63"
    assert len(labels) <= 6


def test_a_figure_of_scores_frames_the_heads_that_stand_out():
    found = {"induction": scores(), "previous_token": scores()}
    with settings():
        figure = maps.draw_scores(found, "title")
    axis = figure.axes[0]
    framed = [patch for patch in axis.patches if not patch.get_fill()]
    # Induction: gain 0.5 of the best head alone; the previous token: above one half.
    assert [(round(patch.get_x() + 0.46), round(patch.get_y() + 0.44)) for patch in framed] == [(0, 0), (1, 0)]
    rows = [tick.get_text() for tick in axis.get_yticklabels()]
    assert rows == [*(f"layer {i}, head {j}" for i in (1, 2) for j in (1, 2)), "best offset", "chance"]
    words = [text.get_text() for text in axis.texts]
    assert words == ["0.90"] * 2 + ["0.30"] * 2 + ["0.20"] * 2 + ["0.10"] * 2 + [""] * 2 + ["0.40"] * 2 + ["0.10"] * 2
    assert [text.get_fontweight() == "bold" for text in axis.texts[:4]] == [True, True, False, False]


def test_a_figure_of_biases_begins_at_nought():
    found = np.array([[[1.0, 2.0, 4.0], [0.0, -1.0, -2.0]]])
    with settings():
        figure = curves.draw_curves(np.array([0, 1, 2]), found, "title")
    lines = [line.get_ydata().tolist() for line in figure.axes[0].lines[:2]]
    assert lines == [[0, 1, 3], [0, -1, -2]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["head 1", "head 2"]


def test_files_are_written_and_repeat(tmp_path):
    first, again = (maps.write_scores({"name": scores()}, tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in first] == ["one.png", "one.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    drawn = maps.write_maps(subject(), b"if x:", tmp_path / "maps")
    drawn += curves.write_curves(planted.drawn(planted.config()), np.arange(20), tmp_path / "curves")
    assert all(path.stat().st_size > 1000 for path in drawn)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: maps.write_maps(subject(), b"", path), r"tokens must be integers \[B, T\], at least one, got"),
        (lambda path: maps.write_maps(subject(), b"x" * 257, path), "a map shows at most 256 tokens, got 257"),
        (
            lambda path: maps.write_maps(subject(encoding=Learned(4)), b"12345", path),
            r"Learned has rows for positions 0..3, got positions 0..4",
        ),
        (
            lambda path: maps.write_maps(Subject(planted.blank(planted.config())), b"abc", path),
            r"tokens must be in 0..11 for model, got values in 97..99",
        ),
        (lambda path: maps.head_map(subject(), b"abc", 2, 0), "layer must be in 0..1 for blank, got 2"),
        (lambda path: maps.head_map(subject(), b"abc", 0, 2), "head must be in 0..1 for blank, got 2"),
        (lambda path: maps.write_scores({}, path), "there are no scores to draw"),
    ],
)
def test_mistakes_are_named(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "figure")
    assert not list(tmp_path.iterdir())
