"""Heads: brackets in source, importance, pruning, probes, statistics by hand, and the measuring command at a tiny size."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from attnjax.evaluation.loaded_model import LoadedModel
from attnjax.modules import TransformerConfig
from attnjax.positions import RoPE
from attnjax.tasks import Text
from experiments import ngrams
from experiments.heads import __main__ as heads, positions, pruning, source
from tests.evaluation.planted_heads import drawn
from tests.experiments.tiny import run_tiny

TOKENS = np.random.default_rng(0).integers(0, 11, (4, 9)).astype(np.int32)


@pytest.fixture(scope="module")
def subject():
    config = TransformerConfig(vocab=11, model=16, layers=2, heads=2, hidden=16, encoding=RoPE(theta=100.0))
    return LoadedModel(drawn(config))


@pytest.mark.parametrize(
    ("data", "links"),
    [
        (b"f([1], '(')", [(4, 2), (10, 1)]),
        (b"# (\nx = {}\n", [(9, 8)]),
        ("é = (1)\n".encode(), [(7, 5)]),
        (b"\xef\xbb\xbf()", [(4, 3)]),
        (b"x = f'{(1)}'\n", []),
        (b"a(\n  b)\n", [(6, 1)]),
    ],
)
def test_brackets_by_hand(data, links):
    assert source.bracket_links(data) == links


def test_windows_hold_whole_pairs_of_files_that_are_not_trained_on(tmp_path):
    for i in range(40):
        (tmp_path / f"{i}.py").write_bytes(b"x = (%d)  # %s\n" % (i, b"c" * 19))
    (tmp_path / "broken.py").write_bytes(b"(" * 32)
    found = source.held_out(Text(path=str(tmp_path)), 16, per_file=2)
    assert found.tokens.shape == (len(found.document), 16)
    for tokens, mask in zip(found.tokens, found.bracket, strict=True):
        row, text = np.argwhere(mask).tolist(), bytes(tokens.tolist())
        assert row == ([[text.index(b")"), text.index(b"(")]] if b"(" in text else [])
    assert 0 < found.bracket.sum() < len(found.tokens)
    assert sorted(set(found.document)) == list(range(found.document.max() + 1))


def test_importance_is_the_slope_of_the_loss_in_a_gate(subject):
    slopes = np.zeros((2, 2))
    for place in np.ndindex(2, 2):
        gates = [np.ones((2, 2), np.float32) for _ in range(2)]
        gates[0][place], gates[1][place] = 1.01, 0.99
        up, down = (np.asarray(subject.losses(jnp.asarray(TOKENS), jnp.asarray(gate))).mean(1) for gate in gates)
        slopes[place] = np.abs(up - down).mean() / 0.02
    expected = slopes / np.linalg.norm(slopes, axis=1, keepdims=True)
    np.testing.assert_allclose(pruning.importance(subject, TOKENS), expected, atol=0.02)


def test_a_curve_leads_from_all_heads_to_none(subject):
    order = np.array([2, 0, 3, 1])
    found = pruning.curve(subject, TOKENS, order)
    assert len(found) == 5
    gate = jnp.array([[0.0, 1.0], [0.0, 1.0]])
    for place, gates in ((0, jnp.ones((2, 2))), (2, gate), (4, jnp.zeros((2, 2)))):
        expected = np.asarray(subject.losses(jnp.asarray(TOKENS), gates)).mean()
        assert found[place] == pytest.approx(expected, rel=1e-6)


def test_a_probe_reads_a_position_that_is_there_and_no_other():
    rng, T = np.random.default_rng(1), 12
    target = np.tile(np.arange(T), (16, 1))
    noise = rng.normal(size=(16, T, 3))
    states = np.stack([noise, np.concatenate([noise[..., :2], 3.0 * target[..., None] - 1], -1)])
    within, beyond = positions.probe(states, target, 8)
    assert within[0] < 0.2
    np.testing.assert_allclose([within[1], beyond[1]], 1, atol=1e-6)
    shuffled = positions.shuffled(target, 8, seed=0)
    assert np.array_equal(np.sort(shuffled[:, :8]), target[:, :8])
    assert positions.probe(states, shuffled, 8)[0][1] < 0.2


@pytest.mark.slow
def test_runs_are_measured_and_gone_on_with(tmp_path, monkeypatch):
    for i in range(60):
        lines = b"".join(b"def f%d(x):\n    return (x + %d) * [%d]\n" % (i, j, i + j) for j in range(12))
        (tmp_path / f"{i}.py").write_bytes(lines)
    monkeypatch.setattr(heads, "LONG", 16)
    options = (f"task.options.path={tmp_path}", "task.options.split_by=file")
    rope = lambda run: run.config.seed == 0 and run.config.model.encoding.name == "rope"
    run_tiny(tmp_path / "runs", "heads_lm", 16, *options, chosen=rope)
    path = tmp_path / "out" / "records.csv.xz"
    for _ in range(2):
        heads.measure(tmp_path / "runs", path, count=8)
    records = pd.read_csv(path, keep_default_na=False, dtype={"of": str})
    assert not records.duplicated(["run", "stage", "of", "measure", "place"]).any()
    grams = records[records["of"] == "ngrams"]
    assert grams["measure"].tolist() == list(ngrams.names(5))
    loss = records[records["measure"] == "loss"].set_index(["of", "place"])["value"]
    assert loss["importance", 2] == loss["random", 2]
    assert loss["importance", 0] == pytest.approx(loss["random", 0])
    scores = records[records["measure"] == "best_head"]
    assert len(scores) == 2 * len(heads.PATTERNS)
    assert scores["value"].between(0, 1).all()
    assert set(records[records["measure"] == "R2"]["stage"]) == {"trained", "untrained", "shuffled"}
