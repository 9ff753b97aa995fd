"""`python -m tests.on_device`, on the CPU: it compares, goes on where it was stopped, and fails where an error is too large."""

import pytest

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
    assert "4 cases in 1 implementations" in text
    assert f"| alibi | {single:.1e} | {half:.1e} |" in text
    monkeypatch.setattr(on_device, "compared", lambda *_: pytest.fail("it has a record"))
    assert on_device.main(["alibi", "--out", str(small)]) == 0


def test_a_wrong_result_fails_and_is_told(small, monkeypatch):
    attention = on_device.attention

    def wrong(*given):
        run = attention(*given)

        def doubled(q, k, v, params, scale, *data):
            return run(q, k, v, params, 2 * scale, *data)

        return doubled

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
