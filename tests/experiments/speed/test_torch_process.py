"""The line to the other environment, against a worker that is plain Python: what it must survive, and what it must carry.

PyTorch itself is not needed here. The suites run against attention that the fake worker does with NumPy.
"""

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from attnjax.positions import Kerple, NoPE, T5Bias, learns
from attnjax.tasks.forms import Sequences
from experiments.speed.harness import Settings
from experiments.speed.peers import torch_process
from experiments.speed.peers.torch_process import WORKER, PeerError, TorchPeer, environment, first_words
from experiments.speed.suites import SUITES, attention_torch, training_torch

FAKE = pathlib.Path(__file__).with_name("fake_worker.py")
Fake = functools.partial(TorchPeer, pathlib.Path(sys.executable), worker=FAKE)


@pytest.fixture
def peer():
    with Fake(timeout=30.0) as peer:
        yield peer


def gone(peer):
    """Whether the process has ended and its files are removed."""
    return peer._process.poll() is not None and not peer._place.exists()


def test_arrays_survive_the_way_there_and_back(peer):
    sent = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "i": np.array([2**40, -1]), "empty": np.zeros((0, 3))}
    assert peer.prepare({"kind": "echo"}, sent) == {"parameters": 7}
    found = peer.results()
    assert {name: (x.dtype, x.tolist()) for name, x in found.items()} == {
        name: (x.dtype, x.tolist()) for name, x in sent.items()
    }


def test_a_run_returns_the_seconds_that_the_worker_took(peer):
    peer.prepare({"kind": "echo", "seconds": 0.25}, {})
    assert (peer.run(), peer.run()) == (0.25, 0.25)
    assert peer.versions()["threads"] == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), "0.1", None, True])
def test_seconds_that_are_none(peer, seconds):
    peer.prepare({"kind": "echo", "seconds": seconds}, {})
    with pytest.raises(PeerError, match="seconds must be a positive number, got"):
        peer.run()


def test_error_of_the_worker_is_told_and_it_goes_on(peer):
    with pytest.raises(PeerError, match=r"^RuntimeError: cannot do that$"):
        peer.prepare({"kind": "refuses"}, {})
    assert peer.prepare({"kind": "echo"}, {}) == {"parameters": 7}


def test_dead_worker(peer):
    with pytest.raises(PeerError, match=r"ended during 'prepare'. It said:\nmy last words"):
        peer.prepare({"kind": "dies"}, {})
    for ask in (peer.versions, lambda: peer.prepare({}, {}), peer.run, peer.results):
        with pytest.raises(PeerError, match="has ended"):
            ask()
    peer.close()
    assert gone(peer)


def test_silent_worker_is_killed():
    start = time.monotonic()
    with Fake(timeout=0.5) as peer:
        with pytest.raises(PeerError, match=r"did not answer 'prepare' within 0.5 s"):
            peer.prepare({"kind": "sleeps"}, {})
        assert peer._process.returncode == -9
    assert time.monotonic() - start < 30
    assert gone(peer)


@pytest.mark.parametrize("text", ["Compiling, please wait", "", "[1]", "3", '{"seconds":'])
def test_junk_instead_of_an_answer(peer, text):
    with pytest.raises(PeerError, match="answered 'prepare' by what is no answer") as caught:
        peer.prepare({"kind": "says", "text": text}, {})
    assert repr(text) in str(caught.value)
    with pytest.raises(PeerError, match="has ended"):
        peer.versions()


def test_no_results_where_some_were_promised(peer):
    peer.prepare({"kind": "says", "text": "{}"}, {})
    with pytest.raises(PeerError, match="wrote no results that can be read"):
        peer.results()


def test_worker_that_cannot_start(tmp_path):
    with pytest.raises(PeerError, match="cannot be started: No such file or directory"):
        TorchPeer(tmp_path / "python")
    without = TorchPeer(pathlib.Path(sys.executable), worker=tmp_path / "missing.py")
    with without as peer, pytest.raises(PeerError, match="ended during 'hello'"):
        peer.versions()


