"""First unseen wavelengths: the design by hand, verdicts on planted records, a sweep, bad input."""

import numpy as np
import pytest

from attnjax.config import load
from attnjax.sweep import plan, prepare, run_here
from attnjax.train import train
from experiments import recorded
from experiments.first_unseen_wavelength.__main__ import main
from experiments.first_unseen_wavelength.results import CONTRASTS, read, results

L = 64
CELLS = {
    (pair, r): (r * L / 2 / np.pi) ** (8 / pair) for pair, r in {cell for two in CONTRASTS.values() for cell in two}
}
CELLS |= {(pair, 2.0): (2.0 * L / 2 / np.pi) ** (8 / pair) for pair in (2, 3)}
FACTORS = (1, 1.125, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 8)


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
