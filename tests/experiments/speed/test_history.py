"""The benchmark history: it has every committed record, its page follows from it, and figures stand under their dates."""

import json

import pytest

from experiments.speed import history

FIRST = {"date": "2026-01-02T03:04:05", "commit": "abcdef0123", "jax": "1", "processor": "P", "cores": 2, "python": "3"}
ROW = {"suite": "s", "case": "forward", "ours": "attnjax", "peer": "theirs", "sizes": {"T": 8, "B": 1}, "unit": "s"}


def line(date, ours, ratio, **changes):
    return {**FIRST, **ROW, "date": date, "our_figure": [ours] * 3, "ratio": [ratio] * 3, **changes}


def test_the_page_and_every_committed_record_are_in_it():
    lines = history.read(history.HISTORY)
    assert history.PAGE.read_text(encoding="utf-8") == history.page(lines)
    found = sorted(history.HERE.glob("*/speed.jsonl"))
    assert len(found) == 7
    for record in found:
        assert history.added(lines, history.lines_of(record)) == lines, record


def test_a_case_has_a_column_for_each_measurement():
    early, late = "2026-01-02T03:04:05", "2026-02-02T03:04:05"
    lines = history.added(
        [line(late, 0.004, 3.0)], [line(early, 0.25, 0.5), line(early, 2.0, 1.0, sizes={"T": 9, "B": 1})]
    )
    assert [one["date"] for one in lines] == [early, early, late]
    text = history.page(lines)
    assert "| case | sizes | peer | 2026-01-02 03:04 | 2026-02-02 03:04 |" in text
    assert "| forward | T=8 | theirs | 250 ms (0.500x) | 4.00 ms (3.00x) |" in text
    assert "| forward | T=9 | theirs | 2.00 s (1.00x) |  |" in text
    assert "| 2026-01-02 03:04 | abcdef0 | s | 1 | P, 2 cores, Python 3 |" in text
    assert "without a history yet: s." in history.page(lines[:2])


def test_a_smoke_run_is_refused(tmp_path):
    (tmp_path / "speed.jsonl").write_text(json.dumps({"machine": {"smoke": True}}) + "\n")
    with pytest.raises(ValueError, match="is the record of a smoke run, whose times do not count"):
        history.lines_of(tmp_path / "speed.jsonl")
