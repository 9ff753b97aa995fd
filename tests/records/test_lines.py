"""Lines of records: a checksum that no single flipped bit gets past, bounds on what is read, and lines of other versions."""

import itertools
import json
import os
import pathlib
import random
import struct
import tracemalloc
import zlib

import pytest

from attnjax.records import jsonl, lines
from attnjax.sweep.run_context import RunContext
from attnjax.sweep.stop import Stop

FROZEN = pathlib.Path(__file__).parents[1] / "frozen" / "format_1"
OLD = b'{"schema":1,"i":%d}\n'


def sealed(text: str) -> str:
    """A line with its checksum, from the words of the format alone."""
    return f'{text[:-1]},"crc32":"{zlib.crc32(text[:-1].encode()):08x}"}}'


def test_a_line_ends_with_the_checksum_of_what_stands_before_it():
    body = '{"schema":2,"step":100,"loss":0.25'
    assert lines.text({"step": 100, "loss": 0.25}) == f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}\n'
    # The CRC-32 of "123456789" is cbf43926 by definition (ISO 3309).
    assert zlib.crc32(b"123456789") == 0xCBF43926


def test_every_value_survives_bit_by_bit(tmp_path):
    draw, path = random.Random(0), tmp_path / "log"
    values = [struct.unpack("d", struct.pack("Q", draw.getrandbits(64)))[0] for _ in range(500)]
    values = [value for value in values if abs(value) < float("inf")] + [0.1, -0.0, 5e-324, 2.0**63]
    jsonl.append(path, *({"value": value, "text": 'é\u2028\n","crc32":"00000000"}'} for value in values))
    found = jsonl.read(path)
    assert [struct.pack("d", one["value"]) for one in found.tables] == [struct.pack("d", value) for value in values]
    assert all(one["text"] == 'é\u2028\n","crc32":"00000000"}' for one in found.tables)
    assert (found.damaged, found.unchecked) == ([], 0)


def a_run(folder: pathlib.Path) -> list[pathlib.Path]:
    """The two logs of a run, as training writes them."""
    context = RunContext({folder: 0}, Stop(), lambda event: None)
    for step in range(20):
        context.metrics(folder, {"step": step, "loss": 7.0 / (step + 3), "tokens_per_second": 1234.5, "text": "*J\x0b"})
    for length in range(12):
        context.results(
            folder, {"step": 20, "length": length, "metric": "loss", "value": 1 / 3, "count": 4, "split": "test"}
        )
    return [folder / name for name in jsonl.FILES]


def test_of_a_thousand_flipped_bits_none_changes_a_record_in_silence(tmp_path):
    paths = a_run(tmp_path)
    whole = [path.read_bytes() for path in paths]
    before = [jsonl.read(path).tables for path in paths]
    draw, silent = random.Random(14), []
    for _ in range(1000):
        which = draw.randrange(2)
        place, bit = draw.randrange(len(whole[which])), draw.randrange(8)
        data = bytearray(whole[which])
        data[place] ^= 1 << bit
        paths[which].write_bytes(data)
        found = jsonl.read(paths[which])
        if not (found.damaged and all(table in before[which] for table in found.tables)):
            silent.append((paths[which].name, place, bit))
        assert found.unchecked == 0
        assert len(found.tables) >= len(before[which]) - 2
        paths[which].write_bytes(whole[which])
    assert silent == []


def test_no_flipped_bit_of_a_line_makes_another_line_of_it(tmp_path):
    """Every bit of one line, the end of the line too, where the line is the last one and where another follows."""
    path, line = tmp_path / "log", lines.text({"step": 1, "value": 0.5}).encode()
    for after in (b"", lines.text({"step": 2}).encode()):
        for place, bit in itertools.product(range(len(line)), range(8)):
            data = bytearray(line + after)
            data[place] ^= 1 << bit
            path.write_bytes(data)
            found = jsonl.read(path)
            assert found.damaged
            assert all(table == {"schema": 2, "step": 2} for table in found.tables)


