"""`python -m tests.on_device` on the CPU: it compares, goes on where it was stopped, and fails where an error is too large."""

import pathlib
import types

import jax
import pytest

from attnjax.attention import fused
from attnjax.records import jsonl
from experiments import recorded
from tests import on_device

H200 = pathlib.Path(__file__).parents[1] / "experiments/devices/h200/records.jsonl"


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
    assert [line.rsplit(maxsplit=1)[0] for line in capsys.readouterr().out.splitlines()] == [
        "cpu alibi float32, full precision dense",
        "cpu alibi bfloat16 dense",
    ]
    found = on_device.rows(small / "records.jsonl")
    single, half = (row["error"] for row in found)
    assert 0 < single < 2e-5 < 1e-3 < half < 0.125
    text = (small / "README.md").read_text()
    assert "4 cases in 1 implementations (dense)" in text
    assert f"| alibi | {single:.1e} | {half:.1e} |" in text
    monkeypatch.setattr(on_device, "compared", lambda *_: pytest.fail("it has a record"))
    assert on_device.main(["alibi", "--out", str(small)]) == 0


@pytest.mark.slow
def test_a_wrong_result_fails_and_is_told(small, monkeypatch):
    attention = on_device.attention

    def wrong(*given):
        run = attention(*given)
        return lambda q, k, v, params, scale, *data: run(q, k, v, params, 2 * scale, *data)

    monkeypatch.setattr(on_device, "attention", wrong)
    assert on_device.main(["alibi", "--out", str(small)]) == 1
    text = (small / "README.md").read_text()
    assert "0 of 2 programs are within their bound." in text
    assert "* alibi, dense, float32, full precision: " in text


def test_a_number_that_is_none_fails():
    assert on_device.failed({"error": float("nan"), "bound": 1.0})


def test_unknown_encoding(capsys):
    with pytest.raises(SystemExit, match="2"):
        on_device.main(["ropes"])
    assert "the matrix has no encoding ropes; it has nope, rope" in capsys.readouterr().err


@pytest.mark.slow
def test_rounded_operands_move_a_smooth_result_by_their_rounding():
    assert 1e-5 < on_device.moved_by_rounding("rope") < 1e-3


def test_the_committed_page_is_that_of_its_records(monkeypatch):
    """Only the gradient of CoPE is above a bound."""
    found = on_device.rows(H200)
    assert {(row["encoding"], row["way"]) for row in found if on_device.failed(row)} == {
        (name, on_device.WAYS[1].name) for name in ("cope", "cope-short")
    }
    # Its inputs were drawn otherwise, close to a jump of the gradient.
    monkeypatch.setattr(on_device, "moved_by_rounding", {"cope": 0.1324, "cope-short": 0.2111}.get)
    text = on_device.page(recorded.about(jsonl.read(H200).tables), found)
    assert text == H200.with_name("README.md").read_text(encoding="utf-8")


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
    told = [line.rsplit(maxsplit=1)[0] for line in capsys.readouterr().out.splitlines()]
    assert told == ["cpu nope bfloat16 cudnn", "cpu fox bfloat16 cudnn"]
    causal, full, window = (True, None, "bfloat16"), (False, None, "bfloat16"), (True, (4, 0), "bfloat16")
    assert kernel.calls[:3] == [causal, full, window]
    found = on_device.rows(kernel.out / "records.jsonl")
    assert [row["cases"] for row in found] == [3, 2]
    assert all(1e-4 < row["error"] < row["bound"] for row in found)


@pytest.mark.slow
def test_a_kernel_that_ignores_the_window_fails(kernel):
    kernel.window.kept = False
    assert on_device.main(["nope", "--out", str(kernel.out)]) == 1
    assert "* nope, cudnn, bfloat16: " in (kernel.out / "README.md").read_text()
