"""`python -m tests.on_device` on the CPU: it compares, goes on where it was stopped, and fails where an error is too large."""

import jax
import pytest

from attnjax.attention import fused
from tests import on_device


@pytest.fixture
def small(monkeypatch):
    """Two ways, one implementation, and two of the cases; the kernel of a GPU is that of XLA, which forgets windows."""
    real, cases = jax.nn.dot_product_attention, on_device.matrix.cases_of

    def fake(q, k, v, *, implementation, local_window_size, **options):
        assert implementation == "cudnn"
        arrays = (x.astype("float32") for x in (q, k, v))
        return real(*arrays, implementation="xla", **options).astype(q.dtype)

    monkeypatch.setattr(on_device, "WAYS", on_device.WAYS[::2])
    monkeypatch.setattr(on_device, "IMPLEMENTATIONS", ("dense", "cudnn"))
    monkeypatch.setattr(on_device.matrix, "cases_of", lambda *given: [*cases(*given)][:2])
    monkeypatch.setattr(jax.nn, "dot_product_attention", fake)
    monkeypatch.setattr(fused, "has_cuda", lambda: True)
    on_device.truths.cache_clear()
    yield
    on_device.truths.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_compares_with_the_oracle_once_and_fails_where_a_result_is_wrong(monkeypatch, tmp_path, capsys):
    assert on_device.main(["fire", "nope", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    rows = on_device.rows(tmp_path / "records.jsonl")
    found = {(row["encoding"], row["implementation"], row["way"].partition(",")[0]): row for row in rows}
    assert len(found) == 5, "a score is none that cuDNN serves, which takes 16 bits alone"
    single, half = (found["fire", "dense", dtype]["error"] for dtype in ("float32", "bfloat16"))
    assert 0 < single < 2e-5 < 1e-3 < half < 0.125
    wrong = found.pop(("nope", "cudnn", "bfloat16"))
    assert (wrong["cases"], wrong["error"] > wrong["bound"]) == (3, True)
    assert all((row["cases"], row["error"] <= row["bound"]) == (2, True) for row in found.values())
    assert "4 of 5 programs are within their bound\nnope, cudnn, bfloat16: " in told
    monkeypatch.setattr(on_device, "compared", lambda *_: pytest.fail("it has a record"))
    assert on_device.main(["fire", "nope", "--out", str(tmp_path)]) == 1


def test_a_number_that_is_none_fails_and_so_does_an_unknown_encoding(capsys):
    assert on_device.failed({"error": float("nan"), "bound": 1.0})
    with pytest.raises(SystemExit, match="2"):
        on_device.main(["ropes"])
    assert "ropes; it has nope, rope" in capsys.readouterr().err
