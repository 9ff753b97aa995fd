"""Unseen phases: predictors by hand and by search, clamps against a dense loop, verdicts on planted records, a sweep."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnjax as aj
from attnjax.config import load
from attnjax.records import jsonl
from attnjax.report.records import read as read_records
from attnjax.sweep import plan, prepare, run_here
from attnjax.train import train
from experiments import recorded
from experiments.unseen_phase.__main__ import main
from experiments.unseen_phase.clamped import ClampedRoPE
from experiments.unseen_phase.measuring import interventions, measure_sweep
from experiments.unseen_phase.phases import predictors
from experiments.unseen_phase.results import results

T, H, THETA = 20, 8, 50.0


def dense(q, k, v, encoding):
    """Causal attention of one head, pair by pair as complex numbers: Re(q conj(k) e^(i m theta)) at the clamped distance m."""
    width = int(encoding.fraction * H)
    c = width // 2
    halves = lambda x: x[:c] + 1j * x[c:width]
    pairs = halves if encoding.layout == "half" else lambda x: x[:width:2] + 1j * x[1:width:2]
    out = np.zeros_like(v)
    for i in range(T):
        logits = []
        for j in range(i + 1):
            total = q[i, width:] @ k[j, width:]
            for p, (a, b) in enumerate(zip(pairs(q[i]), pairs(k[j]), strict=True)):
                m = min(i - j, encoding.reach) if p in encoding.clamped else i - j
                total += (a * np.conj(b) * np.exp(1j * m * encoding.theta ** (-p / c))).real
            logits.append(total / np.sqrt(H))
        weights = np.exp(logits - np.max(logits))
        out[i] = weights @ v[: i + 1] / weights.sum()
    return out


def attended(encoding, x, implementation="dense"):
    q, k, v = (jnp.asarray(one)[None, :, None] for one in x)
    return np.asarray(aj.attend(q, k, v, encoding=encoding, mask=aj.Mask(causal=True), implementation=implementation))


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["dense", "chunked"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_clamp_is_what_a_dense_loop_computes(layout, implementation):
    x = np.random.default_rng(0).normal(size=(3, T, H))
    with jax.enable_x64(True):
        for fraction, clamped in ((1.0, (1,)), (1.0, (0, 2, 3)), (0.5, (0,))):
            encoding = ClampedRoPE(theta=THETA, layout=layout, fraction=fraction, clamped=clamped, reach=6)
            found = attended(encoding, x, implementation)[0, :, 0]
            np.testing.assert_allclose(found, dense(*x, encoding), atol=1e-12)
    assert np.abs(dense(*x, encoding) - dense(*x, dataclasses.replace(encoding, clamped=()))).max() > 0.01


FACTORS = (1, 1.5, 2, 3, 4, 8)


def planted(lasts, mends, bases=tuple(10.0 ** (k / 2) for k in range(1, 14)), lengths=(64, 128)):
    """Records in which the excess rises by 0.06 at `lasts(base, L)` times L, and clamps of the group `mends` take 0.1 away."""
    tables = [{"kind": "protocol", "sweep": "unseen_phase", "windows": 8}]
    tables += [
        {"kind": "made", "date": "2026-01-01", "python": "3", "jax": "0", "flax": "0", "numpy": "0", "processor": "x"}
    ]
    generator = np.random.default_rng(0)
    for L in lengths:
        for base in bases:
            for seed in range(6):
                common = {"run": f"{L} {base:g} {seed}", "theta": base, "trained": L, "seed": seed}
                breaks = lasts(base, L) * np.exp(generator.normal() / 50)
                losses = [2.0 - 0.05 * np.log2(f) + (0.06 + 0.01 * f if f > breaks else 0.0) for f in FACTORS]
                best = [1.99 - 0.05 * np.log2(f) for f in FACTORS]
                for what, pairs in interventions(base, 16, L).items() if base in bases[::2] else ():
                    effect = generator.normal() / 200 - 0.1 * (what == mends)
                    at = [2.0, 2.3 + (0.0 if what == "none" else effect)]
                    clamp = {"what": what, "pairs": pairs, "lengths": [L, 4 * L], "losses": at}
                    tables.append({"kind": "clamp", **common, **clamp})
                lengths_of = [int(L * factor) for factor in FACTORS]
                tables.append({"kind": "run", **common, "lengths": lengths_of, "losses": losses, "best": best})
    return tables


def test_a_planted_phase_is_found_and_a_planted_base_too():
    phase = results(planted(by_phase, "critical"))
    assert (phase.verdict, phase.cause) == ("unseen phase", "critical pairs")
    assert max(phase.p.values()) == pytest.approx(2 / 64)
    base = results(planted(by_base, "slow"))
    assert (base.verdict, base.cause) == ("base", "not shown")
    neither = results(planted(lambda base, L: 2.5, "slow"))
    assert neither.verdict == "neither"
    assert results(planted(lambda base, L: 2.5, "fast", bases=(100.0, 1000.0))).verdict == "none"


def by_phase(base, L):
    return 1.2 + 20 * max(0.3 - predictors(base, 16, L).novelty, 0)


def by_base(base, _):
    return 1.2 + np.log10(base) / 1.2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three bases, trained for two steps at one short length."""
    config = load("unseen_phase")
    small = {"train.steps": 2, "train.batch": 4, "train.warmup": 0, "evaluate.count": 4, "evaluate.batch": 4}
    small |= {"model.layers": 1, "model.model": 32, "model.heads": 2, "model.hidden": 32}
    small |= {"evaluate.lengths": (64, 256), "evaluate.bucket_sizes": (64, 256)}
    changes = [
        {**change, **small} for change in config.sweep() if change["task.length_max"] == 64 and change["seed"] == 100
    ]
    root = tmp_path_factory.mktemp("unseen") / "unseen_phase"
    assert len(run_here(prepare(root, "unseen_phase", plan(config.config, changes[:3])), train).of("done")) == 3
    return root


@pytest.mark.slow
def test_a_trained_sweep_is_measured_once(trained, tmp_path, capsys):
    path = tmp_path / recorded.RECORDS
    measure_sweep(trained, path, 4)
    tables = jsonl.read(path).tables
    runs = {table["run"]: table for table in tables if table["kind"] == "run"}
    clamps = [table for table in tables if table["kind"] == "clamp"]
    assert len(runs) == 3
    assert {table["theta"] for table in clamps} == {5.623, 17.783}
    stored = {run.id: run for run in read_records(trained).runs}
    for table in clamps:
        if table["what"] == "none":  # RoPE itself: what the sweep measured
            rows = [
                row for row in stored[table["run"]].final if row.metric == "loss_sliding" and row.split != "validation"
            ]
            told = {row.length: row.value for row in rows}
            np.testing.assert_allclose(table["losses"], [told[64], told[256]], rtol=1e-5)
        np.testing.assert_allclose(table["losses"][0], runs[table["run"]]["losses"][0], rtol=1e-5)  # no clamp within L
    by_name = {table["what"]: table["losses"][1] for table in clamps if table["theta"] == 17.783}
    assert len({round(loss, 7) for loss in by_name.values()}) > 5
    assert by_name["critical"] == by_name["pair 7"]
    before = path.read_bytes()
    measure_sweep(trained, path, 4)
    assert path.read_bytes() == before
    assert main(["--runs", str(trained), "--out", str(tmp_path), "--windows", "2"]) == 2
    assert "holds records of another protocol (windows)" in capsys.readouterr().err
