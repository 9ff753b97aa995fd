"""Unseen phases: predictors by hand and by search, clamps against a dense loop, verdicts on planted records, a sweep."""

import dataclasses
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import attnjax as aj
from attnjax.config import load
from attnjax.records import jsonl
from attnjax.report.records import read as read_records
from attnjax.sweep import expand, groups, plan, prepare, run_here
from attnjax.train import train
from experiments import recorded
from experiments.unseen_phase import page
from experiments.unseen_phase.__main__ import main
from experiments.unseen_phase.clamped import FARTHEST, ClampedRoPE
from experiments.unseen_phase.measuring import clamped_bases, interventions, measure_sweep
from experiments.unseen_phase.outcomes import correlations, partial
from experiments.unseen_phase.phases import GROUPS, group, novelty, predictors, wavelengths
from experiments.unseen_phase.results import read, results

FOLDER = pathlib.Path(__file__).parents[2] / "experiments" / "unseen_phase"
T, H, THETA = 20, 8, 50.0
BY_HAND = [6.283, 19.869, 62.832, 198.692, 628.319, 1986.918, 6283.185, 19869.177]
"""2 pi 10,000^(k/8) for d = 16: each is sqrt(10) times the one before."""


def test_wavelengths_and_groups_by_hand():
    np.testing.assert_allclose(wavelengths(10_000.0, 16), BY_HAND, rtol=1e-4)
    names = {64: "fast fast fast critical slow slow slow slow", 128: "fast fast fast critical slow slow slow slow"}
    for trained, wanted in names.items():
        found = np.array([group(10_000.0, 16, trained, name) for name in GROUPS])
        assert [GROUPS[place] for place in found.argmax(0)] == wanted.split()
        assert found.sum(0).tolist() == [1] * 8


def test_predictors_by_hand():
    """At n = 127 the pair of 198.7 tokens stands at 4.0161, 2.0239 past the 1.9922 of n = 63: a chord of 2 sin(1.0119)."""
    found = predictors(10_000.0, 16, 64)
    assert found.base == pytest.approx(19869.177)
    assert (found.critical, found.onset) == (1.0, pytest.approx(198.692, rel=1e-5))
    np.testing.assert_allclose(novelty(10_000.0, 16, 64, np.array([127]))[0, :4], [0, 0, 0, 1.6957], atol=1e-4)
    assert predictors(10.0, 16, 64) == (pytest.approx(47.1165, rel=1e-4), 0.0, 0.0, np.inf)


@pytest.mark.parametrize("theta", [30.0, 1000.0, 1e5])
def test_novelty_is_the_distance_to_the_nearest_phase_that_was_seen(theta):
    """Found by looking at every phase of training; between two of them a phase is no further than half a step."""
    L, distances = 64, np.arange(64, 300)
    frequency = 2 * np.pi / wavelengths(theta, 16)
    at = lambda n: np.exp(1j * n[:, None] * frequency)
    nearest = np.abs(at(distances)[:, None] - at(np.arange(L))[None]).min(1)
    slow, found = frequency * L < 2 * np.pi, novelty(theta, 16, L, distances)
    assert (np.abs(nearest - found)[:, slow] <= frequency[slow] / 2 + 1e-9).all()
    outside = slow[None] & (found > 0)
    np.testing.assert_allclose(found[outside], nearest[outside], atol=1e-9)
    assert not found[:, ~slow].any()


