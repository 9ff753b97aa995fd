"""The text of tables and lines, character by character."""

import math

import pytest

from experiments.speed import table
from experiments.speed.records import Spread
from tests.experiments.speed.made import row

NONE = "\N{EN DASH}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.0123456, "0.0123"),
        (1.0, "1.00"),
        (3.14159, "3.14"),
        (31.4159, "31.4"),
        (314.159, "314"),
        (1234.5, "1,234"),
        (1234567.0, "1,234,567"),
        (-2.5, "-2.50"),
        (math.inf, "∞"),
        (math.nan, NONE),
    ],
)
def test_three_significant_digits(value, text):
    assert table.significant(value) == text


@pytest.mark.parametrize(
    ("figure", "unit", "text"),
    [
        (Spread(2.5, 2.25, 3.0), "s", "2.50 s (2.25 to 3.00)"),
        (Spread(0.9996, 0.998, 1.25), "s", "1,000 ms (998 to 1,250)"),
        (Spread(0.0123, 0.012, 0.0131), "s", "12.3 ms (12.0 to 13.1)"),
        (Spread(4.5e-5, 4.5e-5, 4.5e-5), "s", "45.0 µs"),
        (Spread.of([0]), "B", "0 B"),
        (Spread.of([1536]), "B", "1.50 KiB"),
        (Spread.of([81 * 2**20]), "B", "81.0 MiB"),
        (Spread.of([16400 * 2**20]), "B", "16.0 GiB"),
        (Spread.of([1]), "programs", "1 program"),
        (Spread.of([40]), "programs", "40 programs"),
    ],
)
def test_figures_have_units(figure, unit, text):
    assert table.figure_text(figure, unit) == text


def test_a_suite_is_a_table():
    rows = [
        row(note="one thread"),
        row(sizes={"T": 2048, "B": 4, "N": 8, "H": 64}, goal=5.0, error=None),
        row(case="forward + backward", peer="a|b", goal=None),
    ]
    assert (
        table.suite_table(rows)
        == r"""## attention

In every row: ours is attnjax, B=4 N=8 H=64.

| case | sizes | ours | peer | peer's figure | ratio | goal | met | agreement |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| forward | T=1024 | 10.0 ms (9.00 to 12.0) | jax.nn xla | 40.0 ms (38.0 to 45.0) | 4.00x (3.50 to 4.25) | 3x | yes | 2e-07 |
| forward | T=2048 | 10.0 ms (9.00 to 12.0) | jax.nn xla | 40.0 ms (38.0 to 45.0) | 4.00x (3.50 to 4.25) | 5x | **no** | ? |
| forward + backward | T=1024 | 10.0 ms (9.00 to 12.0) | a\|b | 40.0 ms (38.0 to 45.0) | 4.00x (3.50 to 4.25) | ? | ? | 2e-07 |

- forward, T=1024 B=4 N=8 H=64: one thread
""".replace(" ? ", f" {NONE} ")
    )


def test_our_names_are_told_where_they_differ():
    text = table.suite_table([row(ours="rope", sizes={}), row(ours="t5", sizes={})])
    assert "In every row" not in text
    assert f"| forward | {NONE} | rope: 10.0 ms" in text
    assert f"| forward | {NONE} | t5: 10.0 ms" in text


def test_versions_of_a_peer_stand_above_the_table_only():
    one = row(sizes={"T": 64, "torch": {"torch": "2.9.0", "threads": 2}}, goal=None)
    assert table.where(one) == "forward, T=64"
    assert "ours is attnjax, T=64 torch(torch=2.9.0 threads=2).\n" in table.suite_table([one])


def test_exact_figures_have_no_spread():
    bytes_ = dict(
        unit="B", our_figure=Spread.of([2**20]), peer_figure=Spread.of([2**30]), ratio=Spread.of([1024.0]), goal=100.0
    )
    assert "| 1.00 MiB | jax.nn xla | 1.00 GiB | 1,024x | 100x | yes |" in table.suite_table([row(**bytes_)])


def test_the_whole_file():
    machine = {"processor": "an *abacus*", "cores": 2, "l2_bytes": 524288, "l3_bytes": None, "instructions": ["avx2"]}
    machine |= {"peak_flops": 98.7654e9, "bandwidth": 21e9, "commit": "0a1b", "commit_dirty": True, "xla_flags": ""}
    text = table.markdown(machine | {"command": "attnjax bench memory", "unknown": 1}, [row(), row(suite="memory")])
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == ["# Speed", "## attention", "## memory", "## Machine"]
    assert text.endswith(
        "## Machine\n\n- processor: an \\*abacus\\*\n- cores allowed: 2\n- instruction sets: avx2\n- L2 cache: 512 KiB\n"
        "- float32 matrix products, measured: 98.8 GFLOP/s\n- memory, read and write, measured: 21.0 GB/s\n"
        "- commit: 0a1b with changes\n- command: attnjax bench memory\n"
    )
    assert table.SMOKE not in text
    assert table.SMOKE in table.markdown({"smoke": True}, [row()])


def test_without_rows_there_is_still_a_machine():
    assert table.markdown({"cores": 2}, []).endswith("## Machine\n\n- cores allowed: 2\n")


def test_missed_goals_are_listed():
    rows = [row(), row(goal=5.0), row(goal=None), row(goal=4.1, case="backward", sizes={})]
    figures = "attnjax 10.0 ms (9.00 to 12.0), jax.nn xla 40.0 ms (38.0 to 45.0), ratio 4.00x (3.50 to 4.25)"
    assert table.missed(rows) == [
        "2 of 3 goals missed",
        f"attention: forward, T=1024 B=4 N=8 H=64: {figures}, goal 5x MISSED",
        f"attention: backward: {figures}, goal 4.1x MISSED",
    ]
    assert table.missed([row(goal=None)]) == ["0 of 0 goals missed"]
    assert table.line(row()).endswith(", goal 3x met")
    assert table.line(row(goal=None)).endswith("ratio 4.00x (3.50 to 4.25)")
