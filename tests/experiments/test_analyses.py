"""Analyses of committed scores: the table of the first page; differences, fits and published ranges by hand."""

import importlib
import pathlib
import shutil

import numpy as np
import pandas as pd
import pytest

from experiments.policy_placebo import analysis as policy_placebo
from experiments.study import fill

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments"


@pytest.mark.slow
def test_the_first_page_filled_again_is_the_committed_one(tmp_path):
    committed = EXPERIMENTS.parent / "README.md"
    page = shutil.copy(committed, tmp_path / "README.md")
    fill(page, importlib.import_module("experiments.rope_vs_sinusoidal_paper.analysis").first_page())
    assert page.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")


def test_a_policy_is_compared_with_arange_by_seed():
    rows = [
        ("copy", encoding, policy, seed, 16, "exact_match", length, within if length <= 16 else past + seed / 100)
        for encoding, policy, within, past in (
            ("learned", "arange", 1.0, 0.1),
            ("learned", "offset", 1.0, 0.4),
            ("rope", "arange", 1.0, 0.2),
            ("rope", "offset", 0.9, 0.2),
        )
        for seed in range(3)
        for length in (8, 16, 24, 48)
    ]
    names = ["task", "encoding", "positions.policy", "seed", "longest", "metric", "length", "value"]
    found = policy_placebo.differences(policy_placebo.cells(pd.DataFrame(rows, columns=names)))
    learned, rope = found.loc["copy", "learned", "offset"], found.loc["copy", "rope", "offset"]
    np.testing.assert_allclose(learned["values"], 0.3)
    assert (learned.role, learned.fitted, learned.p) == ("primary", True, 1 / 8), "one of eight sign flips, one-sided"
    np.testing.assert_allclose(rope["values"], 0.0, atol=1e-12)
    assert (rope.role, rope.fitted) == ("placebo", False)
