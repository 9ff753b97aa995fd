"""Policies and placebos: differences by hand, a check that notices a broken placebo, the plan, and a trained sweep."""

import numpy as np
import pytest

from attnjax.config import load
from attnjax.records import jsonl
from attnjax.report import records as stored
from attnjax.report.formatting import interval
from attnjax.sweep import plan, prepare, run_here
from attnjax.train import train
from experiments import recorded
from experiments.policy_placebo import page
from experiments.policy_placebo.__main__ import main
from experiments.policy_placebo.results import gather, read, results

ENCODINGS = ("learned", "sinusoidal", "rope", "alibi", "t5", "nope")
ORDER = ("nope", "sinusoidal", "learned", "rope", "alibi", "t5")
"""As in the reports."""
NOISE = np.random.default_rng(1).normal(size=(6, 2, 7)) / 100
"""By encoding, policy and seed."""


def made_up(effects=(), unfitted=(), encodings=ENCODINGS, seeds=7):
    """Records of one task in which policies add `effects[encoding, policy]` to 0.5, and noise, but none without positions."""
    tables = [{"kind": "protocol", "sweep": "policy_placebo"}]
    tables += [
        {"kind": "made", "date": "2026-01-01", "python": "3", "jax": "0", "flax": "0", "numpy": "0", "processor": "x"}
    ]
    for e, encoding in enumerate(encodings):
        for q, policy in enumerate(("arange", "offset", "randomized")):
            for seed in range(seeds):
                past = 0.5 + dict(effects).get((encoding, policy), 0.0)
                past += NOISE[e, q - 1, seed] if q and encoding != "nope" else 0.0
                within = 0.5 if (encoding, policy) in unfitted else 1.0
                about = {"task": "copy", "encoding": encoding, "policy": policy, "seed": seed, "trained": 16}
                scores = {"lengths": [8, 16, 24, 48], "scores": [within, within, past + 0.1, past - 0.1]}
                tables.append({"kind": "run", "run": f"{encoding} {policy} {seed}", **about, **scores})
    return tables


def test_differences_by_hand():
    found = results(made_up({("learned", "offset"): 0.3}, {("t5", "randomized")}))
    by_name = {(one.encoding, one.policy): one for one in found.differences}
    assert list(by_name) == [(encoding, policy) for encoding in ORDER for policy in ("offset", "randomized")]
    learned = by_name["learned", "offset"]
    np.testing.assert_allclose(learned.values, 0.3 + NOISE[0, 0], atol=1e-12)
    half = 2.4469 * learned.values.std(ddof=1) / 7**0.5  # t(0.975, 6)
    np.testing.assert_allclose(
        [learned.mean.low, learned.mean.high], learned.values.mean() + half * np.array([-1, 1]), 1e-4
    )
    assert learned.role == "primary"
    assert learned.p == 2 / 128  # two primary cells of one task
    assert {name for name, one in by_name.items() if one.role == "placebo"} == {
        *((encoding, "offset") for encoding in ("rope", "alibi", "t5", "nope")),
        ("nope", "randomized"),
    }
    assert [name for name, one in by_name.items() if not one.fitted] == [("t5", "randomized")]
    assert found.sound
    assert (found.checked, found.zero) == (3, True)
    text = page.page(found)
    assert "A random start in training lifts exact match past training under Learned on copy by 0.3" in text
    assert "| *copy* | *T5 bias* | *randomized* |" in text
    assert "(0 of 7 fitted)*" in text
    low, high = learned.values.min(), learned.values.max()
    assert f"| copy | Learned | offset | {interval(learned.mean)} | {low:.2f} to {high:.2f} | 0.016 |" in text


@pytest.mark.slow
def test_a_trained_sweep_has_its_placebos(tmp_path, capsys):
    """A random start changes no training loss under ALiBi but by rounding, none at all without positions, and learned ones."""
    config = load("policy_placebo")
    small = {"train.steps": 4, "train.batch": 4, "train.warmup": 0, "evaluate.count": 8, "evaluate.batch": 8}
    small |= {"model.layers": 1, "model.model": 32, "model.heads": 2, "model.hidden": 32}
    changes = [
        {**change, **small}
        for change in config.sweep()
        if change["task"]["name"] == "copy"
        and change["seed"] == 100
        and change["model.encoding"]["name"] in ("alibi", "nope", "learned")
        and change["positions.policy"] != "randomized"
    ]
    runs = tmp_path / "runs"
    store = prepare(runs, "policy_placebo", plan(config.config, changes))
    with pytest.raises(ValueError, match="is pending: the comparison is of all runs of the sweep$"):
        gather(runs, tmp_path / recorded.RECORDS)
    assert len(run_here(store, train).of("done")) == 6
    name = lambda run: (run.config["model"]["encoding"]["name"], run.config["positions"]["policy"])
    loss = {name(run): run.losses[-1][1] for run in stored.read(runs).runs}
    assert loss["nope", "offset"] == loss["nope", "arange"]
    assert loss["alibi", "offset"] == pytest.approx(loss["alibi", "arange"], rel=1e-5)
    assert abs(loss["learned", "offset"] - loss["learned", "arange"]) > 1e-3
    assert main(["--runs", str(runs), "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    found = read(tmp_path / recorded.RECORDS)
    assert [(one.encoding, one.role) for one in found.differences] == [
        ("nope", "placebo"),
        ("learned", "primary"),
        ("alibi", "placebo"),
    ]
    tables = jsonl.read(tmp_path / recorded.RECORDS).tables
    assert [table["kind"] for table in tables] == ["protocol", "made", *["run"] * 6]
    assert {tuple(table["lengths"]) for table in tables[2:]} == {(8, 16, 17, 18, 20, 24, 32, 48)}
