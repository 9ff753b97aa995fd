"""Generation beside transformers, which a worker of plain Python stands in for: agreement first, then the row."""

import functools
import pathlib
import sys

import jax
import numpy as np
import pytest

from experiments.speed.harness import Settings
from experiments.speed.peers.torch_process import TorchPeer
from experiments.speed.suites import generation
from experiments.speed.suites.generation import SMOKE, agreement, llama, rate

FAKE = pathlib.Path(__file__).with_name("fake_worker.py")


@pytest.fixture(scope="module")
def known():
    """Our model, a prompt, and greedy tokens with their logits: one pass over the whole sequence for each token."""
    loaded = llama(SMOKE)
    prompt, steps = np.array([[5, 9, 2, 7, 1]], np.int32), 3
    run = jax.jit(lambda tokens: loaded.model(tokens))
    tokens, logits = prompt, []
    for i in range(steps):
        padded = np.pad(tokens, [(0, 0), (0, steps - i)])
        logits.append(np.asarray(run(padded))[:, tokens.shape[1] - 1])
        tokens = np.concatenate([tokens, logits[-1].argmax(-1)[:, None].astype(np.int32)], 1)
    return loaded, prompt, {"tokens": tokens[:, 5:], "logits": np.stack(logits, 1)}


def test_equal_tokens_and_logits_agree(known):
    loaded, prompt, told = known
    error, same = agreement(loaded, prompt, told["tokens"], told)
    assert error < 1e-5
    assert same == 3


def test_other_logits_are_refused(known):
    loaded, prompt, told = known
    with pytest.raises(ValueError, match="ours and the peer differ by 0.001 of the largest entry"):
        agreement(loaded, prompt, told["tokens"], {**told, "logits": 1.001 * told["logits"]})


def test_tokens_may_part_where_two_are_equally_likely_alone(known, monkeypatch):
    loaded, prompt, told = known
    other = told["tokens"].copy()
    other[0, 1] = np.argsort(told["logits"][0, 1])[0]
    with pytest.raises(ValueError, match="token 1 is not the peer's, and its logit differs by"):
        agreement(loaded, prompt, other, told)
    monkeypatch.setattr(generation, "TIE", 10.0)
    assert agreement(loaded, prompt, other, told)[1] == 1


def test_tokens_per_second():
    assert rate(100, {"ours": [1.0, 2.0, 4.0], "theirs": [0.05]}) == "50 tokens/s, the peer 2,000"


def test_without_an_environment_or_transformers_one_line_says_so(monkeypatch):
    rows, lines = [], []
    generation.generation(Settings(rows.append, lines.append))
    monkeypatch.setattr(
        "experiments.speed.peers.torch_process.TorchPeer", lambda python: TorchPeer(python, worker=FAKE)
    )
    generation.generation(Settings(rows.append, lines.append, torch=pathlib.Path(sys.executable)))
    assert rows == []
    assert "left out" in lines[0]
    assert "--torch" in lines[0]
    assert lines[1:] == ["generation: left out, because that environment has no transformers"]


def test_the_row(known, monkeypatch):
    """The peer says what we say; both are given the same weights by their published names."""
    rows, lines = [], []
    monkeypatch.setattr(generation, "agreement", functools.partial(_noted, found := []))
    with TorchPeer(pathlib.Path(sys.executable), worker=FAKE) as peer:
        settings = Settings(rows.append, smoke=True, rounds=3, refuse=lines.append)
        generation.against(settings, peer, {"transformers": "none"}, SMOKE, known[0], 5, 3)
        generation.against(settings, peer, {"transformers": "none"}, SMOKE, known[0], 1, 3)
    assert lines == []
    long, short = rows
    assert long.case == "3 tokens after 5, reading included"
    assert short.case == "3 tokens after 1, per token"
    assert long.peer_figure.median == pytest.approx(0.5)
    assert short.peer_figure.median == pytest.approx(0.5 / 3)
    assert long.goal == 1.5
    assert long.sizes["cache"] == 8
    assert long.note.endswith("the peer 6")
    sent = found[0]
    assert sent["prompt"].shape == (1, 5)
    assert sent["model.layers.1.self_attn.q_proj.weight"].shape == (32, 32)
    assert sent["lm_head.weight"].shape == (64, 32)


def _noted(found, loaded, prompt, tokens, told):
    found.append(told)
    return 0.0, tokens.shape[1]


def test_the_sizes_of_the_full_suite():
    assert {sum(case) for case in generation.FULL.cases} == {2048}
    assert (generation.FULL.layers, generation.FULL.model) == (8, 512)