def test_leaving_ends_the_worker_also_after_an_error():
    with Fake(timeout=30.0) as peer:
        peer.versions()
    assert gone(peer)
    assert peer._process.returncode == 0, "asked to quit, it quits by itself"
    with pytest.raises(KeyboardInterrupt), Fake(timeout=30.0) as peer:
        raise KeyboardInterrupt
    assert gone(peer)


def test_worker_has_all_our_cores_and_does_not_wait_on_them(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    monkeypatch.setenv("OMP_NUM_THREADS", "999")
    given = environment()
    assert "OMP_WAIT_POLICY" not in given
    assert 1 <= int(given["OMP_NUM_THREADS"]) <= (os.cpu_count() or 1)
    assert int(given["GOMP_SPINCOUNT"]) < 300_000, "the default of the GNU runtime"


def test_the_real_worker_answers_in_lines_and_needs_neither_torch_nor_us_to_start():
    requests = [{"op": "nonsense"}, {"op": "run"}, {"op": "quit"}, {"op": "hello"}]
    text = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([sys.executable, "-I", WORKER], input=text, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0] == {"error": "ValueError: unknown op 'nonsense'"}
    assert "error" in answers[1], "nothing is prepared"
    assert answers[2:] == [{}]
    code = (
        f"import runpy, sys; runpy.run_path({str(WORKER)!r}); print({{'torch', 'jax', 'attnjax'}} & {{*sys.modules}})"
    )
    assert subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_notes_hold_no_paths():
    assert first_words(PeerError("\nCppCompileError: /usr/bin/g++ failed\nmore")) == "CppCompileError: ... failed"
    assert first_words(PeerError("")) == "no reason given"


@pytest.fixture
def told():
    """Settings of a suite, and the rows and lines that it makes."""
    rows, lines = [], []
    return Settings(rows.append, lines.append, smoke=True, rounds=3, refuse=lines.append), rows, lines


@pytest.mark.parametrize(("encoding", "backward"), [(NoPE(), False), (T5Bias(), True), (Kerple(), True)])
def test_attention_agrees_with_float64(peer, told, encoding, backward):
    """T5's and KERPLE's gradients come from the vector's by the chain rule; outputs and dq, dk, dv as they are."""
    settings, rows, lines = told
    given = attention_torch.problem(encoding, 24, B=2, N=2, H=4)
    kind = "sdpa_bias" if learns(encoding) else "sdpa"
    attention_torch.against(settings, peer, {"torch": "none"}, given, kind, backward=backward)
    assert lines == []
    (row,) = rows
    assert row.case == f"{type(encoding).__name__}, forward{' + backward' * backward}"
    assert 0 < row.error < 1e-5
    assert row.peer_figure.median == 0.5
    assert row.sizes == {"B": 2, "T": 24, "N": 2, "H": 4, "dtype": "float32", "torch": {"torch": "none"}}


def test_no_row_where_the_two_differ(peer, told, monkeypatch):
    settings, rows, lines = told
    given = attention_torch.problem(NoPE(), 24, B=2, N=2, H=4)
    prepare = peer.prepare
    monkeypatch.setattr(peer, "prepare", lambda case, arrays: prepare(case | {"factor": 1.001}, arrays))
    attention_torch.against(settings, peer, {}, given, "sdpa", backward=False)
    assert rows == []
    assert lines == ["attention_torch: NoPE, forward, T = 24: PyTorch SDPA differs by 1.0e-03, not measured"]


@pytest.mark.parametrize(
    ("kind", "T", "goal"),
    [
        ("sdpa", 1024, 1.0),
        ("sdpa", 128, None),
        ("sdpa_bias", 1024, None),
        ("sdpa_bias", 2048, 1.5),
        ("flex", 4096, None),
    ],
)
def test_goals(kind, T, goal):
    assert attention_torch.goal(kind, T) == goal


def test_bias_of_each_distance():
    """Distances 0 .. T - 1 of every head, by the formulas of the papers."""
    for encoding in (T5Bias(), Kerple()):
        given = attention_torch.problem(encoding, 24, B=2, N=2, H=4)
        vector, head = given.sent()["bias"], given.args[0].head
        assert vector.shape == (2, 24)
        if isinstance(encoding, T5Bias):
            np.testing.assert_array_equal(vector[:, :16], head["table"][:, :16])
        else:
            r1, r2 = (np.log1p(np.exp(np.float64(head[name])))[:, None] for name in ("r1", "r2"))
            np.testing.assert_allclose(vector, -r1 * np.log1p(r2 * np.arange(24)), rtol=1e-5)


def test_training_falls_back_to_eager_and_both_have_the_same_batches(peer, told, monkeypatch):
    """Our own training is left to the benchmark itself: here it takes 0.2 s."""
    settings, rows, lines = told
    ours = (lambda: 0.2), 16, [4.6]
    monkeypatch.setattr(training_torch, "_ours", lambda trainer, steps: ours)
    training_torch.against(settings, peer, {}, training_torch.run_config(1, 16, 3), steps=2)
    assert lines == []
    (row,) = rows
    assert (row.case, row.peer, row.goal) == (
        "1 layers, d 16, one step, steady state",
        "x-transformers (eager)",
        1.5,
    )
    assert (row.our_figure.median, row.peer_figure.median) == (0.1, 0.25), "of one step, of two that took 0.2 and 0.5"
    assert row.note == (
        "16 parameters, the peer 7; torch.compile failed: ValueError: no compiler in ... of mine; 2 steps at a time"
    )
    assert (row.sizes["T"], row.sizes["B"], row.sizes["encoding"]) == (64, 3, "rope")
    sent, separator, stop = peer.results(), 100, 101
    assert sent["tokens"].shape == (2, 3, 64)
    for tokens, targets in zip(sent["tokens"].reshape(6, 64), sent["targets"].reshape(6, 64)):
        at = int(np.flatnonzero(tokens == separator)[0])
        assert targets[targets >= 0].tolist() == [*tokens[1:at], stop]
        assert np.flatnonzero(targets >= 0).tolist() == list(range(at, 2 * at))


def test_no_row_where_the_peer_does_not_learn(peer, told, monkeypatch):
    settings, rows, lines = told
    batches = Sequences(*(np.zeros((1, 2, 3), np.int32) for _ in Sequences._fields))
    monkeypatch.setattr(training_torch, "_batches", lambda trainer, steps: batches)
    monkeypatch.setattr(training_torch, "_ours", lambda *_: ((lambda: 0.2), 16, [4.6]))
    prepare = peer.prepare
    monkeypatch.setattr(peer, "prepare", lambda case, arrays: prepare(case | {"loss": float("nan")}, arrays))
    training_torch.against(settings, peer, {}, training_torch.run_config(1, 16, 3), steps=1)
    assert rows == []
    assert len(lines) == 1
    assert "not measured, because the last losses are 4.6 and, of the peer, nan" in lines[0]


@pytest.mark.parametrize("suite", [attention_torch.attention_torch, training_torch.training_torch])
def test_without_an_environment_one_line_says_how_to_make_one(suite, monkeypatch):
    rows, lines = [], []
    suite(Settings(rows.append, lines.append))
    monkeypatch.setattr(torch_process, "TorchPeer", Without)
    suite(Settings(rows.append, lines.append, torch=pathlib.Path("python")))
    package = SUITES[suite.__name__].needs
    assert rows == []
    assert lines == [
        f"{suite.__name__}: left out, because it needs {package}: `python -m venv torch && torch/bin/pip install torch numpy "
        f"{package}` makes an environment (a CPU build is enough), and `--torch torch/bin/python` names it",
        f"{suite.__name__}: left out, because that environment has no {package}",
    ]


class Without(contextlib.nullcontext):
    """A worker whose environment holds nothing."""

    def versions(self):
        return {"torch": None}

    def __enter__(self):
        return self
