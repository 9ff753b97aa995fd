"""Policies and placebos: differences by hand, a check that notices a broken placebo, the plan, and a trained sweep."""

import pathlib

import numpy as np
import pytest

from attnjax.config import load
from attnjax.records import jsonl
from attnjax.report import records as stored
from attnjax.report.formatting import interval
from attnjax.report.significance import flips, sign_flip, sign_flip_above
from attnjax.sweep import expand, groups, plan, prepare, run_here
from attnjax.train import train
from experiments import recorded
from experiments.policy_placebo import page
from experiments.policy_placebo.__main__ import main
from experiments.policy_placebo.results import gather, read, results

FOLDER = pathlib.Path(__file__).parents[2] / "experiments" / "policy_placebo"
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


def test_a_run_that_did_not_fit_is_counted_beside_the_mean_it_is_in():
    tables = made_up({("learned", "offset"): 0.3})
    odd = next(one for one in tables if one.get("run") == "learned offset 2")
    odd["scores"] = [0.5, 0.5, 0.0, 0.0]
    found = results(tables)
    text = page.page(found)
    one = next(one for one in found.differences if (one.encoding, one.policy) == ("learned", "offset"))
    assert (one.fitted, one.fits.tolist()) == (True, [True, True, False, True, True, True, True])
    assert (one.mean.kind, one.mean.low, one.mean.high) == ("range", one.values.min(), one.values.max())
    assert one.values[2] == -0.5
    assert f"Learned on copy by {interval(one.mean)} (6 of 7 fitted)" in text or one.p >= 0.05
    assert f"| -0.50 to {one.values.max():.2f} (6 of 7 fitted) |" in text
    assert "(0.93; 6 of 7 fitted)" in text


def test_a_placebo_that_differs_breaks_the_table():
    wrong = results(made_up({("nope", "offset"): 0.01, ("learned", "offset"): 0.3}))
    assert not wrong.zero
    assert not wrong.sound
    assert page.claim(wrong).startswith("**Claim.** None: placebo cells differ")
    assert "**makes a difference, which it must not**" in page.page(wrong)
    relative = {(encoding, "offset"): 0.2 for encoding in ("rope", "alibi", "t5")}
    found = results(made_up(relative))
    assert (found.checked, found.outside, found.zero) == (3, 3, True)
    assert found.chance == pytest.approx(0.05**3)
    assert not found.sound


def test_one_interval_of_three_may_leave_zero_out():
    """P(1 or more of 3 at 5 %) = 1 - 0.95^3 = 0.143."""
    found = results(made_up({("rope", "offset"): 0.2}))
    assert (found.outside, found.chance) == (1, pytest.approx(1 - 0.95**3))
    assert found.sound


def test_cells_that_did_not_fit_are_in_no_test():
    found = results(made_up({("learned", "offset"): 0.3}, {("learned", "arange"), ("rope", "offset")}))
    by_name = {(one.encoding, one.policy): one for one in found.differences}
    assert by_name["learned", "offset"].p is None
    assert by_name["sinusoidal", "offset"].p is not None
    assert found.checked == 2


def test_one_sided_sign_flips_by_hand():
    """Of the 16 sums of +-1 +-2 +-3 +-4, those of at least 8 are 10 and 8; of at least -8, all but -10."""
    assert sign_flip_above(np.array([-1.0, 2, 3, 4])) == 2 / 16
    assert sign_flip_above(np.array([1.0, -2, -3, -4])) == 15 / 16
    assert sign_flip(np.array([-1.0, 2, 3, 4])) == 4 / 16
    seen, flipped = flips(np.ones(20))
    assert (seen, flipped.shape) == (20.0, (2**16,))
    assert sign_flip_above(np.ones(20)) < 1e-3


def test_the_plan_crosses_all():
    config = load("policy_placebo")
    runs = expand(config.config, config.sweep())
    assert len(runs) == 2 * 6 * 3 * 7
    assert {len(part) for part in groups(runs)} == {7}
    assert {(run.positions.policy, run.positions.at_test) for run in runs} == {
        ("arange", "arange"),
        ("offset", "arange"),
        ("randomized", "same"),
    }
    assert {run.train.learning_rate for run in runs} == {3e-3}
    for run in runs:
        tokens = 2 * max(run.evaluate.lengths) + 2
        assert run.positions.policy == "arange" or run.positions.maximum == tokens
        assert run.model.encoding.options.get("length", tokens) == tokens


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([{"kind": "protocol"}], "no run was recorded"),
        (made_up()[:-1], "copy under nope with randomized has 6 of 7 seeds: go on"),
        (
            [table for table in made_up(encodings=("rope",)) if table.get("policy") != "arange"],
            "copy under rope has no arange, from which offset could differ",
        ),
    ],
)
def test_incomplete_records_are_one_sentence(tables, words):
    with pytest.raises(ValueError, match=f"^{words}$"):
        results(tables)


def test_a_folder_without_records_is_one_sentence(tmp_path, capsys):
    assert main(["--render", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"policy_placebo: error: {tmp_path} holds no records.jsonl")


def test_the_committed_page_is_what_its_records_say():
    assert (FOLDER / "README.md").read_text() == page.page(read(FOLDER / recorded.RECORDS))


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
