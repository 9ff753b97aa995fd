"""What the figure shows: which rows, which numbers, the limits by hand, and names that do not cover each other."""

import math

import pytest

from experiments.speed import figure
from experiments.speed.records import Spread
from tests.experiments.speed.made import row

BOTH = "forward + backward, causal"
SIZES = {"B": 4, "N": 8, "H": 64}
MACHINE = {"peak_flops": 1e9, "cores": 2, "processor": "abacus"}


def timed(T: int, seconds: float = 1.0, **changes):
    """A row of the left panel."""
    changes = {"case": BOTH, "our_figure": Spread(seconds, 0.9 * seconds, 1.1 * seconds), **changes}
    return row(sizes={"T": T, **SIZES}, **changes)


def held(T: int, size: float = 2.0**20, **changes):
    """A row of the right panel."""
    changes = {
        "case": "gradient, nope against T",
        "our_figure": Spread.of([size]),
        "peer_figure": Spread.of([8 * size]),
        **changes,
    }
    return row(suite="memory", unit="B", sizes={"T": T, **SIZES}, **changes)


def test_the_left_panel_is_of_both_directions_without_an_encoding():
    kept = [
        timed(128, suite="short", case="forward + backward, nope"),
        timed(1024),
        timed(1024, suite="attention_torch", case="NoPE, forward + backward, T=1024"),
    ]
    others = [
        timed(1024, case="forward, causal"),
        timed(1024, suite="attention_torch", case="T5Bias, forward + backward, T=1024"),
        timed(128, suite="short", case="forward + backward, rope"),
        timed(1024, suite="bias"),
        row(case=BOTH, sizes={}),
        row(case=BOTH, sizes={"T": "long"}),
        row(case=BOTH, sizes={"T": 0}),
        timed(1024, 0.0),
        timed(1024, peer_figure=Spread.of([math.inf])),
        held(1024),
    ]
    assert figure.of_time([*others, *kept]) == kept
    assert figure.of_time([timed(1024), timed(1024, peer="flax")]) == [], "one length is no line"


def test_the_right_panel_is_of_cases_at_several_lengths():
    kept = [held(1024), held(2048)]
    others = [held(2048, case="gradient, t5"), held(2048, case="gradient, rope"), timed(1024), timed(2048)]
    assert figure.of_memory([*kept, *others]) == kept


def test_the_limit_by_hand():
    """3.5 x 2 x 4 x 8 x 64 x 1024^2 FLOPs at 1e9 a second."""
    name, seconds = figure.time_limit(MACHINE, [timed(1024)])
    assert (name, seconds(1024)) == ("peak, 1.00 GFLOP/s", pytest.approx(15.032385536))
    assert seconds(2048) == 4 * seconds(1024)
    assert figure.time_limit({}, [timed(1024)]) is None
    assert figure.time_limit(MACHINE, [timed(1024), row(sizes={"T": 1024, "B": 1, "N": 8, "H": 64})]) is None


def test_a_contender_measured_twice_is_one_line():
    rows = [
        timed(1024, 2.0, peer="flax"),
        timed(2048, 8.0, peer="jax.nn xla"),
        timed(1024, 3.0, peer="jax.nn xla"),
        timed(1024, 7.0, peer="torch", ours="attend"),
    ]
    lines = figure.lines(rows)
    assert [(line.name, line.ours) for line in lines] == [
        ("attnjax", True),
        ("flax", False),
        ("jax.nn xla", False),
        ("torch", False),
    ]
    assert lines[0].points[1024] == pytest.approx((3.0, 1.8, 7.7))
    assert lines[0].points[2048] == pytest.approx((8.0, 7.2, 8.8))
    assert lines[1].points == {1024: (0.04, 0.038, 0.045)}


@pytest.mark.parametrize(
    ("heights", "placed"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([0.2, 0.5], [0.2, 0.5]),
        ([0.5, 0.5], [0.45, 0.55]),
        ([0.3, 0.35, 0.8], [0.275, 0.375, 0.8]),
        ([0.4, 0.5, 0.5, 0.52], [0.33, 0.43, 0.53, 0.63]),
        ([0.0, 0.02], [0.0, 0.1]),
        ([0.98, 1.0, 1.0], [0.8, 0.9, 1.0]),
    ],
)
def test_names_move_as_little_as_needed(heights, placed):
    assert figure.spaced(heights, 0.1) == pytest.approx(placed)


def test_every_contender_has_a_look_of_its_own_in_both_panels():
    rows = [timed(1024, peer=f"peer {i}") for i in range(9)]
    looks = figure.looks_of(rows)
    assert len(looks) == 10
    assert len({look.color for look in looks.values()}) == 10


@pytest.fixture(scope="module")
def rows():
    lengths = (512, 1024, 2048)
    made = [timed(T, 1e-8 * T**2, peer=peer) for T in lengths for peer in ("jax.nn xla", "flax", "$x$")]
    return [*made, *(held(T, 1000.0 * T) for T in lengths)]


def test_the_drawing_holds_the_numbers(rows):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")
    drawn = figure.draw(MACHINE, figure.of_time(rows), figure.of_memory(rows))
    left, right = drawn.axes
    assert [axis.get_yscale() for axis in drawn.axes] == ["log", "log"]
    ours, *_, limit = left.get_lines()
    assert list(ours.get_xdata()) == [512, 1024, 2048]
    assert list(ours.get_ydata()) == pytest.approx([1e-8 * T**2 for T in (512, 1024, 2048)])
    assert limit.get_ydata()[1] == pytest.approx(15.032385536)
    assert {text.get_text() for text in left.texts} == {"attnjax", "jax.nn xla", "flax", "$x$", "peak, 1.00 GFLOP/s"}
    assert list(right.get_lines()[1].get_ydata()) == [8000.0 * T for T in (512, 1024, 2048)]
    assert right.get_xlabel() == "T, tokens (B=4 N=8 H=64)"


def test_files_are_the_same_for_the_same_rows(rows, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib, an optional dependency")
    few = [one for one in rows if one.suite == "memory"]
    made = [figure.write({}, few, tmp_path / name) for name in ("a", "b")]
    assert [path.name for path in made[0]] == ["a.png", "a.svg"]
    assert made[0][0].read_bytes().startswith(b"\x89PNG")
    assert [path.read_bytes() for path in made[0]] == [path.read_bytes() for path in made[1]]


def test_where_it_was_measured():
    assert figure.place({"cores": 2, "processor": "abacus", "backend": "cpu", "device": "cpu"}) == "2 cores of abacus"
    assert figure.place({"cores": 2, "processor": "abacus", "backend": "gpu", "device": "big card"}) == "big card"
    assert figure.place({"processor": None}) == ""


def test_nothing_to_show_makes_no_file(tmp_path):
    assert figure.write(MACHINE, [row(), timed(1024), held(1024)], tmp_path / "a") == []
    assert list(tmp_path.iterdir()) == []
