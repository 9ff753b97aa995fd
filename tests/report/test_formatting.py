"""Numbers and names as text, and cells of CSV."""

import csv
import io

import numpy as np
import pandas as pd
import pytest

from attnjax.report.formatting import csv_table, decimal, interval, span
from attnjax.report.intervals import Estimate


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [
        (0.0625, 3, "0.062"),
        (0.0625 + 1e-15, 3, "0.062"),
        (0.0625 - 1e-15, 3, "0.062"),
        (-0.0001, 3, "0.000"),
        (np.inf, 3, "∞"),
        (-np.inf, 3, "-∞"),
        (np.nan, 3, "\N{EN DASH}"),
        (None, 3, "\N{EN DASH}"),
    ],
)
def test_decimals(value: float, digits: int, expected: str):
    assert decimal(value, digits) == expected


def test_intervals_and_spans():
    assert interval(Estimate(0.5, 0.25, np.inf)) == "0.500 [0.250, ∞]"
    assert interval(None) == "\N{EN DASH}"
    assert span(list(range(41, 501))) == "41 to 500 (460 lengths)"
    assert span([]) == "\N{EN DASH}"


@pytest.mark.parametrize("cell", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1"])
def test_no_cell_of_a_csv_is_a_formula(cell: str):
    text = csv_table(pd.DataFrame([[cell, "plain"]], columns=[cell, "other"]))
    for row in csv.reader(io.StringIO(text)):
        assert row[0] == f"'{cell}"


def test_numbers_and_quotes_of_a_csv_stay_as_they_are():
    row = [-1.5, "-1.5", "+2", "-3e-05", 'a "b", c', "two\nlines", "-"]
    text = csv_table(pd.DataFrame([row], columns=list("abcdefg")))
    assert list(csv.reader(io.StringIO(text)))[1] == [
        "-1.5",
        "-1.5",
        "+2",
        "-3e-05",
        'a "b", c',
        "two\nlines",
        "'-",
    ]
