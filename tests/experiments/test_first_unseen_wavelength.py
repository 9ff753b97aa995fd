"""First unseen wavelengths: the design by hand, verdicts on planted records, a sweep, bad input."""

import pathlib

import numpy as np
import pytest

from attnjax.config import load
from attnjax.records import jsonl
from attnjax.report.formatting import NONE
from attnjax.sweep import expand, groups, plan, prepare, run_here
from attnjax.train import train
from experiments import recorded
from experiments.first_unseen_wavelength import page
from experiments.first_unseen_wavelength.__main__ import main
from experiments.first_unseen_wavelength.results import CONTRASTS, cell_of, read, results

FOLDER = pathlib.Path(__file__).parents[2] / "experiments" / "first_unseen_wavelength"
L = 64
CELLS = {
    (pair, r): (r * L / 2 / np.pi) ** (8 / pair) for pair, r in {cell for two in CONTRASTS.values() for cell in two}
}
CELLS |= {(pair, 2.0): (2.0 * L / 2 / np.pi) ** (8 / pair) for pair in (2, 3)}
FACTORS = (1, 1.125, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 8)


def test_the_design_is_what_the_protocol_says():
    config = load("first_unseen_wavelength")
    runs = expand(config.config, config.sweep())
    bases = sorted({run.model.encoding.options["theta"] for run in runs})
    assert [round(base) for base in bases] == [1196, 3096, 7593, 13085, 41354, 172235, 661656]
    told = {cell_of(base, L) for base in bases}
    assert told == {(3, 1.4), (3, 2.0), (3, 2.8), (2, 1.05), (2, 1.4), (2, 2.0), (2, 2.8)} == set(CELLS)
    assert {run.seed for run in runs} == {run.data_seed for run in runs} == set(range(200, 208))
    assert [len(part) for part in groups(runs)] == [56]
    first = load("unseen_phase").sweep()
    assert not {change["seed"] for change in first} & set(range(200, 208)), "the seeds are fresh"


def planted(lasts, unfitted=lambda pair, r, seed: False, seeds=8):
    """Records of runs whose excess rises by 0.2 nats behind `lasts(pair, r)` times L."""
    tables = [
        {"kind": "protocol", "sweep": "first_unseen_wavelength"},
        {"kind": "made", "date": "2026-01-01", "python": "3", "jax": "0", "flax": "0", "numpy": "0", "processor": "x"},
    ]
    for (pair, r), theta in CELLS.items():
        for seed in range(seeds):
            excess = [0.01 + 0.2 * (factor > lasts(pair, r)) + 0.1 * unfitted(pair, r, seed) for factor in FACTORS]
            best = [2.0 - 0.1 * np.log2(factor) for factor in FACTORS]
            losses = [a + b for a, b in zip(excess, best, strict=True)]
            lengths = [int(L * factor) for factor in FACTORS]
            told = {"run": f"{pair} {r} {seed}", "theta": theta, "trained": L, "seed": seed}
            tables.append({"kind": "run", **told, "lengths": lengths, "losses": losses, "best": best})
    return tables


def by_onset(_, r):
    return {1.05: 1.75, 1.4: 1.25, 2.0: 1.5, 2.8: 2.0}[r]


def by_base(pair, r):
    return {3: 1.125, 2: 2.0}[pair] + r / 4


def test_a_planted_onset_is_found_and_a_base_is_not_one():
    found = results(planted(by_onset))
    assert found.verdict == "onset"
    assert found.shown("dip")
    assert found.differences["crossing"].tolist() == [0.75] * 8
    assert found.families.tolist() == [0.0] * 8
    assert set(found.p.values()) == {4 / 256}, "the smallest p of eight pairs, times four"
    base = results(planted(by_base))
    assert base.verdict == "not shown"
    assert base.shown("pair 2")
    assert base.p["crossing"] == 1.0
    assert base.families.min() > 0.5


