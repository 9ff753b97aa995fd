"""Records of an experiment go on where they were stopped, also in the middle of a line."""

import pytest

from attnjax.records import jsonl
from experiments import recorded

PROTOCOL = {"kind": "protocol", "windows": 3}


def test_a_line_that_was_cut_short_goes_and_the_rest_stays(tmp_path):
    path = tmp_path / "deep" / "records.jsonl"
    assert recorded.begin(path, PROTOCOL) == []
    jsonl.append(path, {"run": "a"}, {"run": "b"})
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"records.jsonl is damaged: "):
        recorded.read(path, "tests", len)
    assert [one.get("run") for one in recorded.begin(path, PROTOCOL)][2:] == ["a"]
    jsonl.append(path, {"run": "b"})
    assert path.read_bytes() == whole
    assert recorded.read(path, "tests", len) == 4


def test_records_of_another_protocol_are_refused(tmp_path):
    recorded.begin(tmp_path / "records.jsonl", PROTOCOL)
    with pytest.raises(ValueError, match=r"holds records of another protocol \(windows\); choose another folder"):
        recorded.begin(tmp_path / "records.jsonl", {**PROTOCOL, "windows": 4})


def test_cells_of_one_encoding_are_not_averaged(tmp_path):
    recorded.check_cells(tmp_path, [("rope", "a"), ("rope", "a"), ("alibi", "b")])
    with pytest.raises(
        ValueError, match=r"of one encoding that differ in more than their seeds \(rope\): measure one cell"
    ):
        recorded.check_cells(tmp_path, [("rope", "a"), ("alibi", "b"), ("rope", "c")])