def test_predictors_of_the_sweep_tell_base_and_phases_apart():
    bases = sorted({change["model.encoding"]["options"]["theta"] for change in load("unseen_phase").sweep()})
    assert len(bases) == 24
    for trained, told in ((64, "-0.09"), (128, "0.10")):
        table = np.array([predictors(base, 16, trained) for base in bases])
        rho = stats.spearmanr(table[:, 0], table[:, 2]).statistic
        assert f"{rho:.2f}" == told
        assert told in page.PAGE


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: wavelengths(10.0, 7), "RoPE turns pairs of channels: the head dimension must be even, got 7"),
        (lambda: predictors(10.0, 8, 1), "a trained length must be at least 2, got 1"),
        (lambda: group(10.0, 8, 64, "long"), "pairs are critical, fast, slow, got 'long'"),
        (lambda: ClampedRoPE(clamped=(1, 1)), r"ClampedRoPE: clamped names a pair twice: \(1, 1\)"),
        (lambda: ClampedRoPE(reach=-1), "ClampedRoPE: reach must be at least 0, got -1"),
        (
            lambda: ClampedRoPE(clamped=(4,)).constants(aj.Sizes(8, 1, 1, 8)),
            r"ClampedRoPE: a head has the pairs 0 .. 3, got clamped=\(4,\)",
        ),
    ],
)
def test_bad_input_is_one_sentence(call, words):
    with pytest.raises(ValueError, match=f"^{words}$"):
        call()


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


