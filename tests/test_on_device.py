"""`python -m tests.on_device` on the CPU: it compares, goes on where it was stopped, and fails where an error is too large."""

import types

import jax
import pytest

from attnjax.attention import fused
from tests import on_device


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Two ways, one implementation, and two of the cases."""
    monkeypatch.setattr(on_device, "WAYS", on_device.WAYS[::2])
    monkeypatch.setattr(on_device, "IMPLEMENTATIONS", ("dense",))
    monkeypatch.setattr(on_device, "cases_of", lambda *given, of=on_device.cases_of: [*of(*given)][:2])
    on_device.truths.cache_clear()
    yield tmp_path
    on_device.truths.cache_clear()


@pytest.mark.slow
def test_compares_with_the_oracle_once(small, monkeypatch, capsys):
    assert on_device.main(["alibi", "--out", str(small)]) == 0
    *told, last = capsys.readouterr().out.splitlines()
    assert [line.rsplit(maxsplit=1)[0] for line in told] == [
        "cpu alibi float32, full precision dense",
        "cpu alibi bfloat16 dense",
    ]
    assert last == "2 of 2 programs are within their bound"
    found = on_device.rows(small / "records.jsonl")
    single, half = (row["error"] for row in found)
    assert 0 < single < 2e-5 < 1e-3 < half < 0.125
    assert [row["cases"] for row in found] == [2, 2]
    monkeypatch.setattr(on_device, "compared", lambda *_: pytest.fail("it has a record"))
    assert on_device.main(["alibi", "--out", str(small)]) == 0


@pytest.mark.slow
def test_a_wrong_result_fails_and_is_told(small, monkeypatch, capsys):
    attention = on_device.attention

    def wrong(*given):
        run = attention(*given)
        return lambda q, k, v, params, scale, *data: run(q, k, v, params, 2 * scale, *data)

    monkeypatch.setattr(on_device, "attention", wrong)
    assert on_device.main(["alibi", "--out", str(small)]) == 1
    text = capsys.readouterr().out
    assert "0 of 2 programs are within their bound" in text
    assert "alibi, dense, float32, full precision: " in text


def test_a_number_that_is_none_fails():
    assert on_device.failed({"error": float("nan"), "bound": 1.0})


def test_unknown_encoding(capsys):
    with pytest.raises(SystemExit, match="2"):
        on_device.main(["ropes"])
    assert "the matrix has no encoding ropes; it has nope, rope" in capsys.readouterr().err


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """A process that sees a GPU, whose kernel is that of XLA; returns the calls, and whether the kernel keeps a window."""
    calls, real, window = [], jax.nn.dot_product_attention, types.SimpleNamespace(kept=True)

    def fake(q, k, v, *, implementation, local_window_size=None, **options):
        assert implementation == "cudnn"
        calls.append((options["is_causal"], local_window_size, q.dtype.name))
        options["local_window_size"] = local_window_size if window.kept else None
        return real(*(x.astype("float32") for x in (q, k, v)), implementation="xla", **options).astype(q.dtype)

    monkeypatch.setattr(jax.nn, "dot_product_attention", fake)
    monkeypatch.setattr(fused, "has_cuda", lambda: True)
    monkeypatch.setattr(on_device, "IMPLEMENTATIONS", ("cudnn",))
    on_device.known_truths.cache_clear()
    yield types.SimpleNamespace(calls=calls, window=window, out=tmp_path)
    on_device.known_truths.cache_clear()


@pytest.mark.slow
def test_the_kernel_of_cudnn_runs_under_known_masks_in_sixteen_bits(kernel, capsys):
    """A score is none that it can serve. Positions from content reach it as data."""
    assert on_device.main(["nope", "fire", "fox", "--out", str(kernel.out)]) == 0
    told = [line.rsplit(maxsplit=1)[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert told == ["cpu nope bfloat16 cudnn", "cpu fox bfloat16 cudnn"]
    causal, full, window = (True, None, "bfloat16"), (False, None, "bfloat16"), (True, (4, 0), "bfloat16")
    assert kernel.calls[:3] == [causal, full, window]
    found = on_device.rows(kernel.out / "records.jsonl")
    assert [row["cases"] for row in found] == [3, 2]
    assert all(1e-4 < row["error"] < row["bound"] for row in found)


@pytest.mark.slow
def test_a_kernel_that_ignores_the_window_fails(kernel, capsys):
    kernel.window.kept = False
    assert on_device.main(["nope", "--out", str(kernel.out)]) == 1
    assert "nope, cudnn, bfloat16: " in capsys.readouterr().out