def test_runs_that_did_not_fit_are_in_no_pair():
    one = results(planted(by_onset, lambda pair, r, seed: (pair, r, seed) == (3, 1.4, 5)))
    assert {name: len(values) for name, values in one.differences.items()} == {
        "crossing": 8,
        "pair 3": 7,
        "pair 2": 8,
        "dip": 8,
    }
    assert len(one.families) == 7
    assert one.verdict == "onset"
    two = results(planted(by_onset, lambda pair, r, seed: (pair, r) == (3, 1.4) and seed < 2))
    assert not two.shown("pair 3")
    assert two.verdict == "not shown"
    assert "| 1,196 | 3 | 1.40 | 6 of 8 |" in page.page(two)
    none = results(planted(by_onset, lambda pair, r, seed: (pair, r) == (2, 2.0)))
    assert f"the larger bases less the smaller: {NONE}." in page.page(none)


def test_numbers_of_the_page_by_hand():
    text = page.page(results(planted(by_onset)))
    assert "The length factor of base 7,593, whose onset is 2.8 L, less that of base 41,354" in text
    assert (
        "is 0.75 (no interval). That a base whose onset is right above L lasts longer than one at 1.4 L, against this order,"
        in text
    )
    assert "order, is shown, by one pair of bases: 13,085, at 1.05 L, less 41,354 is 0.50 (no interval)." in text
    assert (
        "| crossing: base 7,593 (pair 3, 2.8 L) less base 41,354 (pair 2, 1.4 L) | 0.75 (no interval) | 8 | 0.016 |"
        in text
    )
    small, large = (np.array([CELLS[pair, r] for r in (1.4, 2.0, 2.8)]) for pair in (3, 2))
    assert [round(ratio) for ratio in large / small] == [35, 56, 87]
    assert "are 35 to 87 times as large" in " ".join(page.PAGE.split())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: results([]), r"runs of one trained length are compared, got \[\]"),
        (lambda: results(planted(by_onset)[:-1]), "pair . at .* L has 7 of 8 runs"),
        (lambda: cell_of(10.0, 64), "base 10 has no wavelength above 64"),
    ],
)
def test_bad_input_is_one_sentence(call, words):
    with pytest.raises(ValueError, match=f"^{words}$"):
        call()


def test_the_page_is_made_from_the_records_alone(tmp_path, capsys):
    assert main(["--render", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"first_unseen_wavelength: error: {tmp_path} holds no records.jsonl")
    jsonl.append(tmp_path / recorded.RECORDS, *planted(by_onset))
    assert main(["--render", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text() == page.page(read(tmp_path / recorded.RECORDS))
    assert {path.name for path in tmp_path.iterdir()} >= {"README.md", "figure.png", "figure.svg"}


def test_the_committed_page_is_what_its_records_say():
    assert (FOLDER / "README.md").read_text() == page.page(read(FOLDER / recorded.RECORDS))


@pytest.mark.slow
def test_a_trained_sweep_is_kept_once(tmp_path, capsys):
    config = load("first_unseen_wavelength")
    small = {"train.steps": 2, "train.batch": 4, "train.warmup": 0, "evaluate.count": 4, "evaluate.batch": 4}
    small |= {
        "model.layers": 1,
        "model.model": 32,
        "model.heads": 2,
        "model.hidden": 32,
        "evaluate.bucket_sizes": (512,),
    }
    changes = [{**change, **small} for change in config.sweep() if change["seed"] == 200]
    root, out = tmp_path / "first_unseen_wavelength", tmp_path / "out"
    store = prepare(root, "first_unseen_wavelength", plan(config.config, changes))
    assert main(["--runs", str(root), "--out", str(out)]) == 2
    assert "7 of 7 runs are still to be trained, such as " in capsys.readouterr().err
    assert len(run_here(store, train).of("done")) == 7
    assert main(["--runs", str(root), "--out", str(out)]) == 0
    before = (out / recorded.RECORDS).read_bytes()
    found = read(out / recorded.RECORDS)
    assert found.verdict == "not shown"
    assert set(found.factors) == set(CELLS)
    assert main(["--runs", str(root), "--out", str(out)]) == 0
    assert (out / recorded.RECORDS).read_bytes() == before
