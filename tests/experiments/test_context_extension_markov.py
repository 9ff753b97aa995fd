"""Markov chains past the trained length: chains, counting, losses of a model, what records say, and the committed page."""

import pathlib

import jax
import numpy as np
import pytest
from flax import nnx

import attnjax as aj
from attnjax.modules import Decoder, TransformerConfig
from configs import context_extension, rope_vs_sinusoidal
from experiments.context_extension.methods import Extension
from experiments.context_extension.subjects import Subject
from experiments.context_extension_markov import measuring, page, results

HERE = pathlib.Path(__file__).parents[2] / "experiments" / "context_extension_markov"
LENGTHS = [16, 32, 64]


def subject(name="a run", seed=0):
    config = TransformerConfig(vocab=8, model=16, layers=1, heads=2, hidden=32, encoding=aj.RoPE())
    build = lambda config: Decoder(config, rngs=nnx.Rngs(seed))
    return Subject(name, config, build, nnx.to_pure_dict(nnx.split(build(config), graph=False)[1]), 16, seed)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(measuring, "CHAINS", 4)
    monkeypatch.setattr(measuring, "LAST", 8)
    monkeypatch.setattr(measuring, "BIN", 8)
    monkeypatch.setattr(measuring, "FACTOR", 4)
    monkeypatch.setattr(measuring, "SEARCHED", 2)
    monkeypatch.setattr(measuring, "ROUNDS", 1)


def test_chains_have_symbols_of_every_kind_and_differ_from_each_other():
    chains = measuring.drawn(200, 3, 5)
    assert chains.shape == (3, 201)
    assert {*chains.ravel().tolist()} == {*range(8)}
    counts = [np.histogram2d(row[:-1], row[1:], bins=8)[0] for row in chains]
    assert abs(counts[0] - counts[1]).sum() > 100
    assert (measuring.drawn(200, 3, 5) == chains).all()
    assert (measuring.drawn(200, 3, 6) != chains).any()