@pytest.mark.parametrize("implementation", ["dense", pytest.param("chunked", marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", ["half", pytest.param("interleaved", marks=pytest.mark.slow)])
def test_a_clamp_is_what_a_dense_loop_computes(layout, implementation):
    x = np.random.default_rng(0).normal(size=(3, T, H))
    with jax.enable_x64(True):
        for fraction, clamped in ((1.0, (1,)), (1.0, (0, 2, 3)), (0.5, (0,))):
            encoding = ClampedRoPE(theta=THETA, layout=layout, fraction=fraction, clamped=clamped, reach=6)
            found = attended(encoding, x, implementation)[0, :, 0]
            np.testing.assert_allclose(found, dense(*x, encoding), atol=1e-12)
    assert np.abs(dense(*x, encoding) - dense(*x, dataclasses.replace(encoding, clamped=()))).max() > 0.01


def test_a_clamp_at_infinity_and_one_of_no_pair_are_rope():
    x = np.random.default_rng(1).normal(size=(3, T, H)).astype(np.float32)
    plain = attended(aj.RoPE(theta=THETA), x)
    for encoding in (ClampedRoPE(THETA, clamped=(0, 1, 2, 3), reach=FARTHEST), ClampedRoPE(THETA, reach=0)):
        np.testing.assert_allclose(attended(encoding, x), plain, atol=1e-6)
    clamped = attended(ClampedRoPE(THETA, clamped=(1,), reach=6), x)
    np.testing.assert_allclose(clamped[:, :7], plain[:, :7], atol=1e-6)
    assert np.abs(clamped - plain)[:, 7:].max() > 0.01


def test_clamps_refuse_future_keys():
    with pytest.raises(ValueError, match="^ClampedRoPE clamps distances to the past, so it needs a causal mask"):
        aj.attend(*jnp.ones((3, 1, 4, 1, H)), encoding=ClampedRoPE())


def test_the_plan_is_two_populations_of_fresh_seeds():
    config = load("unseen_phase")
    runs = expand(config.config, config.sweep())
    assert [len(part) for part in groups(runs)] == [144, 144]
    assert [len(part) for part in groups(runs, limit=24)] == [24] * 12
    assert {run.seed for run in runs} == {run.data_seed for run in runs} == set(range(100, 106))
    assert {(run.task.length_max, run.train.batch) for run in runs} == {(64, 32), (128, 16)}
    for run in runs:
        assert {run.task.length_max, 4 * run.task.length_max, 8 * run.task.length_max} <= set(run.evaluate.lengths)
    assert len(clamped_bases([run.model.encoding.options["theta"] for run in runs])) == 12


def test_correlations_are_those_of_scipy():
    rows = np.random.default_rng(0).normal(size=(3, 9))
    x, z = np.round(rows[0] + rows[1], 1), rows[2]
    np.testing.assert_allclose(correlations(x, rows), [stats.spearmanr(x, row).statistic for row in rows], atol=1e-9)
    ranks = lambda y: stats.rankdata(y)
    rest = lambda y: ranks(y) - np.polyval(np.polyfit(ranks(z), ranks(y), 1), ranks(z))
    wanted = [np.corrcoef(rest(x), rest(row))[0, 1] for row in rows[:2]]
    np.testing.assert_allclose(partial(x, z, rows[:2]), wanted, atol=1e-9)


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


def changed(tables, run=lambda table: None, clamp=lambda table: None):
    """Planted records of which runs and clamps were changed."""
    for table in tables:
        {"run": run, "clamp": clamp}.get(table["kind"], lambda table: None)(table)
    return tables


def test_a_predictor_must_be_better_than_the_other_at_both_lengths():
    """Both predict at both lengths, but phases are better at the shorter one alone."""
    share = {64: 0.65, 128: 0.4}
    mixed = lambda base, L: share[L] * by_phase(base, L) + (1 - share[L]) * by_base(base, L)
    found = results(planted(mixed, "critical"))
    for one in found.lengths:
        assert min(one.rho["factor"]["novelty"].mean(), one.rho["factor"]["base"].mean()) > 0.2
    assert found.verdict == "neither"


def test_bases_that_did_not_fit_are_in_no_correlation():
    odd = (10.0, 100.0)
    unfitted = lambda table: table.update(best=[x - 0.2 for x in table["best"]]) if table["theta"] in odd else None
    plain = results(planted(by_phase, "critical"))
    found = results(changed(planted(by_phase, "critical", bases=(*(10.0 ** (k / 2) for k in range(1, 16)),)), unfitted))
    for one in found.lengths:
        assert [base for base, fits in zip(one.bases, one.fits, strict=True) if not fits] == list(odd)
        rank = stats.spearmanr(one.predictors["novelty"][one.fits], one.factor[0, one.fits]).statistic
        assert one.rho["factor"]["novelty"][0] == pytest.approx(-rank)
    assert found.verdict == plain.verdict == "unseen phase"
    assert results(changed(planted(by_phase, "critical"), unfitted)).verdict == "none", "eleven of thirteen are too few"


def test_a_smaller_rise_is_as_predicted_where_a_model_lasts():
    found = results(planted(by_phase, "critical"))
    for one in found.lengths:
        assert one.rho["rise"]["novelty"].mean() > 0.3
        rank = stats.spearmanr(one.predictors["novelty"], one.rise[0]).statistic
        assert one.rho["rise"]["novelty"][0] == pytest.approx(rank)


def test_clamps_of_runs_that_did_not_break_do_not_count():
    lasts = lambda base, _: 2.5 if base < 1e4 else 20.0
    harm = lambda table: table["losses"].__setitem__(1, 9.0) if table["theta"] >= 1e4 and table["pairs"] else None
    found = results(changed(planted(lasts, "critical"), clamp=harm))
    assert found.cause == "critical pairs"
    for one in found.lengths:
        np.testing.assert_allclose(one.effects["critical"], -0.1, atol=0.01)


def test_a_clamp_that_harms_less_than_others_does_not_mend():
    harm = lambda table: table["losses"].__setitem__(1, table["losses"][1] + 0.1 * (table["what"] in ("fast", "slow")))
    found = results(changed(planted(by_phase, "none"), clamp=harm))
    assert max(found.p.values()) < 0.05
    assert found.cause == "not shown"


def test_numbers_of_a_base_by_hand():
    found = results(planted(lambda base, L: 2.5, "critical", bases=(10.0, 1000.0)))
    one = found.lengths[0]
    assert one.factor.tolist() == [[2.0, 2.0]] * 6  # the excess is 0.01 to 2L, then 0.10 and more
    assert one.plain.tolist() == [[8.0, 8.0]] * 6  # the loss is never above 2.05: the best prediction falls as it rises
    np.testing.assert_allclose(one.rise, 0.1, atol=1e-9)
    assert one.fits.all()
    assert set(one.effects) == {*GROUPS, "all"}
    text = page.page(found)
    assert "too few bases fitted the task for a verdict" in text
    assert "| 1,000 | 6 of 6 | 84, 199, 471, 1,117, 2,650 | 2 |" in text
    assert "at L = 64 12 of the 12 runs of these bases fitted;" in text


def test_records_that_lack_a_run_or_all_are_one_sentence(tmp_path, capsys):
    tables = planted(lambda base, L: 2.5, "fast", bases=(10.0, 100.0))
    last = max(place for place, table in enumerate(tables) if table["kind"] == "run")
    with pytest.raises(ValueError, match="^at L = 128 11 of 12 runs were measured: go on$"):
        results(tables[:last])
    with pytest.raises(ValueError, match="^no run was measured to its end$"):
        results(tables[:2])
    assert main(["--render", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"unseen_phase: error: {tmp_path} holds no records.jsonl: measure first, or render another folder\n"
    )


def test_the_page_is_made_from_the_records_alone(tmp_path):
    jsonl.append(tmp_path / recorded.RECORDS, *planted(lambda base, L: 1.2 + np.log10(base) / 1.2, "critical"))
    assert main(["--render", str(tmp_path)]) == 0
    text = (tmp_path / "README.md").read_text()
    assert "follows the base, and not unseen phases" in text
    assert text == page.page(read(tmp_path / recorded.RECORDS))
    assert {path.name for path in tmp_path.iterdir()} >= {"README.md", "figure.png", "figure.svg"}


def test_the_committed_page_is_what_its_records_say():
    assert (FOLDER / "README.md").read_text() == page.page(read(FOLDER / recorded.RECORDS))


def test_a_length_without_enough_bases_or_seeds_is_told_with_its_numbers():
    """Eleven bases at L = 128, and one seed of which no run fitted there."""
    few = lambda table: table.update(best=[x - 0.2 for x in table["best"]])
    spoil = lambda table: (
        few(table) if table["trained"] == 128 and (table["theta"] < 2e1 or table["seed"] == 3) else None
    )
    text = page.page(results(changed(planted(by_phase, "critical"), spoil)))
    assert "(13 of 13 at L = 64, 11 of 13 at L = 128; 12 are needed at each)" in text
    assert (
        "which pairs break models is not compared (1 of 6 seeds at L = 128 have no run that fitted and then broke)"
        in text
    )
    assert "**Looked at afterwards**" in text
    assert "**Looked at afterwards**" not in page.page(results(planted(by_phase, "critical")))


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


@pytest.mark.slow
def test_sweeps_that_cannot_be_measured_are_one_sentence(trained, tmp_path, capsys):
    assert main(["--runs", str(trained), "--out", str(tmp_path), "--windows", "0"]) == 2
    assert capsys.readouterr().err == "unseen_phase: error: clamps are tested on one window or more, got 0\n"
    planned = tmp_path / "planned"
    config = load("unseen_phase")
    prepare(planned, "unseen_phase", plan(config.config, config.sweep()[:1]))
    assert main(["--runs", str(planned), "--out", str(tmp_path / "out")]) == 2
    assert "1 of 1 runs are still to be trained, such as " in capsys.readouterr().err
    (
        tmp_path / "planned" / sorted(path.parent.name for path in planned.glob("*/config.json"))[0] / "status.json"
    ).write_text('{"schema": 1, "state": "failed", "step": 3, "reason": "nan"}')
    assert main(["--runs", str(planned), "--out", str(tmp_path / "out")]) == 2
    assert "is failed: the comparison is of all runs of the sweep" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_done_is_measured_while_the_rest_trains(trained, tmp_path, capsys):
    begun, out = tmp_path / "begun", tmp_path / "out"
    shutil.copytree(trained, begun)
    last = sorted(path.parent for path in begun.glob("*/status.json"))[-1]
    (last / "status.json").write_text('{"schema": 1, "state": "preempted", "step": 1, "reason": ""}')
    assert main(["--runs", str(begun), "--out", str(out), "--windows", "4"]) == 2
    assert (
        f"1 of 3 runs are still to be trained, such as {last.name}; the others are measured" in capsys.readouterr().err
    )
    there = {one["run"] for one in jsonl.read(out / recorded.RECORDS).tables if one.get("kind") == "run"}
    assert len(there) == 2
    assert last.name not in there
    shutil.copy(trained / last.name / "status.json", last)
    assert main(["--runs", str(begun), "--out", str(out), "--windows", "4"]) == 0