def test_lines_without_a_checksum_are_read_and_said_to_be_without(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(OLD % 0 + OLD % 1)
    jsonl.append(path, {"i": 2})
    found = jsonl.read(path)
    assert ([one["i"] for one in found.tables], found.damaged, found.unchecked) == ([0, 1, 2], [], 2)
    assert jsonl.unchecked(path) == 2
    assert jsonl.unchecked(tmp_path / "none") == 0


def test_a_newer_line_is_refused_if_it_is_sound_and_damaged_if_it_is_not(tmp_path):
    path = tmp_path / "log"
    path.write_text(f'{{"schema":3,"i":1}}\n{sealed(json.dumps({"i": 1}))}\n{lines.text({"i": 2})}')
    found = jsonl.read(path)
    assert [one["i"] for one in found.tables] == [2]
    assert found.damaged == [
        "line 1 is damaged: it has no checksum, as lines of schema 3 have",
        "line 2 has no schema version, got None",
    ]
    path.write_text(lines.text({"i": 1}) + sealed('{"schema":3,"i":2}') + "\n")
    with pytest.raises(
        ValueError, match=r"log, line 2 was written by a newer version of attnjax: it has schema 3, .* Update"
    ):
        jsonl.read(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="newer version"):
        jsonl.keep(path, lambda table: False)
    assert path.read_bytes() == before


def test_lines_that_end_as_on_windows_are_the_same_lines(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(lines.text({"i": 1}).encode().replace(b"\n", b"\r\n"))
    assert jsonl.read(path) == ([{"schema": 2, "i": 1}], [], 0)


def test_rewinding_keeps_lines_as_they_are_and_gives_none_a_checksum(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"schema":1,"step":1}\nrubbish\n{"schema":1,"step":3}\n')
    jsonl.append(path, {"step": 2}, {"step": 4})
    RunContext({tmp_path: 0}, Stop(), lambda event: None).truncate_after(tmp_path, 2)
    assert path.read_text() == '{"schema":1,"step":1}\n' + lines.text({"step": 2})


def test_rewinding_drops_what_another_run_measured(tmp_path):
    """Its file of results may have been put in place of this one's."""
    path = tmp_path / "results.jsonl"
    jsonl.append(path, {"run": tmp_path.name, "step": 1}, {"run": "0123456789abcdef", "step": 1}, {"step": 2})
    RunContext({tmp_path: 0}, Stop(), lambda event: None).truncate_after(tmp_path, 2)
    assert path.read_text() == lines.text({"run": tmp_path.name, "step": 1}) + lines.text({"step": 2})


def test_rewinding_leaves_a_file_alone_that_cannot_be_read(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    jsonl.append(path, {"step": 1}, {"step": 9})
    before = path.read_bytes()
    monkeypatch.setattr(lines, "LARGEST", 10)
    with pytest.raises(ValueError, match="larger than"):
        RunContext({tmp_path: 0}, Stop(), lambda event: None).truncate_after(tmp_path, 2)
    assert path.read_bytes() == before


def peak(action) -> int:
    """The most bytes that Python objects held at once meanwhile."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_huge_line_is_read_with_little_memory(tmp_path):
    path = tmp_path / "log"
    jsonl.append(path, {"i": 0})
    os.truncate(path, 200 * 2**20)  # a sparse file: zeros without an end of line
    assert peak(lambda: jsonl.read(path)) < 20 * 2**20
    assert jsonl.read(path) == ([{"schema": 2, "i": 0}], ["line 2 is longer than 1048576 bytes"], 0)


def test_a_file_beyond_any_that_a_run_writes_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "log"
    jsonl.append(path, {"i": 0})
    monkeypatch.setattr(lines, "MOST", 3)
    path.write_bytes(OLD % 0 * 3)
    assert len(jsonl.read(path).tables) == 3
    path.write_bytes(OLD % 0 * 3 + b"\n")
    assert jsonl.read(path) == ([], ["has more than 3 lines, more than are read"], 0)
    os.truncate(path, 2**28 + 1)
    assert jsonl.read(path) == ([], ["is larger than 256 MiB, more than is read"], 0)


def test_of_many_damaged_lines_a_hundred_are_told_and_the_rest_counted(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x\n" * 20_000)
    assert peak(lambda: jsonl.read(path)) < 2 * 2**20
    assert jsonl.read(path).damaged[-2:] == ["line 100 is not JSON", "has 19900 more such lines"]


def test_a_record_too_long_to_be_read_is_not_written(tmp_path):
    jsonl.append(tmp_path / "log", {"text": "x" * (lines.LONGEST - 100)})
    with pytest.raises(ValueError, match="a record must have at most 1048576 bytes, got one of"):
        jsonl.append(tmp_path / "log", {"text": "x" * lines.LONGEST})
    assert len(jsonl.read(tmp_path / "log").tables) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_no_file_of_records(tmp_path):
    os.mkfifo(tmp_path / "log")
    assert jsonl.read(tmp_path / "log") == ([], ["is no regular file"], 0)


@pytest.mark.parametrize("run", sorted(path.name for path in FROZEN.iterdir() if path.is_dir()))
def test_records_of_the_first_format_are_read_whole(run):
    for name in jsonl.FILES:
        path = FROZEN / run / name
        found = jsonl.read(path)
        assert found.tables == [json.loads(line) for line in path.read_text().splitlines()]
        assert (found.damaged, found.unchecked) == ([], len(found.tables))
