"""The record of a benchmark: what is written is read, and what is not a row is said to be none."""

import json

import pytest

from experiments.speed.records import Record, Spread, compared, read, suites
from tests.experiments.speed.made import row

MACHINE = {"processor": "abacus", "cores": 2}
NAMES = {"suite": "a", "case": "b", "ours": "c", "peer": "d"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "er" / "speed.jsonl"


def test_what_is_written_is_read_after_every_row(path):
    record = Record(path, MACHINE)
    assert read(path) == (MACHINE, [])
    rows = [row(), row(goal=None, error=None, note="a µ\nb"), row(unit="B", our_figure=Spread.of([3.0]), sizes={})]
    for count, one in enumerate(rows, 1):
        record.add(one)
        assert read(path) == (MACHINE, rows[:count])


def test_a_new_record_starts_anew(path):
    Record(path, MACHINE).add(row())
    Record(path, {"cores": 3})
    assert read(path) == ({"cores": 3}, [])


@pytest.mark.parametrize(
    ("values", "spread"),
    [
        ([5.0], (5, 5, 5)),
        ([1.0, 3.0], (2, 1.5, 2.5)),
        ([5.0, 1.0, 4.0, 2.0, 3.0], (3, 2, 4)),
        ([4.0, 3.0, 2.0, 1.0], (2.5, 1.75, 3.25)),
        ([1.0, 1.0, 100.0], (1, 1, 50.5)),
    ],
)
def test_median_and_quartiles(values, spread):
    assert Spread.of(values) == spread


def test_a_ratio_is_taken_inside_a_round():
    """Rounds 1/1, 10/2 and 4/4; the ratio of the medians would be 4/2."""
    assert compared([1.0, 2.0, 4.0], [1.0, 10.0, 4.0], **NAMES).ratio == (1, 1, 3)


def test_a_ratio_needs_the_same_rounds():
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is shorter"):
        compared([1.0, 2.0], [1.0], **NAMES)


def test_times_have_rounds_and_counts_have_none():
    assert [compared([1.0, 2.0], [3.0, 4.0], unit=unit, **NAMES).rounds for unit in ("s", "B", "programs")] == [
        2,
        None,
        None,
    ]


@pytest.mark.parametrize("goal", [3.9, 4.0])
def test_a_goal_is_met_by_the_median(goal):
    assert row(goal=goal).met is True


def test_a_goal_is_missed_where_only_the_quartile_reaches_it():
    assert row(goal=4.2).met is False
    assert row(goal=None).met is None


def test_suites_in_order_of_appearance():
    assert suites([row(suite=name) for name in ("memory", "attention", "memory", "bias")]) == [
        "memory",
        "attention",
        "bias",
    ]


def entry(**changes) -> str:
    whole = {"suite": "a", "case": "b", "ours": "c", "peer": "d", "unit": "s"}
    whole |= {name: [1, 1, 1] for name in ("our_figure", "peer_figure", "ratio")}
    return json.dumps({key: value for key, value in {**whole, **changes}.items() if value is not ...})


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (entry()[:-20], "Expecting|Unterminated|delimiter"),
        ("", "Expecting value"),
        ("[1]", "str"),
        ("null", "NoneType"),
        ("7", "int"),
        ('"machine"', "indices must be integers"),
        (entry(ratio=...), "'ratio'"),
        (entry(ratio=[1, 2]), "missing 1 required positional argument: 'high'"),
        (entry(suite=...), "missing 1 required positional argument: 'suite'"),
        (entry(color="red"), "unexpected keyword argument 'color'"),
    ],
)
def test_a_line_that_is_no_row_is_named(path, line, why):
    Record(path, MACHINE).add(row())
    with path.open("a") as file:
        file.write(f"{line}\n{entry()}\n")
    with pytest.raises(ValueError, match=rf"speed.jsonl, line 3: not a row of a benchmark \(.*({why})"):
        read(path)
