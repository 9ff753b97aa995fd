"""What differs between a config and a published protocol: by hand, and the statement itself against published.csv."""

import pytest

from attnjax.config import defaults, parse, to_dict
from attnjax.config.names import ENCODING_NAMES, TASK_NAMES
from attnjax.records.values import dotted
from experiments.published.cells import Cell, cells
from experiments.published.protocols import TOPICS, Differs, counted, differs, holds, in_words, protocols, sizes, topics

KAZEMNEJAD = "Kazemnejad et al. 2023 (arXiv:2305.19466)"


def cell(task: str, encoding: str, options: str = "", paper: str = "") -> Cell:
    """The first published cell of these."""
    found = (c for c in cells() if (c.task, c.encoding, c.options) == (task, encoding, options) and paper in c.paper)
    return next(found)


def run(**changes) -> dict:
    """The stored config of a run with these changes."""
    config = defaults()
    config.unlock()
    for key, value in changes.items():
        name, _, field = key.partition("__")
        config[name][field] = value
    return to_dict(parse(config))


def words(found: tuple[Differs, ...], topic: str) -> list[str]:
    return [one.words for one in found if one.topic == topic]


def test_full_rotary_positions_are_not_a_quarter_of_them():
    full = differs(cell("copy", "rope", "variant=rsc"), run())
    assert words(full, "encoding") == ["fraction 1 (0.25)", "layout half (interleaved)"]
    options = {"fraction": 0.25, "layout": "interleaved"}
    same = differs(cell("copy", "rope", "variant=rsc"), run(model__encoding={"name": "rope", "options": options}))
    assert words(same, "encoding") == []
    assert "bias yes (no)" in words(same, "architecture")
    assert "layers 2 (12)" in words(same, "size")


def test_a_size_that_is_the_published_one_is_not_named():
    """Huang's binary majority without positions: 1 layer, 1 head, width 16, rate 1e-3."""
    mine = run(model__layers=1, model__heads=1, model__model=16, model__hidden=64, train__learning_rate=1e-3)
    found = differs(cell("binary_majority", "nope"), mine)
    assert words(found, "size") == []
    assert "learning_rate 0.001 (0.001)" not in words(found, "training")
    wider = differs(cell("binary_majority", "nope"), {**mine, "model": {**mine["model"], "model": 64}})
    assert words(wider, "size") == ["model 64 (16)"]


def test_positions_and_trained_lengths_are_compared_with_the_cell():
    found = differs(cell("sort", "learned"), run(task__name="sort", task__length_max=20))
    assert "positions arange (offset)" in words(found, "encoding")
    assert "trained to 20 (50)" in words(found, "data")
    assert "trained to 50 (50)" not in words(differs(cell("sort", "learned"), run(task__length_max=50)), "data")


def test_settings_hold_for_their_cells_alone():
    one = {"topic": "data", "key": "x", "theirs": 1, "options": "variant=rsc"}
    assert holds(one, cell("copy", "nope", "variant=rsc"))
    assert not holds(one, cell("copy", "nope", "variant=cmc"))
    assert not holds({"task": "parity"}, cell("sort", "nope"))
    assert "lengths from 1 (from 0)" in words(differs(cell("parity", "nope"), run()), "data")
    assert "lengths from 1 (from 0)" not in words(differs(cell("sort", "nope"), run()), "data")


def test_a_setting_that_a_config_does_not_give_is_told():
    found = differs(cell("sort", "nope"), {"model": {"layers": 1}})
    assert "heads not given (1)" in words(found, "size")
    assert "layers 1 (1)" not in words(found, "size")


@pytest.mark.parametrize(
    ("task", "encoding", "options", "expected"),
    [
        ("sort", "nope", "", "fitted"),
        ("parity", "nope", "", "all"),
        ("parity", "learned", "", "fitted"),
        ("copy", "nope", "variant=rsc", "all"),
        ("text", "alibi", "", "only"),
    ],
)
def test_runs_that_enter_a_published_number(task: str, encoding: str, options: str, expected: str):
    """Huang's 12-layer models, as that of parity without positions, enter as they are."""
    assert counted(cell(task, encoding, options)) == expected


def test_the_statement_is_about_fields_that_configs_have_and_cells_that_are_kept():
    fields = {key for key, _ in dotted(run())} | {"train.until", "model.kernel_std", "model.residual_start"}
    papers = protocols()
    assert papers.keys() == {one.paper for one in cells()}
    for name, paper in papers.items():
        assert paper["counted"] in ("all", "fitted", "only")
        of_paper = [one for one in cells() if one.paper == name]
        for setting in paper["settings"]:
            assert setting["key"] in fields or setting["key"].startswith(("task.options.", "model.encoding.options."))
            assert setting["topic"] in TOPICS
            assert any(holds(setting, one) for one in of_paper), setting
        for one in paper["always"]:
            assert one["topic"] in TOPICS
        for encoding, tasks in paper.get("sizes", {}).items():
            assert encoding in ENCODING_NAMES
            assert tasks.keys() <= set(TASK_NAMES)
            assert all(len(row) == len(paper["columns"]) for row in tasks.values())
    assert all(sizes(papers[one.paper], one) for one in cells() if "Huang" in one.paper)


def test_differences_in_words():
    found = [
        Differs("encoding", "fraction 1 (0.25)"),
        Differs("size", "layers 2 (12)"),
        Differs("size", "heads 4 (12)"),
    ]
    assert topics(found) == "encoding: fraction 1 (0.25); size"
    assert in_words(found) == "encoding: fraction 1 (0.25); size: layers 2 (12), heads 4 (12)"
    assert topics([]) == in_words([]) == ""
