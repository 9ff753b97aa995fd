"""Kendall's tau_b against SciPy and by hand, and which encodings enter it."""

import csv
import io
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from attnjax.report.agreement import Ranked, agreements, tau_b
from attnjax.report.published import files, pairs, ranked
from attnjax.report.records import read
from attnjax.report.summarise import summarise
from tests.report.synthetic import config, lines, run_id, write_run

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("size", [2, 5, 13])
@pytest.mark.parametrize("levels", [2, 4, 10**9])
def test_tau_b_equals_that_of_scipy(size: int, levels: int):
    for _ in range(20):
        x, y = RNG.integers(0, levels, (2, size)).tolist()
        np.testing.assert_allclose(tau_b(x, y), stats.kendalltau(x, y).statistic, atol=1e-12)


def test_a_table_of_two_papers_by_hand():
    """Kazemnejad et al. 2023, copy rsc, beside another order of the last two, which tie there."""
    about, other = ("K", "copy", "exact_match", "21-40 of 20"), ("H", "sort", "exact_match", "51-100 of 50")
    ours = {"NoPE": 0.340, "T5": 0.045, "ALiBi": 0.092, "RoPE": 0.017, "Sinusoidal": 0.0}
    theirs = {"NoPE": 0.986, "T5": 0.771, "ALiBi": 0.289, "RoPE": 0.0, "Sinusoidal": 0.0}
    found = agreements(
        [*(Ranked(about, name, ours[name], theirs[name]) for name in ours), Ranked(other, "NoPE", 1.0, 0.9)]
    )
    (one,) = found
    # Of ten pairs one is the other way round (T5, ALiBi), and one ties (RoPE, Sinusoidal): (8 - 1) / sqrt(10 * 9).
    assert (one.concordant, one.discordant) == (8, 1)
    assert one.tau == pytest.approx(7 / math.sqrt(90))
    assert one.words[-2:] == ["0.738", "8 of 10"]


def test_only_what_fitted_and_has_the_same_positions_is_ranked(tmp_path: Path):
    """Kazemnejad et al. train on up to 20 tokens, and so does this sweep; T5 has not fitted, and RoPE has other positions."""
    values = {"nope": (1.0, 0.9), "alibi": (1.0, 0.5), "sinusoidal": (1.0, 0.6), "t5": (0.5, 0.4), "rope": (1.0, 0.95)}
    task = {"name": "copy", "options": {"variant": "rsc"}, "form": "decoder", "length_min": 1, "length_max": 20}
    for name, (within, past) in values.items():
        policy = {"policy": "offset" if name == "rope" else "arange", "maximum": 99, "at_test": "arange"}
        fields = config("copy", name, 0, task=task, positions=policy)
        row = {"run": run_id(fields), "step": 4, "metric": "exact_match"}
        measured = [
            row | {"length": n, "value": v, "split": s} for n, v, s in ((20, within, "train"), (30, past, "test"))
        ]
        write_run(tmp_path, fields, results=lines(measured))
    found = pairs(summarise(read(tmp_path)))
    assert [one.label for one in ranked(found)] == ["ALiBi", "NoPE", "Sinusoidal"]
    made = files(found)
    (row,) = csv.DictReader(io.StringIO(made["agreement.csv"]))
    assert row["encodings"] == "ALiBi, NoPE, Sinusoidal"
    # Theirs: .986, 0, .289. Sinusoidal and ALiBi are the other way round.
    assert (row["concordant"], row["discordant"], float(row["tau_b"])) == ("2", "1", pytest.approx(1 / 3))
    assert "The order of encodings" in made["published.md"]
    assert "ours is not fitted" in made["published.csv"]


def test_scores_that_differ_by_their_last_bit_are_tied(tmp_path: Path):
    task = {"name": "copy", "options": {"variant": "rsc"}, "form": "decoder", "length_min": 1, "length_max": 20}
    for name, past in (("nope", 0.1 + 0.2), ("alibi", 0.3)):
        fields = config("copy", name, 0, task=task)
        row = {"run": run_id(fields), "step": 4, "metric": "exact_match"}
        measured = [row | {"length": n, "value": v, "split": s} for n, v, s in ((20, 1.0, "train"), (30, past, "test"))]
        write_run(tmp_path, fields, results=lines(measured))
    (found,) = agreements(ranked(pairs(summarise(read(tmp_path)))))
    assert (math.isnan(found.tau), found.concordant, found.discordant) == (True, 0, 0)