def test_counting_pairs_is_done_by_hand(small):
    """In 0 1 0 1 ... a pair that was seen n times, of 8 symbols that may follow, costs ln((n + 8) / (n + 1))."""
    chains = np.array([[0, 1] * 32 + [0]])
    found = measuring.counted(chains, LENGTHS)["bigram"]
    seen = lambda n: np.log((n + 8) / (n + 1))
    # In a window of 16 the pair of target t was seen t // 2 times before; the last 8 targets are 8 .. 15.
    assert found["context"]["16"] == pytest.approx([np.mean([seen(t // 2) for t in range(8, 16)])], rel=1e-4)
    assert found["position"][0] == pytest.approx(np.mean([seen(t // 2) for t in range(8)]), rel=1e-4)
    assert len(found["position"]) == 8


@pytest.mark.quick("yarn")
@pytest.mark.parametrize("method", ["none", "yarn", "streaming_llm"])
def test_losses_are_those_of_the_model_at_the_ends_of_windows(small, method):
    from attnjax.modules import extended

    one, chains = subject(), measuring.drawn(64, 3, 1)
    found = measuring.measured(one, method, Extension(16, 4.0), chains, LENGTHS)
    model = Decoder(one.config, rngs=nnx.Rngs(0))
    if method != "none":
        model = extended(model, method, trained=16, factor=4.0)
    for length in LENGTHS:
        window = chains[:, -length - 1 :]
        logs = np.asarray(jax.nn.log_softmax(model(window[:, :-1])))
        losses = -np.take_along_axis(logs, window[:, 1:, None], 2)[..., 0]
        np.testing.assert_allclose(found["context"][str(length)], losses[:, -8:].mean(1), rtol=2e-4)
    np.testing.assert_allclose(found["position"], losses.reshape(3, 8, 8).mean((0, 2)), rtol=2e-4)


def test_a_second_call_goes_on_where_the_first_was_stopped(small, tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    monkeypatch.setattr(measuring, "NAMES", ("none", "yarn"))
    said = []
    measuring.record([subject()], path, said.append)
    assert [line.split(":")[0] for line in said] == ["a run none", "a run yarn"]
    before = path.read_text(encoding="utf-8")
    measuring.record([subject()], path, said.append)
    assert path.read_text(encoding="utf-8") == before
    cut = before.splitlines(keepends=True)
    path.write_text("".join(cut[:-1]), encoding="utf-8")
    measuring.record([subject(), subject("another", 1)], path, said.append)
    found = results.read(path)
    assert [run["run"] for run in found.runs] == ["a run", "another"]
    assert found.methods["yarn"].context[64].shape == (2, 4)
    monkeypatch.setattr(measuring, "CHAINS", 5)
    with pytest.raises(ValueError, match=r"holds records of another protocol \(chains\)"):
        measuring.record([subject()], path)


def tables(runs=6):
    """Six runs: context of 32 is worth 0.5 nats under YaRN, costs 1 as trained, and does nothing under the windowed ones."""
    about = {"kind": "protocol", "trained": 16, "factor": 2, "lengths": [16, 32], "chains": 3, "last": 8, "bin": 16}
    about |= {"methods": ["none", "yarn", "lm_infinite", "streaming_llm"], "rounds": 1, "seed": 0}
    made = {"kind": "made", "date": "2026-01-02", "python": "3", "jax": "0.1", "flax": "0.2", "processor": "a CPU"}
    counted = lambda first, last: {"context": {"16": [first] * 3, "32": [last] * 3}, "position": [first, last]}
    rows = [about, made, {"kind": "counting", "unigram": counted(2.5, 2.5), "bigram": counted(2.0, 1.0)}]
    noise = np.random.default_rng(0).normal(0, 0.01, (runs, 3))
    past = {"none": 1.0, "yarn": -0.5, "lm_infinite": 0.0, "streaming_llm": 0.0}
    for i in range(runs):
        rows.append({"kind": "run", "run": str(i), "seed": i, "factors": [1.0], "training": 1.0})
        base = 2.0 + 0.02 * i
        for method, more in past.items():
            ends = [base + more + (more != 0) * noise[i, w] for w in range(3)]
            context = {"16": [base] * 3, "32": ends}
            row = {
                "kind": "method",
                "run": str(i),
                "method": method,
                "context": context,
                "position": [base, np.mean(ends)],
            }
            rows.append(row | {"seconds": 60.0})
    return rows


def test_hand_made_records_give_gains_and_the_claim():
    found = results.results(tables())
    assert found.ordered == ["yarn", "lm_infinite", "streaming_llm", "none"]
    assert found.possible == -1.0
    assert found.gain("yarn", 32).value == pytest.approx(-0.5, abs=0.02)
    assert found.gain("yarn", 32).low < found.gain("yarn", 32).value < found.gain("yarn", 32).high < -0.4
    assert found.gain("none", 16).value == found.gain("lm_infinite", 32).value == 0
    assert found.paying(32) == ["yarn"]
    assert found.fitted == 3  # 2.00, 2.02 and 2.04 lie within 0.05 of 2; 2.06 does not
    told = page.claim(found)
    assert "From 16 to 32 symbols the prediction from pairs counted in the context gains 1.000 nats per symbol." in told
    assert "context pays under 1 of 1 methods that see all of it: YaRN -0.5" in told
    assert "The best, YaRN, gains 50% of what counting does." in told or "gains 51% of what" in told
    assert page.losses(found).splitlines()[-1] == "| *best prediction* | *2.000* | *1.000* |"


def test_a_run_without_all_methods_does_not_count_and_none_is_refused():
    rows = tables(2)
    assert len(results.results(rows[:-1]).runs) == 1
    with pytest.raises(ValueError, match="there is no run with all its methods in these records"):
        results.results(rows[:5])


def test_nothing_pays_is_said_too():
    rows = [row for row in tables() if row.get("method") != "yarn"]
    rows += [row | {"method": "yarn"} for row in rows if row.get("method") == "none"]
    told = page.claim(results.results(rows))
    assert "under no method without training does context pay there. The control: StreamingLLM 0.000" in told


def test_the_runs_are_trained_as_the_cell_of_rope_in_the_paper():
    mine, theirs = context_extension.get_config("markov"), rope_vs_sinusoidal.get_config("markov")
    for name, value in rope_vs_sinusoidal.MARKOV.items():
        if name.startswith("train."):
            theirs.train[name.removeprefix("train.")] = value
    theirs.model.encoding = mine.model.encoding
    theirs.train.checkpoint_every = mine.train.checkpoint_every
    assert mine.model.to_dict() == theirs.model.to_dict()
    assert mine.train.to_dict() == theirs.train.to_dict()
    task = rope_vs_sinusoidal.MARKOV["task"]
    assert {name: mine.task[name] for name in task} == task
    with pytest.raises(ValueError, match="context_extension:other: choose text or markov"):
        context_extension.get_config("other")


def test_the_committed_page_is_made_from_the_records():
    found = results.read(HERE / "records.jsonl")
    assert (HERE / "README.md").read_text(encoding="utf-8") == page.page(found)
    assert len(found.runs) == 10
    assert set(found.methods) == set(measuring.NAMES)
    for method in results.WINDOWED:
        assert abs(found.gain(method, 512).value) < 0.02


def test_the_numbers_of_the_page_about_models_are_those_of_the_records():
    found = results.read(HERE / "records.jsonl")
    text = " ".join((HERE.parents[1] / "docs" / "models.md").read_text(encoding="utf-8").split())
    gain = lambda name: f"{-found.gain(name, 512).value:.3f}"
    assert (
        "from 64 to 512 symbols the loss of a prediction from pairs counted in the context falls by "
        f"{-found.possible:.3f} nats a symbol" in text
    )
    assert f"the loss of RoPE as trained rises by {found.gain('none', 512).value:.3f} there" in text
    assert (
        f"it falls by {gain('leaky_rerope')} under Leaky ReRoPE with log-n scaling, by {gain('self_extend')} under Self-Extend"
        in text
    )
    assert f"and dual chunks, and by {gain('yarn')} under YaRN." in text
    assert gain("self_extend") == gain("dual_chunk")
