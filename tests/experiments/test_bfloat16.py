"""The comparison of bfloat16 with float32: its intervals by hand, its verdicts, and the committed tables from their records."""

import pathlib
import shutil

import numpy as np
import pytest

from attnjax.report.records import read
from experiments.bfloat16.__main__ import Difference, difference, losses, main, page

FOLDER = pathlib.Path(__file__).parents[2] / "experiments" / "bfloat16"


def test_the_interval_is_that_of_a_textbook():
    """Mean 3.5, standard deviation sqrt(3.5), and t(0.975, 5) = 2.5706."""
    found = difference(np.array([1.0, 2, 3, 4, 5, 6]))
    half = 2.5706 * 3.5**0.5 / 6**0.5
    np.testing.assert_allclose(found, [3.5, 3.5 - half, 3.5 + half], rtol=1e-4)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((-0.049, 0.05), "the same"),
        ((0.001, 0.004), "the same"),
        ((0.01, 0.06), "changed"),
        ((-0.2, -0.01), "changed"),
        ((-0.06, 0.01), "undecided"),
    ],
)
def test_verdicts_are_those_of_the_protocol(interval, verdict):
    assert Difference(0.0, *interval).verdict == verdict


@pytest.mark.parametrize("pairs", [0, 1, 5])
def test_few_pairs_have_no_interval(pairs):
    with pytest.raises(ValueError, match=f"^an interval needs 6 pairs of runs or more, got {pairs}$"):
        difference(np.ones(pairs))


def test_the_committed_tables_are_what_the_records_say():
    runs = read(FOLDER / "records").runs
    assert page(runs) == (FOLDER / "differences.md").read_text()
    found = losses(runs)
    assert {cell: table.shape for cell, table in found.items()} == {
        (name, policy): (8, 5) for name in ("rope", "alibi", "sinusoidal", "nope") for policy in ("float32", "bfloat16")
    }
    # The README has the rows that decide.
    told, readme = page(runs), (FOLDER / "README.md").read_text().splitlines()
    rows = [line for line in told.split("The difference at")[0].splitlines() if line.startswith("| ") and "[" in line]
    assert len(rows) == 4
    assert set(rows) <= set(readme)


def test_another_sweep_is_one_sentence(tmp_path, capsys):
    shutil.copytree(FOLDER.parent / "theta" / "records", tmp_path / "records")
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "bfloat16: error: the runs must be of one cell of each encoding under each policy, float32 and bfloat16\n"
    )


def test_a_folder_without_records_is_one_sentence(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("bfloat16: error: ")
